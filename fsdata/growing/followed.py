"""The node behind the steps of followed data: yields those of one segment after another, the same on all ranks.

Rank 0 alone looks at the folder. Between two segments ranks exchange one message per tick: rank 0 sends the next files,
if there are any, and every rank learns whether another one has failed or left.
"""

import json
import threading
from collections.abc import Callable

from fsdata.growing.segment import FileAt
from fsdata.growing.watcher import News, Watcher
from fsdata.nodes.node import Node
from fsdata.nodes.status_exchange import StatusExchange, failures_reported_to_peers
from fsdata.nodes.steps import Step, Steps
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord

_TICK_S = 1.0


class Followed(Node[Step]):
    """The steps of `source`, segment by segment, until no new file has come for a while. Blocks until there is data.

    A segment ends before a step for which some rank has too few rows; these rows begin the next segment. Then rank 0
    sends in a tick, about once a second, the next files, or that there are none yet, or that this is the end.

    Args:
        source: `LocalSteps` or `BalancedSteps`.
        timeout_s: how long this rank waits for others between segments. With several ranks the constructor is
            collective.
        alive: whether these steps are still needed; if not, the node does not wait for data.
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
        self._alive = alive
        self._stopped = threading.Event()
        self._watcher: Watcher | None = None
        self._progress = Progress.start(0, self._world_size)
        self._begun = self._ended = False
        # Last: if it fails, the job is closed, and this node with it.
        if self._world_size > 1:
            self.job.connect(context, "a followed source", timeout_s, StatusExchange)

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
        """Raises StopIteration at the end of the epoch, and if `on_stop` was called."""
        try:
            if not self._begun and self._progress.segment is not None:  # resumed inside a segment
                self._enter(News((), {}))
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
        """From another thread: `next` ends soon instead of waiting for data."""
        self._stopped.set()

    def on_end(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _step(self) -> Step | None:
        try:
            step: Step = self.source.next()
        except StopIteration:
            return None
        self._progress = self._steps.place()
        return step

    def _extended(self) -> bool:
        """Wait for the next segment, or the end; False if `on_stop` was called."""
        while not self._stopped.is_set() and self._alive():
            news = self._tick()
            if news is None:
                continue
            self._ended = not news.files
            self._enter(news)
            return True
        return False

    def _enter(self, news: News) -> None:
        """Begin the segment of these files, after all ranks have opened them; at the end that of the rows left."""
        exchange = self.job.exchange
        with failures_reported_to_peers(exchange, self._status()):
            if news.files:
                self._progress = self._data.extended(self._progress, news.files, news.seen, self._world_size)
            if self._progress.segment is not None:
                self._data.enter(self._progress, self._world_size)
        if exchange is not None:
            exchange.agree(self._status())  # raises on all ranks if one could not open its files
        if self._progress.segment is None:
            return  # the epoch ends without any file
        if not self._alive():
            # The user dropped the loader while this thread waited: nothing would use, or end, the work begun here.
            raise RuntimeError("the loader no longer exists")
        # At the end there is no further segment that could begin with the rows of a short step: it is yielded.
        self._steps.defer_short_step = not self._ended
        self.job.begin_segment(self._progress)
        self._begun = True
        if self._watcher is not None and not self._ended:
            self._watcher.prefetch()

    def _tick(self) -> News | None:
        """The next files, on all ranks; None: there are none yet."""
        exchange = self.job.exchange
        with failures_reported_to_peers(exchange, self._status()):
            news = None if self._watcher is None else self._watcher.poll(_TICK_S, self._stopped)
        if exchange is None:
            return news
        text = b"" if news is None else json.dumps([[file.state() for file in news.files], news.seen]).encode()
        received = exchange.gather(text, self._status())[0]  # from rank 0
        if not received:
            return None
        files, seen = json.loads(received)
        return News(tuple(map(FileAt.from_state, files)), seen)

    def _status(self) -> StatusWord:
        return StatusWord(epoch=self._progress.epoch, step=self._progress.step)
