"""The order of operations on a fused kernel that keeps rows of its tables in a cache (unified memory with caching).

A look-up or update first brings its rows into the cache, and puts others out, whichever these are; then it uses the
places in which its rows are. An operation of another thread in between, on other rows, may take these places. So each
operation has the kernel for itself, on the device as well: it is issued behind the one before it, whichever stream had
that. Nothing waits inside a turn, so turns come in any order without a circle. Kernels without a cache need none.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fscomm.device import Device, Host, Mark


class Turns:
    """Of one kernel that has a cache."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.RLock()  # a method of the kernel may call another one
        self._last: Mark = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What the calling thread issues inside comes behind all turns before, and ahead of all that follow. Blocks
        while another thread issues."""
        with self._lock:
            self._device.after(self._last)
            try:
                yield
            finally:
                self._last = self._device.mark()


class NoTurns(Turns):
    """Of a kernel without a cache: operations on different rows do not meet."""

    def __init__(self) -> None:
        super().__init__(Host())

    @contextmanager
    def turn(self) -> Iterator[None]:
        yield


NO_TURNS = NoTurns()


def has_cache(kernel: Any) -> bool:
    cache = getattr(kernel, "lxu_cache_weights", None)
    return cache is not None and cache.numel() > 0
