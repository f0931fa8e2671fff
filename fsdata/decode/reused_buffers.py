"""Buffers that are used again when nobody refers to them any more.

The rows of a shuffle window and the batches on their way to the model take hundreds of megabytes for a short time. An
allocator would give freed pages back to the system, and touching fresh pages costs more than decoding into used ones.
"""

import bisect
import threading
from collections import deque

import numpy as np
import torch

_SMALL = 1 << 16


class Lease:
    """A buffer for as long as somebody refers to this object, or to an array or tensor made from it."""

    __slots__ = ("_memory", "_returned")

    def __init__(self, memory: np.ndarray, returned: "deque[np.ndarray]") -> None:
        self._memory = memory
        self._returned = returned

    @property
    def address(self) -> int:
        return self._memory.ctypes.data

    @property
    def __array_interface__(self) -> dict[str, object]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        # No lock: this may run inside `take`, when the garbage collector runs there.
        self._returned.append(self._memory)


class Pool:
    """Hands out buffers; keeps as many as were ever in use at once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[np.ndarray] = []
        self._returned: deque[np.ndarray] = deque()

    def take(self, size: int) -> Lease:
        """At least `size` bytes, the smallest free buffer that fits; 64-byte aligned, contents arbitrary."""
        with self._lock:
            while self._returned:
                bisect.insort(self._free, self._returned.popleft(), key=len)
            position = bisect.bisect_left(self._free, size, key=len)
            if position < len(self._free):
                return Lease(self._free.pop(position), self._returned)
            if self._free:
                # All free buffers are too small: the new one replaces the smallest.
                del self._free[0]
        return Lease(_fresh(size), self._returned)

    def tensor(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor [count]; its memory comes back when the last tensor that shares it is gone."""
        size = count * dtype.itemsize
        if size < _SMALL:
            return torch.empty(count, dtype=dtype)
        return torch.from_numpy(np.asarray(self.take(size))[:size]).view(dtype)


def _fresh(size: int) -> np.ndarray:
    """uint8, `size` and at most an eighth more, so that the next, slightly larger request fits too."""
    step = 1 << max(size.bit_length() - 4, 12)
    size = -(-size // step) * step
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]
