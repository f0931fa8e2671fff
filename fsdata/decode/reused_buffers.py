"""Buffers that are used again when nobody refers to them any more.

The rows of a shuffle window and the batches on their way to the model take hundreds of megabytes for a short time. An
allocator would give freed pages back to the system, and touching fresh pages costs more than decoding into used ones.
"""

import bisect
import threading
from collections import deque
from operator import attrgetter
from typing import NamedTuple

import numpy as np

_size = attrgetter("size")


class _Buffer(NamedTuple):
    """`address` costs as much as half a tensor to ask for, so that it is asked for once."""

    size: int
    address: int
    memory: np.ndarray


class Lease:
    """A buffer for as long as somebody refers to this object, to an array made from it or to a tensor of that."""

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
        # No lock: this may run inside `take`, when the garbage collector runs there.
        self._returned.append(self._buffer)


class Pool:
    """Hands out buffers; keeps as many as were ever in use at once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Buffer] = []
        self._returned: deque[_Buffer] = deque()

    def take(self, size: int) -> Lease:
        """At least `size` bytes, the smallest free buffer that fits; 64-byte aligned, contents arbitrary."""
        with self._lock:
            while self._returned:
                bisect.insort(self._free, self._returned.popleft(), key=_size)
            position = bisect.bisect_left(self._free, size, key=_size)
            if position < len(self._free):
                return Lease(self._free.pop(position), self._returned)
            if self._free:
                # All free buffers are too small: the new one replaces the smallest.
                del self._free[0]
        return Lease(_fresh(size), self._returned)


def _fresh(size: int) -> _Buffer:
    """`size` and at most an eighth more, so that the next, slightly larger request fits too."""
    step = 1 << max(size.bit_length() - 4, 12)
    size = -(-size // step) * step
    memory = np.empty(size + 64, np.uint8)
    address = memory.ctypes.data
    return _Buffer(size, address + -address % 64, memory)
