"""The batches of the loader become the user's own, in the thread that makes them ahead."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, cast

from fsdata.batch.batch import Batch
from fsdata.batch.prefetch import pinned
from fsdata.order.progress import Progress
from fsdata.steps.steps import Share

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class Made(Generic[BatchT]):
    """A batch on its way to the training loop, and where the job stands after it."""

    batch: BatchT
    progress: Progress

    def pin_memory(self) -> "Made[BatchT]":
        return replace(self, batch=pinned(self.batch))


class _Source(Protocol):
    """What `AdaptedSteps` needs of steps."""

    @property
    def share(self) -> Share: ...

    def next(self) -> tuple[Batch, Progress] | None: ...

    def fail(self, error: BaseException) -> None: ...


class AdaptedSteps(Generic[BatchT]):
    """Steps whose batches `adapt` turns into the user's own; None leaves them as they are."""

    def __init__(self, steps: _Source, adapt: Callable[[Batch], BatchT] | None) -> None:
        self._steps = steps
        self._adapt = adapt

    def next(self) -> Made[BatchT] | None:
        """The next batch, None at the end of the epoch.

        Raises what `adapt` raises, with a note that names step and rank; ranks that wait for this one hear of it.
        """
        made = self._steps.next()
        if made is None:
            return None
        batch, progress = made
        if self._adapt is None:
            return Made(cast(BatchT, batch), progress)
        stats = batch.stats
        try:
            return Made(_called(self._adapt, batch), progress)
        except BaseException as error:
            rank = self._steps.share.rank
            error.add_note(
                f"adapt=... failed with the batch of step {stats.step} of epoch {stats.epoch} on rank {rank}"
            )
            self._steps.fail(error)
            raise


def _called(adapt: Callable[[Batch], BatchT], batch: Batch) -> BatchT:
    try:
        adapted = adapt(batch)
    except StopIteration as error:  # as it is, it would end the user's loop without a word
        raise RuntimeError("adapt raised StopIteration") from error
    if adapted is None:
        raise TypeError("adapt returned None: it has to return the batch that the loop gets")
    return adapted
