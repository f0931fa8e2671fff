"""Measures how much time a loader spends on each activity."""

import threading
import time
from collections import defaultdict
from types import TracebackType


class Timing:
    """Seconds by activity. Thread-safe.

    `fetch`: waiting for bytes that are read ahead; `decode`: decoding, with reading all other bytes. Both are sums over
    all decoding threads. In the prefetch thread: `wait_for_decoding`; `exchange`: small exchanges and moving samples,
    with waiting for peers; `assemble`: copying values into batches. `wait`: the training loop waits for a batch.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def of(self, name: str) -> "_Block":
        """A context manager that adds the time of its block, also if the block raises."""
        return _Block(self, name)

    def add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)


class _Block:
    """A class, as a context manager made of a generator takes twice the time, and every step has several."""

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
