"""What all nodes have in common: one place in the data, which each hands to the node before it, and one clock."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from torch.utils.data import get_worker_info
from torchdata.nodes import BaseNode

from fsdata.balance.exchange import RESTARTED
from fsdata.order.progress import Progress
from fsranks.rank_context import RankContext

T = TypeVar("T", covariant=True)
ResultT = TypeVar("ResultT")


def not_the_end(what: str, call: Callable[[], ResultT]) -> ResultT:
    """What `call` gives. StopIteration of the user's code is no end of the data, and must not end the loop."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


def check_worker(what: str, context: RankContext, *, own_share: bool = False) -> None:
    """RuntimeError in a worker process of a torch DataLoader: each worker would read all rows of its rank, and ranks
    cannot reach each other from workers.

    own_share: this worker has rank and world size of its own, so rows come once.
    """
    worker = get_worker_info()
    if worker is None or (own_share and context.group is None):
        return
    if worker.num_workers == 1 and context.group is None:
        return
    raise RuntimeError(
        f"{what} is used in a worker process of a torch DataLoader (worker {worker.id} of {worker.num_workers}): every "
        "worker would read all rows of its rank, so that each row comes once per worker, and workers cannot exchange "
        f"samples with other ranks. Iterate {what} itself in the training process: it makes batches ahead in threads. "
        "Or make a loader without balance in each worker, with rank=rank * num_workers + worker and "
        "world_size=ranks * num_workers"
    )


class Node(BaseNode[T]):
    """A node of the way from files to batches.

    Once for every epoch: `begin`, then `stop`, `end`; once for all: `close`, which ends threads.

    All nodes have one state, that of the job: how many rows every rank has passed (`fsdata.order.progress`). It is a
    small JSON-able dict, the same on every rank, and any number of ranks can go on from it. (Behind a source of the
    user's own the state is that of this source, see `fsdata.tensors.parts`.)

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
        """Begin at a state, or with the next epoch. What comes of the epoch under way is forgotten; where ranks meet in
        its steps, the others get a PeerError at the next one, unless they begin anew as well. Blocks until they come.

        Raises:
            StateError: the state is of another version, or of other data or another order.
        """
        place = self.units.place_of(initial_state)
        if initial_state is None:
            place = replace(place, tuning=self.tuning)
        else:
            self.forget()
        self.leave(RESTARTED)
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

    def leave(self, why: str, grace_s: float | None = None) -> None:
        """Tell the other ranks, if they meet once more in this epoch, that this one leaves it. See `StepExchange`."""
        self.source.leave(why, grace_s)

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Hear how long the batch that led to `after` computed here."""
        self.source.report(compute_seconds, after)

    def forget(self) -> None:
        """Forget what the planner has learned: a state of another place in the job comes next."""
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


class First(Node[T]):
    """A node without one before it: it knows the places in its data, and nothing waits, learns or is told there."""

    over = False
    dropped = 0
    tuning = None

    @property
    def units(self) -> Self:
        return self

    def place_of(self, state: dict[str, Any] | None) -> Progress:
        """The place of a state, or the beginning of the next epoch. Raises: see `reset`."""
        raise NotImplementedError

    def state_of(self, progress: Progress) -> dict[str, Any]:
        """The state of a place."""
        raise NotImplementedError

    def begin(self, progress: Progress) -> None:
        BaseNode.reset(self, None)

    def forget(self) -> None:
        """Nothing is learned here."""

    def end(self) -> None:
        """Nothing is under way."""

    def fail(self, error: BaseException) -> None:
        """No rank waits for this node."""

    def leave(self, why: str, grace_s: float | None = None) -> None:
        """No rank waits for this node."""

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Nothing here depends on it."""

    def stop(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing is open."""


class Timing:
    """Seconds by name. Thread-safe.

    Names: `fetch`, waiting for bytes that are read ahead, and `decode`, with reading bytes that are not, both in all
    decoding threads together; `wait_for_decoding`, `exchange` (small exchanges and moving samples, with waiting for
    peers) and `assemble`, in the thread that makes batches; `wait`, of the training loop for the next batch.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def of(self, name: str) -> "_Block":
        """Count the time of the block, also where it raises."""
        return _Block(self, name)

    def add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)


class _Block:
    """A context manager; a class, as a generator takes twice the time, and every step has several."""

    __slots__ = ("_begin", "_name", "_timing")

    def __init__(self, timing: Timing, name: str) -> None:
        self._timing = timing
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timing.add(self._name, time.perf_counter() - self._begin)
