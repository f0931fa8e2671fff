"""The steps of data that grows: those of one segment after another, and between them what all ranks agree on."""

import json
import threading
from collections.abc import Callable
from typing import Any

from torchdata.nodes import BaseNode

from fsdata.balance.exchange import StatusWord, StepExchange, told
from fsdata.growing.segment import FileAt
from fsdata.growing.watcher import News, Watcher
from fsdata.nodes.dealt import Dealt, Kept, Talking, check_group
from fsdata.nodes.steps import Step
from fsdata.order.progress import Progress

FOLLOWS = "a source that is followed"
_TICK_S = 1.0


class Followed(Talking):
    """The steps of `source`, without an end until nothing new has come for a while. Blocks until there is data.

    A segment ends before a step for which some rank has too few rows: what is left goes into the next segment. Then
    rank 0 says in a tick, about once a second, which files come next, that nothing has come, or that this is the end.

    Args:
        timeout_s: how long this rank waits for others between segments.
        exchange: to meet by; None takes that of `source`, or makes one, which is collective.
        alive: whether somebody still needs these steps: nobody waits for data otherwise.
    """

    def __init__(
        self,
        source: Kept | Dealt,
        *,
        timeout_s: float = 300.0,
        exchange: StepExchange | None = None,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.source: Kept | Dealt = source
        self._data = self.units.data
        self._world_size = self.units.context.world_size
        self.exchange = exchange or source.exchange
        if self.exchange is None and self._world_size > 1:
            check_group(self.units.context, FOLLOWS)
            self.exchange, self._owned = StepExchange(self.units.context, timeout_s=timeout_s), True
        self._alive = alive
        self._stopped = threading.Event()
        self._watcher: Watcher | None = None
        self._progress = Progress.start(0, self._world_size)
        self._begun = self._ended = False

    @property
    def progress(self) -> Progress:
        return self._progress

    def begin(self, progress: Progress) -> None:
        self.end()
        BaseNode.reset(self, None)
        self._stopped.clear()
        self._progress = progress
        self._begun = self._ended = self.over = False
        if self.units.context.rank == 0:
            self._watcher = self._data.watcher(None if progress.segment is None else progress.segment.seen)

    def next(self) -> Step:
        """Raises StopIteration at the end, and where this rank is stopped."""
        try:
            if not self._begun and self._progress.segment is not None:
                self._enter(News((), {}), hold=True)
            while not self.over:
                step = self._step() if self._begun else None
                if step is not None:
                    return step
                if self._ended:
                    self.over = True
                elif not self._extended():
                    break
        except BaseException:
            self.over = True
            raise
        raise StopIteration

    def fail(self, error: BaseException) -> None:
        if self._begun:
            self.source.fail(error)
        self.over = True

    def report(self, compute_seconds: float, after: Progress) -> None:
        if self._begun:
            super().report(compute_seconds, after)

    def stop(self) -> None:
        """Wait for no further data: `next` ends soon."""
        self._stopped.set()

    def end(self) -> None:
        super().end()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def close(self) -> None:
        self.end()
        super().close()

    def _step(self) -> Step | None:
        try:
            step: Step = self.source.next()
        except StopIteration:
            return None
        self._progress = self.source.progress
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
        with told(self.exchange, self._status()):
            if news.files:
                self._progress = self._data.extended(self._progress, news.files, news.seen, self._world_size)
            if self._progress.segment is not None:
                self._data.enter(self._progress, self._world_size)
        if self.exchange is not None:
            self.exchange.agree(self._status())
        if self._progress.segment is None:
            return
        if not self._alive():
            raise RuntimeError("the loader is gone")  # nobody waits for a step any more
        self.source.source.hold = hold
        self.source.begin(self._progress)
        self._begun = True
        if self._watcher is not None and hold:
            self._watcher.look_ahead()

    def _tick(self) -> News | None:
        with told(self.exchange, self._status()):
            mine = None if self._watcher is None else self._watcher.poll(_TICK_S, self._stopped)
        if self.exchange is None:
            return mine
        text = b"" if mine is None else json.dumps([[file.state() for file in mine.files], mine.seen]).encode()
        said: list[Any] = self.exchange.gather(text, self._status())
        if not said[0]:
            return None
        files, seen = json.loads(said[0])
        return News(tuple(map(FileAt.of_state, files)), seen)

    def _status(self) -> StatusWord:
        return StatusWord(epoch=self._progress.epoch, step=self._progress.step)
