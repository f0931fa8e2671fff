"""References to the memory of tables other than by known tensors: aliases, exports, storages.

torch counts the references to a storage. Each tensor over it is one, however it was made: by `q.data = p.detach()`, in
a DLPack capsule, in a C++ extension. The Python object of a storage is different: torch keeps it as long as the memory
lives, whether or not the program still refers to it. The reference count of that object shows which.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

_COUNTS = 8  # another thread may refer to the memory for a moment: only what lasts counts
_PAUSE_S = 1e-4


class References:
    """References to the storages of `tensors`, each named by its address."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        found = {memory(tensor): tensor.untyped_storage() for tensor in tensors}
        self._storages = {place: (each, each._cdata) for place, each in found.items() if place is not None}
        self._accepted = dict.fromkeys(self._storages, 0)
        self.places = list(self._storages)

    def unknown(self, place: int, known: int) -> int:
        """How many there are now beside those of `known` tensors and the accepted ones; negative if fewer."""
        return self._count(place) - known - self._accepted[place]

    def lasting(self, place: int, known: Callable[[], Mapping[Any, int]], expected: int) -> int:
        """As `unknown`, counted again while there are more than `expected`, for a few moments."""
        for _ in range(_COUNTS):
            if (unknown := self.unknown(place, known()[place])) <= expected:
                break
            time.sleep(_PAUSE_S)
        return unknown

    def accept(self, place: int, known: int) -> None:
        """Do not count the present references from now on."""
        self._accepted[place] = self._count(place) - known

    def _count(self, place: int) -> int:
        storage, address = self._storages[place]
        # The former counts tensors, the latter Python's own references to the storage object.
        return torch._C._storage_Use_Count(address) + sys.getrefcount(storage)


def memory(tensor: torch.Tensor) -> int | None:
    """The address of the storage of a tensor; None if it has none."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunctionSubclass():  # of kinds that others have made
        return tensor.untyped_storage().data_ptr() or None
    return None


def places(tensor: torch.Tensor) -> set[int | None]:
    """The addresses of the storages of a tensor; of a DTensor, those of its shards on this rank. None: it has none."""
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return {memory(tensor)}
    return {memory(shard) for shard in (inner.local_shards() if hasattr(inner, "local_shards") else [inner])}
