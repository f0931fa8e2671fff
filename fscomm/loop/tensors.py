"""Contents of the tensors of a batch: whether two are equal, and whether one was written to.

Batches have tensors of every kind beside the ids: sparse, nested, masked, quantized, distributed, on no device. None of
them is an error here, and no code of a tensor's own class runs, because it may raise. A tensor without memory that can
be read is compared by its version alone.
"""

import copy
import ctypes
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from math import gcd, prod
from types import MemberDescriptorType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fscomm.plan.hash_tables import checksum

_PLAIN = (Tensor, torch.nn.Parameter)
_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)
_NOT_COMPARABLE = (RuntimeError, TypeError, AttributeError, AssertionError)  # by torch.equal, of tensors of some kinds


def stored(value: Any) -> Iterator[tuple[str, Any]]:
    """What an instance keeps in its `__dict__` and in its slots, by the name that reads it."""
    with suppress(AttributeError):  # it has slots only
        yield from dict(object.__getattribute__(value, "__dict__")).items()
    for base in reversed(type(value).__mro__):
        for name, member in tuple(vars(base).items()):  # copying an instance writes into its class
            if isinstance(member, MemberDescriptorType) and not name.endswith("__"):
                with suppress(AttributeError):  # this slot was never set
                    yield name, member.__get__(value)


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A mapping, list or tuple of the same type, with every item changed."""
    if isinstance(value, Mapping):
        made = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        for key, item in value.items():
            made[key] = change(item)
        return made
    items = [change(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def inner(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a tensor of another class keeps in its attributes: those of which a nested, masked or distributed
    one consists."""
    if type(tensor) not in _PLAIN:
        yield from ((name, value) for name, value in stored(tensor) if isinstance(value, Tensor))


def memory_of(tensor: Tensor) -> list[Tensor]:
    """The strided tensors in whose memory `tensor` lies: itself, or those of which torch makes a sparse or nested one.
    Without those that are `inner` to it."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        elif tensor.layout in _ROWS:
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        elif tensor.layout in _COLUMNS:
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        elif tensor.layout is torch.strided:
            parts = [tensor.values() if tensor.is_nested else tensor]
        else:
            parts = []
        return [as_plain(part) for part in parts if _address(part)]


def as_plain(tensor: Tensor) -> Tensor:
    """The same memory without what a class of its own does."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor if type(tensor) in _PLAIN else tensor.as_subclass(Tensor)


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Is it one tensor, or have both the same contents, which off the CPU waits for the device. Tensors on different
    devices or of different types are not equal, nor are those that torch cannot compare."""
    return all_equal([(a, b)])


def all_equal(pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> bool:
    """Is each pair `equal`. Off the CPU this waits for the device once, and not once for each."""
    compared = []
    with torch._C.DisableTorchFunctionSubclass(), suppress(*_NOT_COMPARABLE):
        for a, b in pairs:
            if a is b:
                continue
            if a is None or b is None or a.device != b.device or a.dtype != b.dtype:
                return False
            if a.device.type == "cpu" or a.shape != b.shape:
                if not torch.equal(a, b):
                    return False
            else:
                compared.append((a == b).all())
        return not compared or bool(torch.stack(compared).all())
    return False


def contents(tensor: Tensor | None) -> tuple[Any, ...]:
    """The version of a tensor, where it lies, and a checksum of its bytes; without the latter off the CPU.

    The checksum finds changes that torch does not count: by numpy, through `.data`, of reused memory.
    """
    if tensor is None:
        return ()
    with torch._C.DisableTorchFunctionSubclass():
        version = 0 if tensor.is_inference() else tensor._version
        return version, *((_address(part), _checksum(part)) for part in memory_of(tensor))


def _address(tensor: Tensor) -> int:
    """0 where it has no memory: of a class that only wraps others, of the meta device, or faked."""
    if isinstance(tensor, FakeTensor):  # torch warns
        return 0
    with suppress(RuntimeError):
        return tensor.data_ptr()
    return 0


def _checksum(tensor: Tensor) -> int:
    if tensor.device.type != "cpu":
        return 0
    if not tensor.is_contiguous():
        tensor = _once(tensor.detach())
    count = tensor.numel() * tensor.element_size()
    # Of the address, as numpy has no type for the elements of many kinds of tensors.
    flat = np.frombuffer(memoryview((ctypes.c_uint8 * count).from_address(tensor.data_ptr())), np.uint8)
    whole = count // 8 * 8
    rest = int.from_bytes(flat[whole:].tobytes(), "little")
    return int(checksum(flat[:whole].view(np.uint64))) + (rest << 64)


def _once(tensor: Tensor) -> Tensor:
    """[n] contiguous: each element of memory that belongs to a tensor, once. An expanded one may have many more."""
    dims = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and stride]
    step = gcd(*(stride for _, stride in dims)) or 1
    reach = 1 + sum((size - 1) * stride for size, stride in dims) // step
    if reach <= prod(size for size, _ in dims):  # no gaps, but dimensions in another order, or rows that overlap
        dims = [(reach, step)]
    sizes, strides = zip(*dims, strict=True)
    with suppress(RuntimeError):  # of a kind whose strides cannot be changed
        tensor = tensor.as_strided(sizes, strides)
    return tensor.contiguous()
