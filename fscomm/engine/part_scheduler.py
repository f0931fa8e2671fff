"""Steps in parts: whose turn it is, and what a forward does in it.

All parts of a step run in one way, as the ranks agreed at the first forward: with rows fetched ahead, or plainly, by
one call of the module's own forward for the whole step. In both, tables are read as they were before the step.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from fscomm.engine.backward import Backward
from fscomm.engine.modes import Call
from fscomm.engine.step import Step
from fscomm.errors import NotServedError
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.loop.kjt_paths import Snapshot, same
from fscomm.loop.moving import Moved
from fscomm.loop.parts import cut_batch
from fscomm.plan.number_of_parts import NumberOfParts
from fscomm.tables.binding import Binding
from fscomm.tables.whole_call import WholeCall

OTHER = (
    "{name} got other features in part {part} than those at {where}, where the batch holds them. Where two parts of a "
    "batch hold the same in a first step, say which one it is: features={{{name!r}: lambda batch: ...}}"
)


class Forwards(Protocol):
    """What the engine does for a part. Attributes: as of `Engine`."""

    modules: Sequence[Binding]
    finder: FeatureFinder
    backward: Backward

    @property
    def held(self) -> Step | None: ...

    def check(self) -> None: ...

    def forward(self, m: int, features: Any) -> Any: ...

    def run_part(self, m: int, step: Step, features: Any, part: int) -> Any: ...

    def run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool) -> Any: ...


class PartScheduler:
    """Of the parts of the step that is held. averaged: the DistributedDataParallel inside the model, which exchange
    gradients in the last turn.

    Attributes:
        numbers: in how many parts steps are. in_use: the block was asked for steps in parts.
    """

    def __init__(self, engine: Forwards, numbers: NumberOfParts | None, averaged: Sequence[Any]) -> None:
        self.numbers = numbers or NumberOfParts([1])
        self.in_use = numbers is not None
        self._engine = engine
        self._averaged = averaged
        self._exchange: list[bool] = []  # what the user wants of each
        self._step: Step | None = None
        self._part: int | None = None

    def cut(self, moved: Moved[Any], step: int, *, was_moved: bool) -> tuple[list[Any], list[Any]]:
        """[k] the parts of the batch of the step of this number, and the same in host memory where it was moved; else
        None."""
        number, make, pulled = self.numbers.of(step), self._engine.finder.make, moved.pulled if was_moved else None
        if number == 1:
            return [moved.batch], [pulled]
        parts = cut_batch(moved.batch, number, make, pulled)
        return parts, cut_batch(pulled, number, make) if was_moved else [None] * number

    def end(self) -> None:
        """The user is done with the step that is held: what some part has brought is applied."""
        if self._engine.held is not None:
            self._engine.backward.end_step(self._engine.held)

    def await_rows(self, m: int) -> None:
        """Block until the rows of module m that later parts get are looked up: the user may write into its tables."""
        step = self._engine.held
        if step is not None and step.num_parts > 1 and step.modules[m].used:
            for fetched in list(step.modules[m].fetched.values()):
                fetched.done.result()

    def take(self, step: Step | None, part: int | None) -> None:
        """It is the turn of this part of the step. part: None if it is none's any more; step: None if of no step."""
        if part is None and step not in (None, self._step):
            return  # the user left an earlier step without ending it, and has begun another one
        if self._part is None:
            self._exchange = [wrapper.require_backward_grad_sync for wrapper in self._averaged]
        self._step, self._part = None if part is None else step, part  # a step that is over is kept by nobody
        last = step is None or part in (None, step.num_parts - 1)
        for wrapper, exchange in zip(self._averaged, self._exchange, strict=True):
            wrapper.require_backward_grad_sync = exchange and last

    def has_parts(self, m: int, call: Call) -> bool:
        """Whether the step that is held has several parts, for a forward of module m in training.

        Raises:
            RuntimeError: it is no part's turn, or that of a part whose step is over.
        """
        step, turn = self._engine.held, self._step
        several = step is not None and step.num_parts > 1
        if self._part is not None and turn is not step and (several or (turn is not None and turn.num_parts > 1)):
            raise RuntimeError(
                f"{self._engine.modules[m].name} is called in training in a part of a step that is over: another batch "
                "was asked for since. Compute all parts of a step before you ask for a batch, to evaluate, too. "
                "A prefetcher has to pull from the plain loader: loop over comm.lookahead(prefetcher)"
            )
        if self.in_use and self._part is None and (several or not call.inside_backward):
            raise RuntimeError(
                f"{self._engine.modules[m].name} is called in training outside of a part: in a block with parts, take "
                "steps from comm.lookahead(loader) and compute `for part in step.parts(): ...`"
            )
        return several

    def call(self, m: int, features: Any, call: Call) -> Any:
        """The forward of module m in training, in a step of several parts.

        Raises:
            NotServedError: it is not called once in every part, in order, with what the batch holds.
        """
        engine = self._engine
        name, step, part = engine.modules[m].name, engine.held, self._part
        assert step is not None
        assert part is not None
        module = step.modules[m]
        if call.inside_backward or part != module.part + 1:
            where = "inside backward (activation checkpointing)" if call.inside_backward else f"in part {part}"
            after = f"after part {module.part}" if module.part >= 0 else "first"
            raise NotServedError(
                f"{name} is called {where} {after}: in a block with parts it is called once in every part, in order"
            )
        module.part = part
        if part == 0:
            if (why := engine.finder.learn(m, step.parts[0], features)) is not None:
                raise NotServedError(f"{name}: {why}")
            return engine.forward(m, features)
        engine.check()
        if module.features is None or not module.features[part].matches(features):
            raise NotServedError(OTHER.format(name=name, part=part, where=engine.finder.where(m)))
        return engine.run_part(m, step, features, part) if module.whole is None else module.whole.output(part)

    def run_whole(self, m: int, step: Step, first: Any, *, foreign: bool) -> Any:
        """Module m's own forward of all parts; gives the output of the first one, which got the features `first`.
        foreign: see `run_plainly`."""
        engine = self._engine
        name, features = engine.modules[m].name, engine.finder.read(step.batch)[0][m]
        if features is None:
            raise NotServedError(f"{name}: its features are not found in the whole batch")
        of_parts = [engine.finder.read(part)[0][m] for part in step.parts]
        if of_parts[0] is None or not same(of_parts[0], first):
            raise NotServedError(OTHER.format(name=name, part=0, where=engine.finder.where(m)))
        ends = list(itertools.accumulate(0 if kjt is None else kjt.stride() for kjt in of_parts))
        if ends[-1] != features.stride():
            raise NotServedError(f"{name}: its parts have {ends[-1]} samples, and the whole batch {features.stride()}")
        output = engine.run_plainly(m, step, features, foreign=foreign)
        whole = WholeCall(*engine.modules[m].cut(output, ends), partial(engine.backward.reach, step))
        step.modules[m].whole = whole
        # It was computed of what the batch holds: the parts to come have to get that.
        step.modules[m].features = [Snapshot(features if kjt is None else kjt) for kjt in of_parts]
        return whole.output(0)
