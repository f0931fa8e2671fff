"""A pool of buffers that are reused when nothing refers to them any more.

The rows of a shuffle window and the batches on their way to the model take hundreds of megabytes for a short time. An
allocator would return freed pages to the system, and touching fresh pages costs more than decoding into used ones.
"""

import bisect
import threading
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

_size = attrgetter("size")
_LARGER = 2  # a buffer may be this many times as large as the request
_SMALL = 1 << 14  # bytes; a buffer of this size serves any smaller request
_SPARE = 4  # a quarter of the peak use may be retained unused


@dataclass(slots=True, eq=False)
class _Buffer:
    """One buffer. address: stored, as computing it costs as much as half a tensor. returned: number of its last return
    to the pool."""

    size: int
    address: int
    memory: np.ndarray
    returned: int = 0


class Lease:
    """A buffer that is in use as long as this object, an array made from it, or a tensor over that exists."""

    __slots__ = ("_buffer", "_returned", "_shown")

    def __init__(self, buffer: _Buffer, returned: "deque[_Buffer]") -> None:
        self._buffer = buffer
        self._returned = returned
        self._shown = (buffer.size,), "|u1"

    @property
    def address(self) -> int:
        return self._buffer.address

    @property
    def __array_interface__(self) -> dict[str, object]:
        shape, kind = self._shown
        return {"data": (self._buffer.address, False), "shape": shape, "typestr": kind, "version": 3}

    def array(self, count: int, kind: str) -> np.ndarray:
        """The first `count` elements of a type like "<i8"."""
        self._shown = (count,), kind
        return np.asarray(self)

    def __del__(self) -> None:
        # No lock: the garbage collector may run this inside `take`, which holds it.
        self._returned.append(self._buffer)


class Pool:
    """Leases buffers; thread-safe.

    Retains at most five quarters of the peak use. A leased buffer is at most twice as large as the request, so that
    large ones remain available for large requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Buffer] = []
        self._returned: deque[_Buffer] = deque()
        self._returns = 0
        self._bytes = self._free_bytes = self._most_in_use = 0

    def take(self, size: int) -> Lease:
        """At least `size` bytes, the smallest free buffer that fits; 64-byte aligned, contents arbitrary."""
        with self._lock:
            self._collect()
            position = bisect.bisect_left(self._free, size, key=_size)
            if position < len(self._free) and self._free[position].size <= max(_LARGER * size, _SMALL):
                return self._lease(self._remove(position))
            buffer = _fresh(size)
            self._bytes += buffer.size
            lease = self._lease(buffer)
            while self._free and self._bytes > self._most_in_use + self._most_in_use // _SPARE:
                oldest = min(range(len(self._free)), key=lambda at: self._free[at].returned)
                self._bytes -= self._remove(oldest).size
            return lease

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._returns += 1
            buffer.returned = self._returns
            bisect.insort(self._free, buffer, key=_size)
            self._free_bytes += buffer.size

    def _remove(self, position: int) -> _Buffer:
        buffer = self._free.pop(position)
        self._free_bytes -= buffer.size
        return buffer

    def _lease(self, buffer: _Buffer) -> Lease:
        self._most_in_use = max(self._most_in_use, self._bytes - self._free_bytes)
        return Lease(buffer, self._returned)


def _fresh(size: int) -> _Buffer:
    """A buffer of `size` and at most an eighth more, so that the next, slightly larger request fits, too."""
    step = 1 << max(size.bit_length() - 4, 12)
    size = -(-size // step) * step
    memory = np.empty(size + 64, np.uint8)
    address = memory.ctypes.data
    return _Buffer(size, address + -address % 64, memory)
