"""Milliseconds that a rank's main thread spends waiting for collectives which Python waits for.

TorchRec waits through `torch.distributed.Work.wait`; its caller's name tells which exchange it is.
"""

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

KINDS = ("ids", "rows", "gradients", "other")
_NAMES = {"ids": ("Splits", "KJT", "Mask"), "gradients": ("backward", "Grad", "grad"), "rows": ("Seq", "Embedding")}


class Waits:
    """Counts inside the `with` block, until `stop`. `seconds` by kind."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._wait: Any = None

    def __enter__(self) -> Self:
        self._wait = wait = dist.Work.wait
        seconds, main = self.seconds, threading.main_thread()

        def timed(work: Any, *arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not main:
                return wait(work, *arguments, **options)
            start = time.perf_counter()
            try:
                return wait(work, *arguments, **options)
            finally:
                seconds[_kind()] += time.perf_counter() - start

        dist.Work.wait = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def clear(self) -> None:
        for kind in self.seconds:
            self.seconds[kind] = 0.0

    def stop(self) -> None:
        """Count no more. May be called twice."""
        if self._wait is not None:
            dist.Work.wait, self._wait = self._wait, None  # type: ignore[method-assign]


def _kind() -> str:
    """Of the wait that the caller's caller is in."""
    frame = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        name = frame.f_code.co_qualname
        for kind, marks in _NAMES.items():
            if any(mark in name for mark in marks):
                return kind
        frame = frame.f_back  # type: ignore[assignment]
    return "other"
