"""Memory for the tensors of batches: pooled buffers, or page-locked memory if a GPU reads the batches."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from fsdata.decode.reused_buffers import Pool

Allocate = Callable[[int, torch.dtype], torch.Tensor]
_SMALL = 1 << 16  # bytes; below, numpy's allocator costs less than a pooled buffer and its finalizer
_KINDS = {torch.int64: "<i8", torch.float32: "<f4", torch.uint8: "|u1"}


class HostMemory(Protocol):
    """Allocates the tensors of batches; used by one thread at a time."""

    def tensor(self, count: int, dtype: torch.dtype, width: int | None = None) -> torch.Tensor:
        """An uninitialised tensor [count]; with a width [count / width, width]."""
        ...

    def tensor_of(self, numbers: np.ndarray) -> torch.Tensor:
        """An int64 tensor of these values; may share the memory of `numbers`."""
        ...


class PooledMemory:
    """Buffers of `pool`, which return to it when their last tensor is freed; small tensors from numpy."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def tensor(self, count: int, dtype: torch.dtype, width: int | None = None) -> torch.Tensor:
        size, kind = count * dtype.itemsize, _KINDS[dtype]
        numbers = np.empty(count, kind) if size < _SMALL else self._pool.take(size).array(count, kind)
        return torch.from_numpy(numbers if width is None else numbers.reshape(-1, width))

    def tensor_of(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers))


def page_locked(count: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor [count] from torch's caching allocator of page-locked memory."""
    return torch.empty(count, dtype=dtype, pin_memory=True)


class PageLockedMemory:
    """Page-locked memory from `allocate`.

    A loop may drop a batch right after `batch.to(device, non_blocking=True)`, while the device still reads it. torch's
    allocator records an event for each such copy, and reuses memory after these events. `Pool` reuses memory as soon
    as no reference is left, which would be too early. torch's allocator also keeps freed memory page-locked, so that
    each page is locked once.
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
