"""Moving jagged rows inside a rank: permute, pack by destination rank, unpack, key-major to sample-major.

Each makes a `Ranges` of lengths. It says what goes where, and can be used many times, and backwards (`inverse`);
`Ranges.apply` moves values and is differentiable. Planning runs on the device of the lengths and does not synchronise.

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
    """R ranges of items that move from a source of `source_items` to a target of `target_items`.

    Attributes:
        starts, places, lengths: int64[R] where each range begins in the source and in the target, and its items.
        source_items, target_items: T of both. Where ranges do not cover a target, the rest is zero.
        covers: ranges cover the target, and the source.
    """

    starts: Tensor
    places: Tensor
    lengths: Tensor
    source_items: int
    target_items: int
    covers: bool = True

    def __post_init__(self) -> None:
        for name in ("starts", "places", "lengths"):
            given = getattr(self, name)
            if given.dtype != torch.int64 or given.shape != self.lengths.shape or given.dim() != 1:
                raise ValueError(
                    f"{name} is {given.dtype}{list(given.shape)}: int64 of shape {list(self.lengths.shape)} is needed"
                )

    @property
    def inverse(self) -> "Ranges":
        """The way back."""
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

    lengths: integers [N]; order: integers [M], each row at most once. `items`: T, if it is known on the host; it is
    needed where `order` names every row, and reading it from the device is what would synchronise.
    """
    lengths, order = _int64("lengths", lengths), _int64("order", order)
    chosen = lengths[order]
    total = int(lengths.sum()) if items is None else items
    whole = len(order) == len(lengths)
    return Ranges(
        starts=_starts(lengths)[order],
        places=_starts(chosen),
        lengths=chosen,
        source_items=total,
        target_items=total if whole else int(chosen.sum()),
        covers=whole,
    )


def ranged_dispatch(lengths: Tensor, rank: Tensor, *, items: int | None = None) -> Ranges:
    """Key-major values to a send buffer: by destination rank, there by key, there by sample.

    lengths: integers [K, N]; rank: integers [N], where each sample goes. The part of one rank is contiguous, so one
    all-to-all moves all keys, and it is key-major in itself: what a rank receives is one such part per sender. `items`:
    T, as of `indexed_permute`; without it, planning on a GPU waits for the sum of the lengths.
    """
    lengths, rank = _keyed(lengths), _integers("rank", rank)
    if rank.shape != lengths.shape[1:]:
        raise ValueError(f"rank {list(rank.shape)} for {lengths.shape[1]} samples: one destination each is needed")
    if rank.device != lengths.device:
        raise ValueError(f"rank is on {rank.device}, lengths are on {lengths.device}: move one of them")
    starts, places, flat = by_rank(lengths, rank)
    total = int(flat.sum()) if items is None else items
    return Ranges(starts=starts, places=places, lengths=flat, source_items=total, target_items=total)


def ranged_combine(lengths: Tensor, rank: Tensor, *, items: int | None = None) -> Ranges:
    """A receive buffer to key-major values: the way back of `ranged_dispatch(lengths, rank)`.

    lengths: integers [K, N] of the samples in the order they are to have; rank: [N], who sent each. Samples of one
    sender arrive in the order they have here.
    """
    return ranged_dispatch(lengths, rank, items=items).inverse


def keyed_transpose(lengths: Tensor, *, items: int | None = None) -> Ranges:
    """Key-major values to sample-major ones: all keys of sample 0, then all keys of sample 1. lengths: [K, N]."""
    lengths = _keyed(lengths)
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
    make = torch.empty if ranges.covers else torch.zeros
    target = make(shape, dtype=values.dtype, device=values.device)
    copy_ranges(values.detach().contiguous(), target, ranges.starts, ranges.places, ranges.lengths)
    return target


def _starts(lengths: Tensor) -> Tensor:
    return lengths.cumsum(0) - lengths


def _keyed(lengths: Tensor) -> Tensor:
    if lengths.dim() != 2:
        raise ValueError(f"lengths of shape {list(lengths.shape)}: [keys, samples] is needed")
    return _integers("lengths", lengths)


def _int64(name: str, given: Tensor) -> Tensor:
    return _integers(name, given).long()


def _integers(name: str, given: Tensor) -> Tensor:
    if given.dtype.is_floating_point or given.dtype == torch.bool:
        raise TypeError(f"{name} is {given.dtype}: integers are needed")
    return given
