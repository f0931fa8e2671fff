"""How long the samples of a batch are: noted when the batch comes, counted when its step has ended.

Letters: B samples of this rank.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_DEEPEST = 6
_MOST = 10_000
_LEAVES = (torch.Tensor, torch.nn.Module, ModuleType, FunctionType, MethodType, type, str, bytes, int, float)

Lengths = Mapping[str, torch.Tensor | np.ndarray]
"""Name of a sequence -> integers [B]."""


def batch_lengths(batch: Any) -> dict[str, torch.Tensor]:
    """Key -> integers [B], of every KeyedJaggedTensor in a batch; of equal keys, the first found."""
    found: dict[str, torch.Tensor] = {}
    for kjt in _kjts(batch):
        strides = list(getattr(kjt, "stride_per_key", lambda kjt=kjt: [kjt.stride()] * len(kjt.keys()))())
        for key, lengths in zip(kjt.keys(), kjt.lengths().split(strides), strict=True):
            found.setdefault(key, lengths)
    return found


def copied(lengths: Lengths) -> Lengths:
    """Lengths on a device are copied without waiting for it: the copy is there once the step has ended."""
    return {
        name: torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
        if isinstance(each, torch.Tensor) and each.is_cuda
        else each
        for name, each in lengths.items()
    }


def counted(lengths: Lengths) -> dict[str, tuple[list[int], list[int]]]:
    """Sequence -> (lengths, ascending; how many samples have each).

    Fields of one sequence have equal lengths: they are given once, under the name of the first.
    """
    found: dict[str, tuple[list[int], list[int]]] = {}
    seen: set[bytes] = set()
    for name, each in lengths.items():
        array = _integers(name, each)
        if (content := array.tobytes()) not in seen:
            seen.add(content)
            values, counts = np.unique(array, return_counts=True)
            found[name] = (values.tolist(), counts.tolist())
    return found


def _integers(name: str, given: torch.Tensor | np.ndarray) -> np.ndarray:
    array = np.asarray(given.detach() if isinstance(given, torch.Tensor) else given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"lengths of {name!r} are {array.dtype} {list(array.shape)}: integers [B] are needed, one for each "
            "sample; see BubbleMeter.watch(lengths=...)"
        )
    return array.astype(np.int64)


def _kjts(batch: Any) -> Iterator[Any]:
    """Every KeyedJaggedTensor that a batch stores, nearest first; a container that is met again is entered once."""
    level, entered = [batch], set[int]()
    for _ in range(_DEEPEST + 1):
        inside: list[Any] = []
        for value in level:
            if all(callable(getattr(type(value), method, None)) for method in ("keys", "lengths", "stride")):
                yield value
            elif id(value) not in entered:
                entered.add(id(value))
                inside += islice(_stored(value), _MOST - min(len(inside), _MOST))
        level = inside


def _stored(value: Any) -> Iterator[Any]:
    """Items and attributes."""
    if isinstance(value, _LEAVES):
        return
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    # What pickling would store: `__dict__` and slots, without running properties.
    state = object.__getstate__(value)
    for attributes in state if isinstance(state, tuple) else (state,):
        yield from (attributes or {}).values()
