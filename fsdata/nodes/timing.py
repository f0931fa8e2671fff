"""What the time of a loader goes into."""

import threading
import time
from collections import defaultdict
from types import TracebackType


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
