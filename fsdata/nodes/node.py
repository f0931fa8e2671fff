"""What all nodes have in common: one place in the data, which each hands to the node before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from fsdata.order.progress import Progress

T = TypeVar("T", covariant=True)


@contextmanager
def not_the_end(what: str) -> Iterator[None]:
    """StopIteration of the user's code is no end of the data: as it is, it would end the loop without a word."""
    try:
        yield
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


class Node(BaseNode[T]):
    """A node of the way from files to batches.

    All nodes have one state, that of the job: how many rows every rank has passed (`fsdata.order.progress`). It is a
    small JSON-able dict, the same on every rank, and any number of ranks can go on from it.

    Attributes:
        source: the node before this one.
    """

    source: "Node[Any]"

    @property
    def units(self) -> Any:
        """The first node, see `fsdata.nodes.units`."""
        return self.source.units

    @property
    def progress(self) -> Progress:
        """Where the job stands after the item last given."""
        return self.source.progress

    @property
    def over(self) -> bool:
        """The epoch has ended, here or by an error; ranks do not meet in it any more."""
        return self.source.over

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What the planner of steps has learned, see `Progress`."""
        tuning: dict[str, Any] | None = self.source.tuning
        return tuning

    @property
    def dropped(self) -> int:
        """Rows of this rank that were left out at the ends of epochs."""
        return self.source.dropped

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin at a state, or with the next epoch. What comes of the epoch under way is forgotten.

        Raises:
            StateError: the state is of another version, or of other data or another order.
        """
        place = self.units.place_of(initial_state)
        if initial_state is None:
            place = replace(place, tuning=self.tuning)
        else:
            self.forget()
        self.begin(place)

    def begin(self, progress: Progress) -> None:
        """Begin at this place."""
        super().reset(None)
        self.source.begin(progress)

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.units.state_of(self.progress)
        return state

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks, if they meet once more in this epoch, that this rank failed after the item last given.

        Blocks until they come to that meeting. Returns; the caller raises its own error.
        """
        self.source.fail(error)

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Hear how long the batch that led to `after` computed here."""
        self.source.report(compute_seconds, after)

    def forget(self) -> None:
        """What a planner has learned: a state of another place in the job comes next."""
        self.source.forget()

    def end(self) -> None:
        """Make no further item until the next `begin`; what is under way ends by itself."""
        self.source.end()

    def stop(self) -> None:
        """Wait for no further data; only data that is followed is waited for."""
        self.source.stop()

    def close(self) -> None:
        """End threads and groups that nodes have made. Twice is fine."""
        self.source.close()
