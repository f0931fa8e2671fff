"""The steps of data that grows: those of one segment after another, and between them what all ranks agree on."""

import json
import threading
from collections.abc import Callable
from typing import Any

from fsdata.balance.exchange import StatusWord, StepExchange, told
from fsdata.batch.batch import Batch
from fsdata.order.progress import Progress
from fsdata.order.segment import FileAt
from fsdata.steps.follow.followed_data import FollowedData
from fsdata.steps.follow.watcher import News, Watcher
from fsdata.steps.steps import Share, Steps

_TICK_S = 1.0


class FollowedSteps:
    """As `fsdata.steps.steps.Steps`, without an end until nothing new has come for a while.

    A segment ends before a step for which some rank has too few rows: what is left goes into the next segment. Then
    rank 0 says in a tick, about once a second, which files come next, that nothing has come, or that this is the end.

    Args:
        make: a reference to what makes the steps of a segment from some place on; with `True` those that end before a
            step that is not whole. Gives None when the loader is gone, which is waiting for no further data either.
        watcher: on rank 0.
        exchange: None with one rank.
    """

    def __init__(
        self,
        data: FollowedData,
        progress: Progress,
        make: Callable[[], Callable[[Progress, bool], Steps] | None],
        watcher: Watcher | None,
        exchange: StepExchange | None,
        world_size: int,
    ) -> None:
        self._data = data
        self._progress = progress
        self._make = make
        self._watcher = watcher
        self._exchange = exchange
        self._world_size = world_size
        self._stopped = threading.Event()
        self._ended = False
        self._dropped = 0
        self._inner: Steps | None = None
        self.over = False

    def next(self) -> tuple[Batch, Progress] | None:
        """The next batch; None at the end. Blocks until there is data."""
        try:
            return self._next()
        except BaseException:
            self.over = True
            raise

    def fail(self, error: BaseException) -> None:
        """See `Steps.fail`."""
        if self._inner is not None:
            self._inner.fail(error)
        self.over = True

    def stop(self) -> None:
        """Wait for no further data: `next` returns None soon."""
        self._stopped.set()

    def report(self, compute_seconds: float, after: Progress) -> None:
        if self._inner is not None:
            self._inner.report(compute_seconds, after)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._watcher is not None:
            self._watcher.close()

    @property
    def share(self) -> Share:
        assert self._inner is not None
        return self._inner.share

    @property
    def dropped(self) -> int:
        inner = self._inner
        return self._dropped + (inner.dropped if inner is not None else 0)

    def _next(self) -> tuple[Batch, Progress] | None:
        if self._inner is None and self._progress.segment is not None:
            self._enter(News((), {}), hold=True)
        while not self.over:
            made = self._inner.next() if self._inner is not None else None
            if made is not None:
                self._progress = made[1]
                return made
            if self._ended:
                self.over = True
            elif not self._extended():
                return None
        return None

    def _extended(self) -> bool:
        """Wait for the next segment, or the end; False if this rank is stopped."""
        while not self._stopped.is_set() and self._make() is not None:
            news = self._tick()
            if news is None:
                continue
            self._ended = not news.files
            self._enter(news, hold=not self._ended)
            return True
        return False

    def _enter(self, news: News, *, hold: bool) -> None:
        """Go on with these files; no rank does before all have opened theirs."""
        with told(self._exchange, self._status()):
            if news.files:
                self._progress = self._data.extended(self._progress, news.files, news.seen, self._world_size)
            if self._progress.segment is not None:
                self._data.enter(self._progress, self._world_size)
        if self._exchange is not None:
            self._exchange.agree(self._status())
        if self._progress.segment is None:
            return
        if self._inner is not None:
            self._dropped += self._inner.dropped
            self._inner.close()
        make = self._make()
        if make is None:
            raise RuntimeError("the loader is gone")  # nobody waits for a step any more
        self._inner = make(self._progress, hold)
        if self._watcher is not None and hold:
            self._watcher.look_ahead()

    def _tick(self) -> News | None:
        with told(self._exchange, self._status()):
            mine = None if self._watcher is None else self._watcher.poll(_TICK_S, self._stopped)
        if self._exchange is None:
            return mine
        text = b"" if mine is None else json.dumps([[file.state() for file in mine.files], mine.seen]).encode()
        said: list[Any] = self._exchange.gather(text, self._status())
        if not said[0]:
            return None
        files, seen = json.loads(said[0])
        return News(tuple(map(FileAt.of_state, files)), seen)

    def _status(self) -> StatusWord:
        return StatusWord(epoch=self._progress.epoch, step=self._progress.step)
