"""Copies ranges of items from one tensor to another: the base of all jagged kernels.

Permuting rows, packing them by destination rank and key, and turning key-major into sample-major are the same copy with
different starts (paper, section 1: indexed permute, ranged dispatch, ranged combine, keyed transpose). The copy moves
bytes, so any type and any bit pattern is preserved, and its backward is the copy with the starts exchanged.

There are three implementations: `reference` is the definition, in plain torch; numba runs on the CPU, Triton on the
GPU. `by_rank` plans a dispatch. Letters: R ranges, T and U items of source and target, [...] the trailing dimensions of
an item, K keys, N samples.
"""

import numpy as np
import torch

from fsdata.kernels.columns import copy
from fsranks.libraries import kernel

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copy_ranges(
    source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, places: torch.Tensor, lengths: torch.Tensor
) -> None:
    """target[places[r] + i] = source[starts[r] + i] for i < lengths[r], on the device of the tensors.

    source: [T, ...], target: [U, ...], contiguous, of one type, trailing shape and device; starts, places, lengths:
    int64[R] there. Callers ensure that ranges are inside the tensors, and that those of the target do not overlap.
    Items of the target outside the ranges stay as they are. On the GPU it does not synchronise.
    """
    if not lengths.numel() or not source.numel():
        return
    width = source[0].numel()
    if source.device.type == "cpu":
        table = np.stack([starts.numpy(), places.numpy(), lengths.numpy()])
        copy_all(table, source.data_ptr(), target.data_ptr(), width * source.element_size())
    else:
        from fsdata.kernels.ranges_triton import launch

        # Integers of the same size: one compiled kernel for all types, and every bit pattern is preserved.
        word = _WORDS[source.element_size()]
        launch(source.view(word), target.view(word), starts, places, lengths, width)


def reference(
    source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, places: torch.Tensor, lengths: torch.Tensor
) -> None:
    """The definition of `copy_ranges`: slow, one slice after another."""
    for start, place, length in zip(starts.tolist(), places.tolist(), lengths.tolist(), strict=True):
        target[place : place + length] = source[start : start + length]


def by_rank(lengths: torch.Tensor, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Starts, places and lengths, int64 [K * N] each, of the copy that orders (key, sample) pairs by rank.

    lengths: integers [K, N]; rank: integers [N]; on one device. Pairs of the source are in order of key, then sample;
    those of the target in order of rank, then key, then sample. The results share no memory with `lengths`. On the GPU
    it is one launch and does not synchronise.
    """
    if lengths.device.type == "cpu":
        return by_rank_reference(lengths, rank)
    from fsdata.kernels.ranges_triton import launch_by_rank

    return launch_by_rank(lengths, rank)


def by_rank_reference(lengths: torch.Tensor, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The definition of `by_rank`, used on the CPU."""
    flat = lengths.reshape(-1).to(torch.int64, copy=True)
    # The sort is stable, so the pairs of a rank stay in order of key, then sample.
    order = rank.expand(lengths.shape).reshape(-1).argsort(stable=True)
    chosen = flat.gather(0, order)
    places = torch.empty_like(flat).scatter_(0, order, chosen.cumsum(0) - chosen)
    return flat.cumsum(0) - flat, places, flat


def add_ranges(
    source: torch.Tensor,
    target: torch.Tensor,
    starts: torch.Tensor,
    places: torch.Tensor,
    lengths: torch.Tensor,
    row: torch.Tensor,
    rows: int,
) -> None:
    """target[places[r] + i] += source[starts[r] + i] for i < lengths[r], in ascending order of r.

    As `copy_ranges`, for floats, and ranges of the target may overlap. row: int64[R] below `rows`; ranges that overlap
    have the same row.
    """
    if not lengths.numel() or not source.numel():
        return
    width = source[0].numel()
    if source.device.type != "cpu":
        from fsdata.kernels.ranges_triton import launch_add

        launch_add(source, target, starts, places, lengths, row, rows, width)
    elif source.dtype in (torch.float32, torch.float64):  # of the others, numpy has no bfloat16, numba no float16
        table = np.stack([starts.numpy(), places.numpy(), lengths.numpy()])
        _add_all(table, source.view(-1).numpy(), target.view(-1).numpy(), width)
    else:
        add_reference(source, target, starts, places, lengths)


def add_reference(
    source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor, places: torch.Tensor, lengths: torch.Tensor
) -> None:
    """The definition of `add_ranges`: slow, one slice after another."""
    for start, place, length in zip(starts.tolist(), places.tolist(), lengths.tolist(), strict=True):
        target[place : place + length] += source[start : start + length]


@kernel
def _add_all(table: np.ndarray, source: np.ndarray, target: np.ndarray, width: int) -> None:
    """table: int64[3, R] starts, places, lengths; source, target: flat, `width` numbers an item."""
    # One thread: ranges of the target may overlap, and the order of a sum determines its bits.
    for r in range(table.shape[1]):
        start, place = table[0, r] * width, table[1, r] * width
        for i in range(table[2, r] * width):
            target[place + i] += source[start + i]


@kernel(called_with="int64[:, ::1], int64, int64, int64")
def copy_all(table: np.ndarray, source: int, target: int, item_bytes: int) -> None:
    """table: int64[3, R] starts, places, lengths; the others: byte addresses and bytes of an item."""
    # The widest word to which all addresses are aligned: `copy` makes arrays of it, which numba takes to be aligned.
    wide = item_bytes % 8 == 0 and source % 8 == 0 and target % 8 == 0
    half = item_bytes % 4 == 0 and source % 4 == 0 and target % 4 == 0
    word = 8 if wide else 4 if half else 1
    for r in range(table.shape[1]):
        copy(
            target + table[1, r] * item_bytes,
            source + table[0, r] * item_bytes,
            table[2, r] * item_bytes // word,
            word,
        )
