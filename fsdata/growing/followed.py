"""The steps of data that grows: those of one segment after another, and between them what all ranks agree on."""

import json
import threading
from collections.abc import Callable
from typing import Any

from fsdata.growing.segment import FOLLOWS, FileAt
from fsdata.growing.watcher import News, Watcher
from fsdata.nodes.node import Node
from fsdata.nodes.status_exchange import StatusExchange, failures_reported_to_peers
from fsdata.nodes.steps import Step, Steps
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord

_TICK_S = 1.0


class Followed(Node[Step]):
    """The steps of `source`, without an end until nothing new has come for a while. Blocks until there is data.

    A segment ends before a step for which some rank has too few rows: what is left goes into the next segment. Then
    rank 0 says in a tick, about once a second, which files come next, that nothing has come, or that this is the end.

    Args:
        source: `LocalSteps` or `BalancedSteps`.
        timeout_s: how long this rank waits for others between segments; making it is collective where there are some.
        alive: whether anything still needs these steps: else there is no waiting for data.
    """

    def __init__(
        self, source: Node[Step], *, timeout_s: float = 300.0, alive: Callable[[], bool] = lambda: True
    ) -> None:
        source.job.begin_by_segments()  # before this node joins: it begins the segments itself
        super().__init__(source)
        self._steps: Steps = source.source
        self._data = self.units.data
        context = self.units.context
        self._world_size = context.world_size
        self._exchange = self.job.exchange
        if self._world_size > 1:
            self._exchange = self.job.connect(context, FOLLOWS, timeout_s, StatusExchange)
        self._alive = alive
        self._stopped = threading.Event()
        self._watcher: Watcher | None = None
        self._progress = Progress.start(0, self._world_size)
        self._begun = self._ended = False

    def place(self) -> Progress:
        return self._progress

    def on_begin(self, progress: Progress) -> None:
        self.on_end()
        self._stopped.clear()
        self._progress = progress
        self._begun = self._ended = False
        if self.units.context.rank == 0:
            self._watcher = self._data.watcher(None if progress.segment is None else progress.segment.seen)

    def next(self) -> Step:
        """Raises StopIteration at the end, and where this rank is stopped."""
        try:
            if not self._begun and self._progress.segment is not None:
                self._enter(News((), {}), hold=True)
            while not self.job.over:
                step = self._step() if self._begun else None
                if step is not None:
                    return step
                if self._ended:
                    self.job.over = True
                elif not self._extended():
                    break
        except BaseException:
            self.job.over = True
            raise
        raise StopIteration

    def on_stop(self) -> None:
        """Wait for no further data: `next` ends soon."""
        self._stopped.set()

    def on_end(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def on_close(self) -> None:
        self.on_end()

    def _step(self) -> Step | None:
        try:
            step: Step = self.source.next()
        except StopIteration:
            return None
        self._progress = self._steps.place()
        return step

    def _extended(self) -> bool:
        """Wait for the next segment, or the end; False if this rank is stopped."""
        while not self._stopped.is_set() and self._alive():
            news = self._tick()
            if news is None:
                continue
            self._ended = not news.files
            self._enter(news, hold=not self._ended)
            return True
        return False

    def _enter(self, news: News, *, hold: bool) -> None:
        """Go on with these files; no rank does before all have opened theirs."""
        with failures_reported_to_peers(self._exchange, self._status()):
            if news.files:
                self._progress = self._data.extended(self._progress, news.files, news.seen, self._world_size)
            if self._progress.segment is not None:
                self._data.enter(self._progress, self._world_size)
        if self._exchange is not None:
            self._exchange.agree(self._status())
        if self._progress.segment is None:
            return
        if not self._alive():
            raise RuntimeError("the loader is gone")  # no loop waits for a step any more
        self._steps.defer_short_step = hold
        self.job.begin_segment(self._progress)
        self._begun = True
        if self._watcher is not None and hold:
            self._watcher.look_ahead()

    def _tick(self) -> News | None:
        with failures_reported_to_peers(self._exchange, self._status()):
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
