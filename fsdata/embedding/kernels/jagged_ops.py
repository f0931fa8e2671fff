"""Moves of jagged rows inside a rank: permute, pack by destination rank, unpack, key-major to sample-major.

Each operation computes a `Ranges` from lengths, on their device and without synchronising. `Ranges.apply` moves values
and is differentiable; `Ranges.inverse` is the reverse move. A `Ranges` can be applied any number of times.

Letters: K keys, N rows (samples) of a key, W ranks, T items of all rows of all keys, [...] trailing dimensions. A
key-major tensor holds key 0 of all samples, then key 1 of all samples, as a KeyedJaggedTensor does. Source: paper
section 1, "custom kernels".
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fsdata.kernels.ranges import by_rank, copy_ranges


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """R ranges of items, copied from a source of `source_items` to a target of `target_items`.

    Attributes:
        starts, places, lengths: int64[R], first item of each range in the source and in the target, number of items.
        source_items, target_items: T of both.
        covers: whether the ranges cover source and target; if not, the other items of the target are zero.
    """

    starts: Tensor
    places: Tensor
    lengths: Tensor
    source_items: int
    target_items: int
    covers: bool = True

    def __post_init__(self) -> None:
        for name in ("starts", "places", "lengths"):
            tensor = getattr(self, name)
            if tensor.dtype != torch.int64 or tensor.shape != self.lengths.shape or tensor.dim() != 1:
                raise ValueError(
                    f"{name} is {tensor.dtype}{list(tensor.shape)}: int64 of shape {list(self.lengths.shape)} is needed"
                )

    @property
    def inverse(self) -> "Ranges":
        """The move from target to source."""
        return replace(
            self,
            starts=self.places,
            places=self.starts,
            source_items=self.target_items,
            target_items=self.source_items,
        )

    def to(self, device: torch.device | str) -> "Ranges":
        return replace(
            self, starts=self.starts.to(device), places=self.places.to(device), lengths=self.lengths.to(device)
        )

    def apply(self, values: Tensor) -> Tensor:
        """[U, ...] from [T, ...]; differentiable where the values are.

        Raises ValueError for values of another number of items or on another device than the ranges.
        """
        if values.dim() == 0 or len(values) != self.source_items:
            raise ValueError(f"values of shape {list(values.shape)}: the first dimension must be {self.source_items}")
        if values.device != self.lengths.device:
            raise ValueError(f"values are on {values.device}, the ranges on {self.lengths.device}: move one of them")
        moved: Tensor = _Move.apply(values, self)
        return moved


def indexed_permute(lengths: Tensor, order: Tensor, *, items: int | None = None) -> Ranges:
    """Row m of the target is row order[m] of the source.

    lengths: integers [N]; order: integers [M], each row at most once. items: T, if the host has it: without it, and for
    an `order` of fewer than N rows, a sum is read from the device, which synchronises.
    """
    lengths, order = _integers("lengths", lengths).long(), _integers("order", order).long()
    permuted = lengths[order]
    total = int(lengths.sum()) if items is None else items
    covers = len(order) == len(lengths)
    return Ranges(
        starts=(lengths.cumsum(0) - lengths)[order],
        places=permuted.cumsum(0) - permuted,
        lengths=permuted,
        source_items=total,
        target_items=total if covers else int(permuted.sum()),
        covers=covers,
    )


def ranged_dispatch(lengths: Tensor, rank: Tensor, *, items: int | None = None) -> Ranges:
    """Key-major values to a send buffer in order of (destination rank, key, sample).

    lengths: integers [K, N]; rank: integers [N], destination of each sample. The values for one rank are contiguous, so
    one all-to-all moves all keys; they are key-major, so a rank receives one key-major block per sender. items: T, as
    in `indexed_permute`; without it, planning on a GPU waits for the sum of the lengths.
    """
    lengths, rank = _by_key(lengths), _integers("rank", rank)
    if rank.shape != lengths.shape[1:]:
        raise ValueError(f"rank {list(rank.shape)} for {lengths.shape[1]} samples: one destination each is needed")
    if rank.device != lengths.device:
        raise ValueError(f"rank is on {rank.device}, lengths are on {lengths.device}: move one of them")
    starts, places, flat = by_rank(lengths, rank)
    total = int(flat.sum()) if items is None else items
    return Ranges(starts=starts, places=places, lengths=flat, source_items=total, target_items=total)


def ranged_combine(lengths: Tensor, rank: Tensor, *, items: int | None = None) -> Ranges:
    """A receive buffer to key-major values: the inverse of `ranged_dispatch(lengths, rank)`.

    lengths: integers [K, N] of the samples in the order of the result; rank: [N], the sender of each sample. Samples of
    one sender arrive in the order of the result.
    """
    # The senders have packed for this rank in order of (key, sample), and their blocks are in order of the sender: the
    # layout that `ranged_dispatch` gives for the sender as the destination.
    return ranged_dispatch(lengths, rank, items=items).inverse


def keyed_transpose(lengths: Tensor, *, items: int | None = None) -> Ranges:
    """Key-major values to sample-major ones: all keys of sample 0, then all keys of sample 1. lengths: [K, N]."""
    lengths = _by_key(lengths)
    # The pairs (key, sample), in order of key, then sample, as rows: their permutation to order of sample, then key.
    order = torch.arange(lengths.numel(), device=lengths.device).view(lengths.shape).t().reshape(-1)
    return indexed_permute(lengths.reshape(-1), order, items=items)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranges: Ranges) -> Tensor:
        ctx.ranges = ranges
        return _moved(values, ranges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _moved(gradient, ctx.ranges.inverse), None


def _moved(values: Tensor, ranges: Ranges) -> Tensor:
    shape = (ranges.target_items, *values.shape[1:])
    allocate = torch.empty if ranges.covers else torch.zeros
    target = allocate(shape, dtype=values.dtype, device=values.device)
    copy_ranges(values.detach().contiguous(), target, ranges.starts, ranges.places, ranges.lengths)
    return target


def _by_key(lengths: Tensor) -> Tensor:
    if lengths.dim() != 2:
        raise ValueError(f"lengths of shape {list(lengths.shape)}: [keys, samples] is needed")
    return _integers("lengths", lengths)


def _integers(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype == torch.bool:
        raise TypeError(f"{name} is {tensor.dtype}: integers are needed")
    return tensor
