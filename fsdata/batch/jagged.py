"""Lists of different length in one tensor; sequences that samples share; sequences split into segments.

A batch contains the events of a `Shared` sequence once for all samples that see them; `expand` copies them to each
sample. A `SplitSequence` groups older events into segments, each followed by token slots, and leaves recent events as
they are, so that attention is not quadratic in the whole length: events of a segment attend to their segment, its
tokens summarize it, and recent events attend to the tokens instead of the older events. Source: PerSRec, arXiv
2601.03479.

Letters: B samples, E events, S segments and P positions of all samples. A position is an event or a token.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdata.batch.merged_windows import MergedWindows
from fsdata.kernels.ranges import add_ranges, copy_ranges
from fsdata.schema import Split


@dataclass(frozen=True, slots=True)
class Jagged:
    """N rows of different length, concatenated.

    Attributes:
        values: [sum of lengths, ...].
        offsets: int64 [N + 1], offsets[0] == 0 and offsets[-1] == len(values).
    """

    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def from_lengths(cls, values: torch.Tensor, lengths: torch.Tensor) -> "Jagged":
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])  # in place, without a concatenation
        return cls(values, offsets)

    @property
    def lengths(self) -> torch.Tensor:
        """int64 [N]."""
        return self.offsets[1:] - self.offsets[:-1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        """One row, a view. On CUDA reading the two offsets synchronises with the device."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a Jagged with {len(self)} rows")
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Jagged":
        return Jagged(
            self.values.to(device, non_blocking=non_blocking), self.offsets.to(device, non_blocking=non_blocking)
        )

    def pin_memory(self) -> "Jagged":
        return Jagged(self.values.pin_memory(), self.offsets.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self.values.record_stream(stream)
        self.offsets.record_stream(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The position of each of B samples' events in a sequence with `Sequence(share=...)`.

    Attributes:
        row: int64 [B], the row of the sequence's fields that contains the sample's events; other samples may share it.
        start: int64 [B], position of the first event in that row. length: int64 [B], number of events.
        offset: int64 [B], position of the first event among the values of a field, over all rows.
        rows: M, number of rows with events: the first M; the others are empty.
        total: events of all samples, the sum of `length`. held: events of all rows, at most `total`. On the host.
    """

    row: Tensor
    start: Tensor
    length: Tensor
    offset: Tensor
    rows: int
    total: int
    held: int

    @classmethod
    def from_windows(cls, windows: MergedWindows, tensor_of: Callable[[np.ndarray], Tensor]) -> "Shared":
        """The merged windows of B samples. tensor_of: allocates a tensor and copies an array to it."""
        # Sums of the arrays, not of the tensors: a sum on a device would have to be waited for.
        return cls(
            row=tensor_of(windows.row),
            start=tensor_of(windows.start),
            length=tensor_of(windows.length),
            offset=tensor_of(windows.offset),
            rows=len(windows.first),
            total=int(windows.length.sum()),
            held=int(windows.size.sum()),
        )

    @property
    def saved(self) -> int:
        """Events that are looked up once instead of again: each saves, per field, 8 bytes of ids, an embedding row and
        its gradient."""
        return self.total - self.held

    def map(self, function: Callable[[Tensor], Any]) -> "Shared":
        """A copy with `function` applied to every tensor."""
        tensors = {name: function(getattr(self, name)) for name in ("row", "start", "length", "offset")}
        return replace(self, **tensors)

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.row, self.start, self.length, self.offset):
            tensor.record_stream(stream)


def expand(values: Tensor, shared: Shared) -> Tensor:
    """The events of every sample, one sample after another: [sum of lengths, ...] from values of merged rows [T, ...].

    values: those of one field of the sequence, `batch.features[field].values()`, or embeddings that were looked up for
    them. The lengths of the result are `batch.shared[sequence].length`. Differentiable: the gradient of an event is the
    sum over the samples that see it, in the order of the samples, and therefore deterministic. On CUDA it does not
    synchronise.

    Raises:
        ValueError: values on another device than `shared`, or no values although samples have events.
    """
    if values.device != shared.offset.device:
        raise ValueError(f"values are on {values.device}, shared is on {shared.offset.device}: move one of them")
    if values.dim() == 0 or (shared.total and not len(values)):
        raise ValueError(f"values of shape {list(values.shape)} for {shared.total} events: the events come first")
    expanded: Tensor = _Expand.apply(values, shared)
    return expanded


class _Expand(torch.autograd.Function):
    # Not `index_select`: it needs an index for every event, and on CUDA its backward adds with atomics, so the gradient
    # would differ between runs.
    @staticmethod
    def forward(ctx: Any, values: Tensor, shared: Shared) -> Tensor:
        ctx.shared, ctx.shape = shared, values.shape
        target = values.new_empty((shared.total, *values.shape[1:]))
        # Contiguous, because the kernel copies memory by address.
        copy_ranges(values.detach().contiguous(), target, shared.offset, _sample_starts(shared), shared.length)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shared: Shared = ctx.shared
        target = gradient.new_zeros(ctx.shape)
        ranges = (_sample_starts(shared), shared.offset, shared.length)
        # Ranges of the target overlap only inside a merged row, so rows are summed in parallel and deterministically.
        add_ranges(gradient.contiguous(), target, *ranges, shared.row, shared.rows)
        return target, None


def _sample_starts(shared: Shared) -> Tensor:
    """int64 [B], position of each sample's first event in the result of `expand`."""
    return shared.length.cumsum(0) - shared.length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitSequence:
    """The positions of events and tokens in a sequence with `Sequence(split=...)`. The batch itself has no tokens.

    Properties and methods compute on the device of `events` and do not synchronise: sizes come from the two totals.

    Attributes:
        events: int64 [B], events of each sample; with `share`, after `expand`.
        options: those of the schema.
        total_events, total_segments: E and S, on the host.
    """

    events: Tensor
    options: Split
    total_events: int
    total_segments: int

    @classmethod
    def from_lengths(cls, events: Tensor, options: Split) -> "SplitSequence":
        """events: int64 [B], in host memory."""
        lengths = events.numpy()  # for a few numbers numpy takes a tenth of the time of torch
        segments = -(-np.maximum(lengths - options.recent, 0) // options.segment)
        return cls(events=events, options=options, total_events=int(lengths.sum()), total_segments=int(segments.sum()))

    @property
    def older(self) -> Tensor:
        """int64 [B], events in segments."""
        return (self.events - self.options.recent).clamp(min=0)

    @property
    def segments(self) -> Tensor:
        """int64 [B], number of segments."""
        return (self.older + self.options.segment - 1) // self.options.segment

    @property
    def total(self) -> int:
        """P."""
        return self.total_events + self.total_segments * self.options.tokens

    @property
    def lengths(self) -> Tensor:
        """int64 [B], positions of each sample."""
        return self.events + self.segments * self.options.tokens

    @property
    def offsets(self) -> Tensor:
        """int64 [B + 1], the first position of each sample."""
        return torch.cat([self.events.new_zeros(1), self.lengths.cumsum(0)])

    @property
    def segment_lengths(self) -> Tensor:
        """int64 [S], events of each segment, sample after sample. Only the last one of a sample may be shorter."""
        sample, number = self._numbered(self.segments, self.total_segments)
        return (self.older[sample] - number * self.options.segment).clamp(max=self.options.segment)

    @property
    def segment_offsets(self) -> Tensor:
        """int64 [S], the first position of each segment, counted over all samples."""
        sample, number = self._numbered(self.segments, self.total_segments)
        return self.offsets[sample] + number * (self.options.segment + self.options.tokens)

    def positions(self) -> "Positions":
        """The event or token at each of the P positions."""
        options, older, segments = self.options, self.older, self.segments
        sample, place = self._numbered(self.lengths, self.total)
        # A sample is: events of segment 0, its tokens, events of segment 1, its tokens, ..., recent events.
        recent_from = (older + segments * options.tokens)[sample]
        recent = place >= recent_from
        # All segments but the last one of a sample have the same size, so a division finds the segment. For recent
        # events the quotient is too large, but their `segment` and `inside` are not used; the clamp is for samples
        # without a segment.
        segment = torch.minimum(place // (options.segment + options.tokens), (segments[sample] - 1).clamp(min=0))
        inside = place - segment * (options.segment + options.tokens)
        events = (older[sample] - segment * options.segment).clamp(max=options.segment)
        token = ~recent & (inside >= events)
        event = torch.where(recent, older[sample] + place - recent_from, segment * options.segment + inside)
        first = (self.events.cumsum(0) - self.events)[sample]
        return Positions(
            sample=sample,
            place=place,
            segment=torch.where(recent, segments[sample], segment),
            recent=recent,
            token=token,
            index=torch.where(token, inside - events, first + event),
        )

    def spread(self, events: Tensor, tokens: Tensor) -> Tensor:
        """[P, ...], the input of a model: `events` [E, ...] and, at each token slot, its row of `tokens`.

        tokens: [`Split.tokens`, ...], for example learned vectors. Differentiable.
        """
        at = self.positions()
        # One lookup in a table of both kinds, because it is differentiable for both and needs no mask per kind.
        return torch.cat([tokens, events]).index_select(0, torch.where(at.token, at.index, len(tokens) + at.index))

    def map(self, function: Callable[[Tensor], Any]) -> "SplitSequence":
        """A copy with `function` applied to the lengths."""
        return replace(self, events=function(self.events))

    def record_stream(self, stream: torch.Stream) -> None:
        self.events.record_stream(stream)

    def _numbered(self, counts: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """int64 [total] each: the sample of every item and its number in the sample. counts: [B], items of a sample."""
        # With `output_size` repeat_interleave need not read the sum of the counts from the device.
        sample = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=total)
        return sample, torch.arange(total, device=counts.device) - (counts.cumsum(0) - counts)[sample]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """The P positions of a batch, sample after sample.

    Attributes:
        sample: int64. place: int64, position inside the sample, for position embeddings.
        segment: int64, its number inside the sample; for recent events the number of segments.
        recent, token: bool, whether the position is a recent event or a token; an event of a segment is neither.
        index: int64, of an event among the values of a field, of a token among the tokens of its segment.
    """

    sample: Tensor
    place: Tensor
    segment: Tensor
    recent: Tensor
    token: Tensor
    index: Tensor


def segment_mask(batch: Any, name: str) -> Tensor:
    """Attention mask, bool [B, L, L]: whether a position attends to a position of the last dimension. L: positions of
    the longest sample.

    An event of a segment attends to the events of its segment up to itself. A token attends to all events of its
    segment, and to all tokens up to itself. A recent event attends to all tokens, and to recent events up to itself.
    Padding after the end of a sample is masked. This is the definition, dense and quadratic in L: models have kernels
    for it.
    """
    split: SplitSequence = batch.split[name]
    at = split.positions()
    longest = int(split.lengths.max()) if len(split.lengths) else 0

    def padded(values: Tensor, fill: int) -> Tensor:
        out = values.new_full((len(split.lengths), longest), fill)
        out[at.sample, at.place] = values
        return out

    # Padding has segment -1 and is neither event, token nor recent: its rows and columns stay False.
    segment, token, recent = padded(at.segment, -1), padded(at.token, 0), padded(at.recent, 0)
    event = (segment >= 0) & ~token & ~recent
    same_segment = segment[:, :, None] == segment[:, None, :]
    attends = event[:, :, None] & event[:, None, :] & same_segment
    attends |= token[:, :, None] & ((event[:, None, :] & same_segment) | token[:, None, :])
    attends |= recent[:, :, None] & (recent | token)[:, None, :]
    # The rules above ignore order: all of them are limited to earlier positions and the position itself.
    place = torch.arange(longest, device=segment.device)
    return attends & (place[None, :] <= place[:, None])
