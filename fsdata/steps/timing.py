"""What the time of a loader goes into, added up over its threads."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Timing:
    """Seconds by name. Thread-safe.

    Names: `fetch`, waiting for bytes that are read ahead, and `decode`, with reading bytes that are not, both in all
    decoding threads together; `wait_for_decoding` and `exchange` (small
    exchanges and moving samples, with waiting for peers) and `assemble`, in the thread that makes batches; `wait`, of
    the training loop for the next batch.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count the time of the block, also where it raises."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            with self._lock:
                self._seconds[name] += spent

    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)
