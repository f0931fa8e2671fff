"""The base class of `FreeScaleDataLoader` and `rebalance`: runs the nodes of a job ahead of a training loop.

Two threads use the job. The training thread begins and ends epochs and closes the loader; the prefetch thread makes
steps, and exchanges data with other ranks in them. A gloo group serves one thread at a time, so the training thread
ends the prefetch thread before it uses the exchange itself.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from fsdata.batch.prefetch import IteratorGuard, Prefetcher
from fsdata.errors import PeerError
from fsdata.nodes.node import GRACE_S, Job
from fsdata.nodes.status_exchange import CLOSED, RESTARTED
from fsdata.nodes.timing import Timing
from fsranks.errors import describe
from fsranks.machine.at_exit import before_pools_end, why_over


class PrefetchingLoader:
    """Epochs with one iterator at a time, which end with the loop, with the loader, and with Python.

    A subclass begins an epoch: it takes the turn of the new iterator from `_guard`, ends the epoch before, begins the
    job, sets `_prefetcher`, and yields the items of `_items`.

    Args:
        job: with all of its nodes.
        timing: counts how long the training loop waits for items, as `wait`.
    """

    def __init__(self, job: Job, timing: Timing) -> None:
        self._job = job
        self._timing = timing
        self._guard = IteratorGuard()
        if job.exchange is not None and job.exchange.context.world_size > 1:
            self._guard.bind_process()  # a process forked from this one cannot use the connections to other ranks
        self._prefetcher: Prefetcher[Any] | None = None
        self._closed = False
        before_pools_end(self._end_at_exit)

    def close(self) -> None:
        """End threads and process groups. A second call does nothing; a closed loader cannot be used again.

        A loader that is not closed is closed when Python ends.
        """
        self._close(CLOSED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PeerError) and not self._guard.forked:
            # After a PeerError there is no next step that could announce that this rank leaves: break the exchange.
            self._job.abort(f"lost the others: {error}")
        self._close(CLOSED if error is None else f"raised {describe(error)}")

    def _items(self, prefetcher: Prefetcher[Any], turn: object) -> Iterator[Any]:
        """The items of an epoch that has begun; then ends it. If the loader is closed meanwhile, they just end.

        Raises RuntimeError where `turn` is not that of the newest iterator, and what making an item raised.
        """
        self._guard.check(turn)
        while (item := self._take(prefetcher)) is not None:
            yield item
            # Before the next item is taken: prefetched items would otherwise move the position of the new iterator.
            self._guard.check(turn)
        self._guard.check(turn)
        if not self._closed:
            self._end_epoch()

    def _take(self, prefetcher: Prefetcher[Any]) -> Any:
        with self._timing.of("wait"):
            return prefetcher.take()

    def _end_epoch(self, why: str = RESTARTED, grace_s: float | None = None) -> None:
        """End the threads of the current epoch, if there is one, and report `why` to the other ranks.

        Waits for ranks that are busy with a step. After `grace_s` it breaks the exchange, which only closing can do.
        """
        self._guard.check_process()
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is None:
            return
        self._job.stop()  # first: a step that waits for new files of a followed source would not end
        prefetcher.end(grace_s, lambda: self._job.abort(why))
        # The prefetch thread has ended: from here on this thread may use the nodes, and last the exchange.
        self._job.end()
        self._job.leave(why, grace_s)

    def _end_at_exit(self) -> None:
        self._close(why_over())

    def _before_close(self) -> None:
        """Shorten what the prefetch thread may wait for, as its epoch will not be continued."""

    def _close(self, why: str) -> None:
        """why: the reason that other ranks read."""
        if self._closed:
            return
        self._closed = True
        if self._guard.forked:
            return  # the threads, files and connections belong to the parent process
        self._before_close()
        self._end_epoch(why, GRACE_S)
        self._job.close(why)
