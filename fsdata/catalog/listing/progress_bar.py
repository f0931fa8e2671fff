"""A bar on the terminal while many footers are read."""

import logging
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN_AFTER_S = 2.0
_LOG = logging.getLogger("fsdata")


class ProgressBar:
    """Counts up to `total`. What takes longer than two seconds is shown, on stderr if that is a terminal, else logged.

    Use as a context manager. Thread-safe.
    """

    def __init__(self, what: str, total: int, *, shown: bool) -> None:
        self._what = what
        self._total = total
        self._shown = shown
        self._begin = time.monotonic()
        self._done = 0
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._logged = False

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if not self._shown or time.monotonic() - self._begin < SHOWN_AFTER_S:
                return
            if not sys.stderr.isatty():
                if not self._logged:
                    _LOG.info("%s: %d of %d so far", self._what, self._done, self._total)
                self._logged = True
                return
            if self._bar is None:
                self._bar = _bar(self._what, self._total)
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(what: str, total: int) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
