"""Jagged moves that kernels are tested with, and plain Python to hold them against."""

from unittest import mock

import torch

from fsdata.embedding.kernels.jagged_ops import (
    Ranges,
    indexed_permute,
    keyed_transpose,
    ranged_combine,
    ranged_dispatch,
)
from fsdata.kernels import ranges as kernel

DTYPES = [torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _lengths(keys: int, samples: int, longest: int, seed: int) -> torch.Tensor:
    return torch.randint(0, longest + 1, (keys, samples), generator=torch.Generator().manual_seed(seed))


def _rank(samples: int, ranks: int, seed: int) -> torch.Tensor:
    return torch.randint(0, ranks, (samples,), generator=torch.Generator().manual_seed(seed))


_SEVEN, _GIANT = _lengths(3, 7, 9, 1), _lengths(2, 9, 3, 5)
_GIANT[0, 4] = 5003
CASES: dict[str, Ranges] = {
    "permute": indexed_permute(_SEVEN[0], torch.tensor([6, 0, 3, 2, 5, 1, 4])),
    "subset": indexed_permute(_SEVEN[0], torch.tensor([6, 3, 2])),
    "dispatch": ranged_dispatch(_SEVEN, _rank(7, 4, 2)),
    "dispatch to one": ranged_dispatch(_SEVEN, torch.full((7,), 3)),  # ranks 0-2 and those after 3 get nothing
    "combine": ranged_combine(_lengths(2, 33, 5, 3), _rank(33, 5, 4)),
    "transpose": keyed_transpose(_lengths(4, 17, 6, 6)),
    "giant row": ranged_dispatch(_GIANT, _rank(9, 3, 7)),
    "only empty rows": keyed_transpose(torch.zeros(2, 6, dtype=torch.int64)),
    "no samples": ranged_dispatch(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
}


# Lengths [K, N] and ranks [N] to plan a dispatch of. Ranks without a sample, and samples and keys without an item.
BY_RANK = {
    "one sample": (torch.tensor([[3]]), torch.tensor([5])),
    "one rank": (_lengths(2, 17, 3, 8), torch.zeros(17, dtype=torch.int64)),
    "512 ranks": (_lengths(3, 33, 4, 9), _rank(33, 512, 9)),
    "narrow integers": (_lengths(2, 19, 200, 10).to(torch.uint8), _rank(19, 3, 10).to(torch.int32)),
    "sums beyond 32 bits": (torch.full((2, 3), 2**30, dtype=torch.int32), torch.tensor([1, 0, 1])),
    "strided": (_lengths(9, 2, 4, 11).t(), _rank(18, 4, 11)[::2]),
    "empty": (torch.zeros(2, 9, dtype=torch.int64), _rank(9, 3, 12)),
    "no samples": (torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
}


def _overlapping(
    spans: list[tuple[int, int, int]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    """(row, place, length) of ranges -> starts, places, lengths, row, rows, items of the target."""
    row, places, lengths = torch.tensor(spans).reshape(-1, 3).t().contiguous()
    return lengths.cumsum(0) - lengths, places, lengths, row, int(row.max()) + 1, int((places + lengths).max())


# Ranges that overlap have one row; some have no items, and one is longer than what a program adds at a time.
OVERLAPPING = {
    "apart": _overlapping([(0, 0, 3), (1, 3, 4)]),
    "the same": _overlapping([(0, 0, 5), (0, 0, 5), (0, 0, 5)]),
    "some": _overlapping([(0, 2, 4), (1, 9, 3), (0, 0, 3), (0, 0, 0), (1, 7, 4), (0, 5, 2)]),
    "long": _overlapping([(0, 0, 2500), (0, 1200, 2600), (1, 3800, 5), (0, 1, 1)]),
    "none": _overlapping([(0, 0, 0)]),
}


def values_of(items: int, trailing: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Distinct bit patterns, NaNs among them."""
    count = items * torch.Size(trailing).numel()
    return (torch.arange(count) + 31700).to(WORDS[dtype.itemsize]).view(dtype).view(items, *trailing)


def poisoned(*shape, dtype, device):
    """In the place of torch.empty: what is not written is seen."""
    given = shape[0] if len(shape) == 1 else shape
    return torch.full(tuple(given), 0x5A, dtype=WORDS[dtype.itemsize], device=device).view(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    word = WORDS[a.element_size()]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(word), b.view(word))


def check(ranges: Ranges, trailing: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> None:
    """One move there and, where nothing is left out, back."""
    values = values_of(ranges.source_items, trailing, dtype)
    wanted = torch.zeros(ranges.target_items, *trailing, dtype=dtype)
    kernel.reference(values, wanted, ranges.starts, ranges.places, ranges.lengths)
    moved = ranges.to(device)
    with mock.patch.object(torch, "empty", poisoned):
        found = moved.apply(values.to(device))
        back = moved.inverse.apply(found) if ranges.covers else None
    assert same_bits(found.cpu(), wanted)
    assert back is None or same_bits(back.cpu(), values)


def check_backward(ranges: Ranges, device: str = "cpu") -> None:
    values = torch.randn(ranges.source_items, 2, device=device, requires_grad=True)
    moved = ranges.to(device).apply(values)
    weight = torch.randn(ranges.target_items, 2, device=device)
    moved.backward(weight)
    wanted = torch.zeros(ranges.source_items, 2)
    kernel.reference(weight.cpu(), wanted, ranges.places, ranges.starts, ranges.lengths)
    assert values.grad is not None
    assert torch.equal(values.grad.cpu(), wanted)
