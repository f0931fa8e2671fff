"""Where the tensors of a batch lie: in buffers that are used again, page-locked ones if a GPU reads them."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from fsdata.decode.reused_buffers import Pool

Allocate = Callable[[int, torch.dtype], torch.Tensor]
_SMALL = 1 << 16
_KINDS = {torch.int64: "<i8", torch.float32: "<f4", torch.uint8: "|u1"}


class HostMemory(Protocol):
    """What makes the tensors of batches; used by one thread at a time."""

    def tensor(self, count: int, dtype: torch.dtype, width: int | None = None) -> torch.Tensor:
        """An uninitialised tensor [count]; with a width [count / width, width]."""
        ...

    def tensor_of(self, numbers: np.ndarray) -> torch.Tensor:
        """int64 of the same shape; shares the memory of `numbers` if it is in C order and any memory will do."""
        ...


class Reused:
    """Buffers of `pool`, which come back when the last tensor that shares them is gone; small tensors from numpy."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def tensor(self, count: int, dtype: torch.dtype, width: int | None = None) -> torch.Tensor:
        size, kind = count * dtype.itemsize, _KINDS[dtype]
        numbers = np.empty(count, kind) if size < _SMALL else self._pool.take(size).array(count, kind)
        return torch.from_numpy(numbers if width is None else numbers.reshape(-1, width))

    def tensor_of(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers))


def page_locked(count: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor [count] of torch's allocator of page-locked memory, which keeps what is freed."""
    return torch.empty(count, dtype=dtype, pin_memory=True)


class PageLocked:
    """Page-locked memory, from `allocate`.

    A loop may drop a batch right after `batch.to(device, non_blocking=True)`, while the device still reads it. torch's
    allocator knows of such copies: it records an event for each, and gives memory out again when these have passed.
    `Pool` learns only that nothing refers to a tensor any more, and would give it out too early. So no `Pool` here:
    with torch's allocator, too, no page is locked twice.
    """

    def __init__(self, allocate: Allocate = page_locked) -> None:
        self._allocate = allocate

    def tensor(self, count: int, dtype: torch.dtype, width: int | None = None) -> torch.Tensor:
        tensor = self._allocate(count, dtype)
        return tensor if width is None else tensor.view(-1, width)

    def tensor_of(self, numbers: np.ndarray) -> torch.Tensor:
        tensor = self._allocate(numbers.size, torch.int64).view(numbers.shape)
        tensor.numpy()[...] = numbers
        return tensor
