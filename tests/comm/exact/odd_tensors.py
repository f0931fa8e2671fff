"""Tensors of all kinds that a batch may hold beside its ids, six samples each, and a way to write into each of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

SAMPLES = 6
Write = Callable[[torch.Tensor], object]
MakeOdd = tuple[Callable[[], torch.Tensor], Write]


class Wraps(torch.Tensor):
    """Without memory of its own: as a DTensor is made, which needs a process group."""

    __slots__ = ("_local",)
    _local: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, local: torch.Tensor) -> "Wraps":
        made: Wraps = torch.Tensor._make_wrapper_subclass(cls, local.shape, dtype=local.dtype)
        made._local = local
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        raise RuntimeError(f"{function} was asked for")


class Refuses(torch.Tensor):
    """With memory of its own, and nothing may be asked of it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        raise RuntimeError(f"{function} was asked for")


def _eye() -> torch.Tensor:
    return torch.eye(SAMPLES, dtype=torch.int64)


def _lists() -> list[torch.Tensor]:
    return [torch.arange(length) for length in (1, 2, 0, 1, 1, 3)]


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.arange(SAMPLES)


def _by_numpy(tensor: torch.Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        tensor.view(torch.uint8).numpy()[..., 0] ^= 1


def _write_scaled(tensor: torch.Tensor) -> object:
    return tensor.copy_(
        torch.quantize_per_channel(torch.ones(SAMPLES, 2), torch.ones(2), torch.zeros(2), 1, torch.qint8)
    )


ODD: dict[str, MakeOdd] = {
    "sparse": (lambda: _eye().to_sparse(), lambda x: x.values().add_(1)),
    "sparse, by numpy": (lambda: _eye().to_sparse(), lambda x: _by_numpy(x._indices()[1:])),
    "sparse, not coalesced": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1, 2]), (SAMPLES,)),
        lambda x: x._values().add_(1),
    ),
    "sparse rows": (lambda: _eye().to_sparse_csr(), lambda x: _by_numpy(x.values())),
    "sparse columns": (lambda: _eye().to_sparse_csc(), lambda x: _by_numpy(x.row_indices())),
    "sparse blocks": (lambda: _eye().float().to_sparse_bsr((2, 2)), lambda x: _by_numpy(x.values().view(-1))),
    "jagged": (lambda: torch.nested.nested_tensor(_lists(), layout=torch.jagged), lambda x: _by_numpy(x._values)),
    "nested": (lambda: torch.nested.nested_tensor(_lists()), lambda x: _by_numpy(x.values())),
    "meta": (lambda: torch.empty(SAMPLES, dtype=torch.int64, device="meta"), lambda x: x.add_(1)),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.zeros(SAMPLES, 2), 0.1, 0, torch.qint8),
        lambda x: x.copy_(torch.quantize_per_tensor(torch.ones(SAMPLES, 2), 0.1, 0, torch.qint8)),
    ),
    "quantized by channel": (
        lambda: torch.quantize_per_channel(torch.zeros(SAMPLES, 2), torch.ones(2), torch.zeros(2), 1, torch.qint8),
        _write_scaled,
    ),
    "masked": (
        lambda: masked_tensor(torch.arange(6.0), torch.arange(6) > 2),
        lambda x: _by_numpy(x._masked_mask),  # type: ignore[attr-defined]
    ),
    "bool": (lambda: torch.arange(SAMPLES) > 2, _by_numpy),
    "float8": (lambda: torch.rand(SAMPLES).to(torch.float8_e4m3fn), _by_numpy),
    "bits": (lambda: torch.zeros(SAMPLES, dtype=torch.uint8).view(torch.bits8), _by_numpy),
    "unsigned": (lambda: torch.arange(SAMPLES).to(torch.uint64), _by_numpy),
    "complex": (lambda: torch.rand(SAMPLES, dtype=torch.complex64), _by_numpy),
    "conjugated": (lambda: torch.rand(SAMPLES, dtype=torch.complex64).conj(), lambda x: _by_numpy(x.conj())),
    "of another layout": (lambda: torch.rand(SAMPLES, 2).to_mkldnn(), lambda x: x.mul_(2)),
    "fake": (_fake, lambda x: x.add_(1)),
    "without a dimension": (lambda: torch.tensor(3), lambda x: x.numpy().fill(4)),
    "wrapped": (lambda: Wraps(torch.arange(SAMPLES)), lambda x: _by_numpy(x._local)),  # type: ignore[attr-defined]
    "of a class that refuses": (lambda: torch.arange(SAMPLES).as_subclass(Refuses), _by_numpy),
}


def odd_tensors(seed: int) -> list[MakeOdd]:
    """Two kinds of them."""
    kinds = list(ODD.values())
    return [kinds[seed % len(kinds)], kinds[seed * 7 % len(kinds)]]
