"""`copy_ranges`, `add_ranges` and `by_rank` in Triton. Imported at the first use: the CPU does not need Triton."""

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024  # words that a program copies at a time, or pairs that it plans at a time
_PROGRAMS = 2048  # fills a large GPU; if there are fewer ranges, several programs copy one range
_MOST_PER_RANGE = 1024


@triton.jit
def _copy(  # type: ignore[no-untyped-def]
    source, target, starts, places, lengths, width, BLOCK: tl.constexpr
):
    """Program (r, p) copies blocks p, p + P, ... of range r."""
    r = tl.program_id(0)
    # 64 bits throughout: tensors may have more than 2^31 words.
    start = tl.load(starts + r) * width
    place = tl.load(places + r) * width
    words = tl.load(lengths + r) * width
    first = tl.program_id(1).to(tl.int64) * BLOCK
    for block in range(first, words, tl.num_programs(1) * BLOCK):
        at = block + tl.arange(0, BLOCK)
        inside = at < words
        tl.store(target + place + at, tl.load(source + start + at, mask=inside), mask=inside)


def launch(
    source: torch.Tensor,
    target: torch.Tensor,
    starts: torch.Tensor,
    places: torch.Tensor,
    lengths: torch.Tensor,
    width: int,
) -> None:
    """See `copy_ranges`. source, target: words; width: words of an item. Launches on their device, current or not."""
    ranges = lengths.numel()
    shares = max(1, min(_MOST_PER_RANGE, _PROGRAMS // ranges))
    kernel: Any = _copy
    with torch.cuda.device_of(source):
        kernel[(ranges, shares)](source, target, starts, places, lengths, width, BLOCK=BLOCK)


@triton.jit
def _add(  # type: ignore[no-untyped-def]
    source, target, starts, places, lengths, order, firsts, width, BLOCK: tl.constexpr
):
    """Program (m, p) adds up blocks p, p + P, ... of row m: the ranges order[firsts[m]] to order[firsts[m + 1] - 1]."""
    # One program owns a word of the target and adds its ranges in order: with atomics the sum would depend on timing.
    m = tl.program_id(0)
    first, last = tl.load(firsts + m), tl.load(firsts + m + 1)
    low = tl.load(places + tl.load(order + first)) * width
    high = low
    for k in range(first, last):
        r = tl.load(order + k)
        low = tl.minimum(low, tl.load(places + r) * width)
        high = tl.maximum(high, (tl.load(places + r) + tl.load(lengths + r)) * width)
    begin = low + tl.program_id(1).to(tl.int64) * BLOCK
    for block in range(begin, high, tl.num_programs(1) * BLOCK):
        at = block + tl.arange(0, BLOCK)
        total = tl.load(target + at, mask=at < high, other=0.0)
        for k in range(first, last):
            r = tl.load(order + k)
            place, start = tl.load(places + r) * width, tl.load(starts + r) * width
            words = tl.load(lengths + r) * width
            inside = (at >= place) & (at < place + words)
            total += tl.load(source + start + at - place, mask=inside, other=0.0)
        tl.store(target + at, total, mask=at < high)


def launch_add(
    source: torch.Tensor,
    target: torch.Tensor,
    starts: torch.Tensor,
    places: torch.Tensor,
    lengths: torch.Tensor,
    row: torch.Tensor,
    rows: int,
    width: int,
) -> None:
    """See `add_ranges`."""
    if not rows:
        return
    numbers = torch.where(lengths > 0, row, rows)  # empty ranges go to row `rows`, for which no program runs
    order = numbers.argsort(stable=True)
    firsts = torch.searchsorted(numbers[order], torch.arange(rows + 1, device=row.device))
    kernel: Any = _add
    with torch.cuda.device_of(source):
        shares = max(1, min(_MOST_PER_RANGE, _PROGRAMS // rows))
        kernel[(rows, shares)](source, target, starts, places, lengths, order, firsts, width, BLOCK=BLOCK)


@triton.jit(do_not_specialize=["samples"])  # the samples of a rank differ in every step: one compilation for all
def _by_rank(  # type: ignore[no-untyped-def]
    lengths, rank, table, keys, samples, BLOCK: tl.constexpr
):
    """Program n < N computes the places of all samples of one rank, if sample n is the first one of this rank.

    So ranks need no upper bound. Program N computes the starts: they are the places if all samples had one rank, so it
    reads the rank of sample 0 for all samples.
    """
    n = tl.program_id(0)
    # 0 in program N: all its samples read the rank of sample 0, and it writes the first line of `table`.
    step = tl.where(n < samples, 1, 0)
    mine = tl.load(rank + n * step)
    lane = tl.arange(0, BLOCK)
    earlier = tl.zeros([BLOCK], tl.int32)
    for first in range(0, n * step, BLOCK):
        to = tl.load(rank + first + lane, mask=first + lane < n, other=0)
        earlier += (first + lane < n) & (to == mine)
    if tl.sum(earlier) == 0:
        before = tl.zeros([BLOCK], tl.int64)
        for key in range(keys):
            for first in range(0, samples, BLOCK):
                inside = first + lane < samples
                to = tl.load(rank + (first + lane) * step, mask=inside, other=0)
                before += tl.load(lengths + key * samples + first + lane, mask=inside & (to < mine), other=0)
        place = tl.sum(before)
        out = table + keys * samples * step
        for key in range(keys):
            for first in range(0, samples, BLOCK):
                inside = first + lane < samples
                to = tl.load(rank + (first + lane) * step, mask=inside, other=0)
                here = inside & (to == mine)
                pair = key * samples + first + lane
                length = tl.load(lengths + pair, mask=here, other=0).to(tl.int64)
                tl.store(out + pair, place + tl.cumsum(length, 0) - length, mask=here)
                tl.store(table + 2 * keys * samples + pair, length, mask=here)  # program N writes the same values again
                place += tl.sum(length)


def launch_by_rank(lengths: torch.Tensor, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `by_rank`. One program per rank visits all pairs; the others end when they find an earlier sample."""
    lengths, rank = lengths.contiguous(), rank.contiguous()
    keys, samples = lengths.shape
    table = torch.empty((3, lengths.numel()), dtype=torch.int64, device=lengths.device)
    kernel: Any = _by_rank
    if lengths.numel():
        with torch.cuda.device_of(lengths):
            # A program per sample, not per rank: the number of ranks is known on the device only.
            kernel[(samples + 1,)](lengths, rank, table, keys, samples, BLOCK=BLOCK)
    starts, places, flat = table.unbind()
    return starts, places, flat
