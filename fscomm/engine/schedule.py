"""How steps are computed: here, by one forward of each module, whose backward pass gives all of its gradients.

An extension that computes steps otherwise derives its schedule from this class. Methods are called by the training
thread, or in its backward passes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from fscomm.engine.backward import Backward
from fscomm.engine.choice import Call
from fscomm.engine.step import Step
from fscomm.exchange.handed_over import Gradients
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.loop.moving import Moved
from fscomm.tables.binding import ServedModules


class Forwards(Protocol):
    """What the engine does for a schedule. Attributes: as of `Engine`."""

    served: ServedModules
    finder: FeatureFinder
    backward: Backward

    @property
    def held(self) -> Step | None: ...

    def check(self) -> None: ...

    def forward(self, m: int, features: Any) -> Any: ...

    def output(self, m: int, step: Step, features: Any, number: int) -> Any: ...

    def run_plainly(self, m: int, step: Step | None, features: Any, *, foreign: bool, stale: bool = False) -> Any: ...


class StepSchedule:
    """Of the steps of one block."""

    one_at_a_time = False
    """A step is over as soon as another batch is asked for."""

    def __init__(self, engine: Forwards) -> None:
        self._engine = engine

    # The loop.

    def forwards(self, step: int) -> int:
        """How many forwards of a module the step of this number has, if it is announced now."""
        return 1

    def split(self, moved: Moved[Any], step: int, *, was_moved: bool) -> tuple[list[Any], list[Any]]:
        """[k] the batch of each forward of the step of this number, and the same in host memory where it was moved;
        else None."""
        return [moved.batch], [moved.pulled if was_moved else None]

    def announce(self, step: Step, batches: Sequence[Any]) -> None:
        """The step of these `batches`, [k], is announced. May set its classes of rows, and `progress`."""

    def unsent(self) -> Sequence[int]:
        """Measured numbers for the other ranks, equally many each time: `hold` gets the largest ones."""
        return ()

    def begin_loop(self) -> None:
        """The user begins a loop, or continues one after another one."""

    def hold(self, step: Step, left: Step | None, batch: Any, measured: Sequence[int]) -> Any:
        """What the user gets for the `batch` of a step, and had `left` before."""
        return batch

    def end_step(self) -> None:
        """The user asks for the next batch, or leaves the block."""

    def close(self) -> None:
        """The block has ended, with or without an error."""

    # Forwards.

    def call(self, m: int, features: Any, call: Call) -> Any:
        """The output of a forward of module m."""
        return self._engine.forward(m, features)

    def run_plainly(
        self, m: int, step: Step | None, features: Any, *, training: bool, foreign: bool, stale: bool
    ) -> Any:
        """The output of a forward that all ranks run plainly: see `Engine.run_plainly`."""
        return self._engine.run_plainly(m, step, features, foreign=foreign, stale=stale)

    def await_rows(self, m: int) -> None:
        """Block until no rows of module m are looked up for later forwards of the step that is held: the user may write
        into its tables."""

    # Backward.

    def complete(self, step: Step, m: int, number: int, by_group: dict[int, Any]) -> Gradients | None:
        """Called with the gradients of one forward of module m. Returns those of the whole step, or None while some are
        missing."""
        return Gradients(
            number=step.number, by_forward=[by_group], hypers=step.hypers_of(self._engine.served.groups[m])
        )

    def pass_is_over(self, steps: Iterable[Step]) -> None:
        """A backward pass that reached these steps is over."""
