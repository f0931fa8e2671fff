"""Steps in parts: whose turn it is, what a forward does in it, and which gradients travel when.

All parts of a step run in one way, as the ranks agreed at the first forward: with rows fetched ahead, or plainly, by
one call of the module's own forward for the whole step. In both, tables are read as they were before the step.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fscomm.device import Device
from fscomm.engine.choice import Call
from fscomm.engine.schedule import Forwards, StepSchedule
from fscomm.engine.step import Step
from fscomm.errors import NotServedError
from fscomm.exchange.handed_over import Gradients
from fscomm.loop.kjt_paths import Snapshot, same
from fscomm.loop.moving import Moved, memory_on
from fscomm.parts.batch_parts import InParts, cut_batch
from fscomm.parts.number_of_parts import NumberOfParts
from fscomm.parts.row_classes import classes_in
from fscomm.parts.step_times import StepTimes
from fscomm.parts.whole_call import WholeCall
from fscomm.report.recorder import Recorder

OTHER = (
    "{name} got other features in part {part} than those at {where}, where the batch holds them. Where two parts of a "
    "batch hold the same in a first step, say which one it is: features={{{name!r}: lambda batch: ...}}"
)
SECOND_BACKWARD = (
    "a second backward through a part, or one after its step has ended: the tables of a step are updated once, when "
    "the last part has its gradients"
)


@dataclass(slots=True, kw_only=True)
class ModuleInParts:
    """One module in a step.

    Attributes:
        part: the last one whose forward was called; -1 before the first.
        whole: what is left of its own forward of the whole step, if it runs plainly.
        gradients: of the parts so far, as they travel; None before the first, and when all travel.
        received: [part] by group, of parts that have their gradients. sent: so many parts travel.
    """

    part: int = -1
    whole: WholeCall | None = None
    gradients: Gradients | None = None
    received: dict[int, dict[int, Any]] = field(default_factory=dict)
    sent: int = 0


@dataclass(slots=True, kw_only=True)
class Progress:
    """Of a step: its `parts`, [k]; the whole batch, once the user holds it; its modules [M]."""

    parts: Sequence[Any]
    modules: Sequence[ModuleInParts]
    batch: Any = None


class PartSchedule(StepSchedule):
    """numbers: in how many parts steps are. averaged: the DistributedDataParallel inside the model, which exchange
    gradients with the last part."""

    one_at_a_time = True

    def __init__(
        self,
        engine: Forwards,
        *,
        numbers: NumberOfParts,
        averaged: Sequence[Any],
        recorder: Recorder,
        device: Device,
        limit_s: float,
    ) -> None:
        super().__init__(engine)
        self._numbers = numbers
        self._times = StepTimes(numbers, recorder, device, limit_s=limit_s)
        self._device = device
        self._averaged = averaged
        self._exchange: list[bool] = []  # what the user wants of each
        self._step: Step | None = None
        self._part: int | None = None

    # The loop.

    def forwards(self, step: int) -> int:
        return self._numbers.of(step)

    def split(self, moved: Moved[Any], step: int, *, was_moved: bool) -> tuple[list[Any], list[Any]]:
        number, make = self._numbers.of(step), self._engine.finder.make
        if number == 1:
            return super().split(moved, step, was_moved=was_moved)
        if not was_moved:
            return cut_batch(moved.batch, number, make), [None] * number
        return cut_batch(moved.batch, number, make, moved.pulled), cut_batch(moved.pulled, number, make)

    def announce(self, step: Step, batches: Sequence[Any]) -> None:
        step.progress = Progress(parts=batches, modules=[ModuleInParts() for _ in step.modules])
        step.classes, step.must_match = classes_in(len(batches)), len(batches) > 1

    def unsent(self) -> Sequence[int]:
        return self._times.unsent()

    def begin_loop(self) -> None:
        self._times.begin_loop()

    def hold(self, step: Step, left: Step | None, batch: Any, measured: Sequence[int]) -> Any:
        progress = _progress(step)
        self._times.begin(step, left, measured)
        if self._device.runs_ahead:  # they were made in the stream of the copies
            self._device.reads(*(tensor for part in progress.parts for tensor in memory_on(self._device.where, part)))
        progress.batch, step.batch = batch, progress.parts[0]
        return InParts(batch, progress.parts, partial(self._take, step))

    def end_step(self) -> None:
        """Parts without a backward pass give nothing, if others had one."""
        step = self._engine.held
        if step is None:
            return
        for m, module in enumerate(_progress(step).modules):
            gradients = module.gradients
            while gradients is not None and module.sent < len(gradients.by_forward):
                if self._send_part(step, module, gradients):
                    self._engine.backward.update(step, m, gradients)
        self._go_back_whole(step, in_any_case=True)

    def close(self) -> None:
        self._take(None, None)

    def await_rows(self, m: int) -> None:
        step = self._engine.held
        if step is not None and _has_several(step) and step.modules[m].used:
            for fetched in list(step.modules[m].fetched.values()):
                fetched.done.result()

    def _take(self, step: Step | None, part: int | None) -> None:
        """It is the turn of this part of the step. part: None if it is none's any more; step: None if of no step."""
        if part is None and step not in (None, self._step):
            return  # the user left an earlier step without ending it, and has begun another one
        if self._part is None:
            self._exchange = [wrapper.require_backward_grad_sync for wrapper in self._averaged]
        # A step that is over is not kept: the user may hold the block open for long.
        self._step, self._part = None if part is None else step, part
        last = step is None or part in (None, len(_progress(step).parts) - 1)
        for wrapper, exchange in zip(self._averaged, self._exchange, strict=True):
            wrapper.require_backward_grad_sync = exchange and last

    # Forwards.

    def call(self, m: int, features: Any, call: Call) -> Any:
        """In training, in a step of several parts, a module is called once in every part, in order, with what the batch
        holds.

        Raises:
            NotServedError: it is not.
            RuntimeError: it is no part's turn, or that of a part whose step is over.
        """
        engine = self._engine
        if not call.training or not self._check_turn(m, call):
            return engine.forward(m, features)
        name, step, part = self._name(m), engine.held, self._part
        assert step is not None
        assert part is not None
        module, announced = _progress(step).modules[m], step.modules[m].features
        if call.inside_backward or part != module.part + 1:
            where = "inside backward (activation checkpointing)" if call.inside_backward else f"in part {part}"
            after = f"after part {module.part}" if module.part >= 0 else "first"
            raise NotServedError(
                f"{name} is called {where} {after}: in a block with parts it is called once in every part, in order"
            )
        module.part = part
        if part == 0:
            if (why := engine.finder.learn(m, step.batch, features)) is not None:
                raise NotServedError(f"{name}: {why}")
            return engine.forward(m, features)
        engine.check()
        if announced is None or not announced[part].matches(features):
            raise NotServedError(OTHER.format(name=name, part=part, where=engine.finder.where(m)))
        return engine.output(m, step, features, part) if module.whole is None else module.whole.output(part)

    def _check_turn(self, m: int, call: Call) -> bool:
        """Whether the step that is held has several parts, for a forward of module m in training."""
        step, turn = self._engine.held, self._step
        several = step is not None and _has_several(step)
        if self._part is not None and turn is not step and (several or (turn is not None and _has_several(turn))):
            raise RuntimeError(
                f"{self._name(m)} is called in training in a part of a step that is over: another batch "
                "was asked for since. Compute all parts of a step before you ask for a batch, to evaluate, too. "
                "A prefetcher has to pull from the plain loader: loop over comm.lookahead(prefetcher)"
            )
        if self._part is None and (several or not call.inside_backward):
            raise RuntimeError(
                f"{self._name(m)} is called in training outside of a part: in a block with parts, take "
                "steps from comm.lookahead(loader) and compute `for part in step.parts(): ...`"
            )
        return several

    def run_plainly(
        self, m: int, step: Step | None, features: Any, *, training: bool, foreign: bool, stale: bool
    ) -> Any:
        """In training, module m's own forward of all parts, and the output of the first one, which got `features`."""
        if step is None or not training or not _has_several(step):
            return super().run_plainly(m, step, features, training=training, foreign=foreign, stale=stale)
        engine, progress, name = self._engine, _progress(step), self._name(m)
        of_batch = engine.finder.read(progress.batch)[0][m]
        if of_batch is None:
            raise NotServedError(f"{name}: its features are not found in the whole batch")
        of_parts = [engine.finder.read(part)[0][m] for part in progress.parts]
        if of_parts[0] is None or not same(of_parts[0], features):
            raise NotServedError(OTHER.format(name=name, part=0, where=engine.finder.where(m)))
        ends = list(itertools.accumulate(0 if kjt is None else kjt.stride() for kjt in of_parts))
        if ends[-1] != of_batch.stride():
            raise NotServedError(f"{name}: its parts have {ends[-1]} samples, and the whole batch {of_batch.stride()}")
        output = engine.run_plainly(m, step, of_batch, foreign=foreign)
        cut = engine.served.modules[m].cut(output, ends)
        whole = progress.modules[m].whole = WholeCall(*cut, partial(engine.backward.reach, step))
        # It was computed of what the batch holds: the parts to come have to get that.
        step.modules[m].features = [Snapshot(of_batch if kjt is None else kjt) for kjt in of_parts]
        return whole.output(0)

    def _name(self, m: int) -> str:
        return self._engine.served.modules[m].name

    # Backward.

    def complete(self, step: Step, m: int, number: int, by_group: dict[int, Any]) -> Gradients | None:
        """Parts travel in their order, whatever the order of their backward passes is: so it is that of all ranks."""
        if not _has_several(step):
            return super().complete(step, m, number, by_group)
        progress = _progress(step)
        module = progress.modules[m]
        if number in module.received or module.sent > number:
            raise RuntimeError(SECOND_BACKWARD)
        if module.gradients is None:
            by_part: list[dict[int, Any]] = [{} for _ in progress.parts]
            hypers = step.hypers_of(self._engine.served.groups[m])
            module.gradients = Gradients(number=step.number, by_forward=by_part, hypers=hypers)
        gradients = module.gradients
        module.received[number] = by_group
        while module.sent in module.received:
            if self._send_part(step, module, gradients):
                return gradients
        return None

    def _send_part(self, step: Step, module: ModuleInParts, gradients: Gradients) -> bool:
        """The next part's; whether it is the last one, which travels with the update."""
        part, parts = module.sent, len(gradients.by_forward)
        for g in gradients.groups:
            so_far = [module.received.get(number, {}).get(g) for number in range(part + 1)]
            merge = step.ids.ahead(g).merge
            self._device.reads(*merge.read_after(part))  # the ids worker made them
            given = merge.sent_after(so_far)
            if given is not None:
                gradients.by_forward[part][g] = given
        module.sent += 1
        if module.sent == parts:
            module.gradients, module.received = None, {}  # the user may hold the step for long
            return True
        self._engine.backward.send(step, gradients, [part, parts + part])
        return False

    def pass_is_over(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._go_back_whole(step)

    def _go_back_whole(self, step: Step, *, in_any_case: bool = False) -> None:
        """Modules that ran plainly, as a whole, go back if all parts have come; or in any case."""
        for module in _progress(step).modules:
            if module.whole is not None and (in_any_case or module.whole.is_complete):
                whole, module.whole = module.whole, None
                whole.go_back()


def _progress(step: Step) -> Progress:
    progress: Progress = step.progress
    return progress


def _has_several(step: Step) -> bool:
    return len(_progress(step).parts) > 1
