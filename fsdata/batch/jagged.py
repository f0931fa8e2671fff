"""Lists of different length in one tensor; sequences that samples share, or that stand in parts.

The events of a `Shared` sequence stand in a batch once for all samples that see them; `expand` gives each sample its
own. A `SplitSequence` has recent events as they are and older ones in segments, each followed by token slots: so
attention is no longer quadratic in the whole length. Events of a segment see their segment, its tokens sum it up, and
recent events see the tokens in place of the older events. Source: PerSRec, arXiv 2601.03479.

Letters: B samples, E events, S segments and P positions of all samples. A position holds an event or a token.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdata.batch.windows import Windows
from fsdata.kernels.ranges import add_ranges, copy_ranges
from fsdata.schema import Split


@dataclass(frozen=True, slots=True)
class Jagged:
    """N rows of different length, one after another.

    Attributes:
        values: [sum of lengths, ...].
        offsets: int64 [N + 1], offsets[0] == 0 and offsets[-1] == len(values).
    """

    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def from_lengths(cls, values: torch.Tensor, lengths: torch.Tensor) -> "Jagged":
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
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
    """Where the B samples of a batch find their events in a sequence with `Sequence(share=...)`.

    Attributes:
        row: int64 [B], the row of the sequence's fields that holds the sample's events, among those of others.
        start: int64 [B], where they begin in that row. length: int64 [B], how many they are.
        offset: int64 [B], where they begin in the values of one field, all rows together.
        rows: M, how many rows hold events; the others are empty.
        total: events of all samples, the sum of `length`; held: those of all rows, at most as many. Known on the host.
    """

    row: Tensor
    start: Tensor
    length: Tensor
    offset: Tensor
    rows: int
    total: int
    held: int

    @classmethod
    def of(cls, windows: Windows, tensor_of: Callable[[np.ndarray], Tensor]) -> "Shared":
        """Of B samples and M merged windows; `tensor_of` says where the tensors lie."""
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
        """Events that are not looked up again: of each, a field saves 8 bytes of ids, a row and its gradient."""
        return self.total - self.held

    def map(self, function: Callable[[Tensor], Any]) -> "Shared":
        """The same with `function` of every tensor."""
        tensors = {name: function(getattr(self, name)) for name in ("row", "start", "length", "offset")}
        return Shared(**tensors, rows=self.rows, total=self.total, held=self.held)

    def record_stream(self, stream: torch.Stream) -> None:
        for each in (self.row, self.start, self.length, self.offset):
            each.record_stream(stream)


def expand(values: Tensor, shared: Shared) -> Tensor:
    """The events of every sample, one sample after another: [sum of lengths, ...] from values of merged rows [T, ...].

    `values` are those of one field of the sequence, or what was looked up for them (embeddings), as they stand in
    `batch.features[field].values()`; `batch.shared[sequence].length` are the lengths of the result. Differentiable: the
    gradient of an event is the sum of those of the samples that see it, added in the order of the samples, so that it
    is the same in every run. On CUDA it does not synchronise.

    Raises:
        ValueError: values on another device than `shared`, or none where samples have events.
    """
    if values.device != shared.offset.device:
        raise ValueError(f"values are on {values.device}, shared is on {shared.offset.device}: move one of them")
    if values.dim() == 0 or (shared.total and not len(values)):
        raise ValueError(f"values of shape {list(values.shape)} for {shared.total} events: the events come first")
    expanded: Tensor = _Expand.apply(values, shared)
    return expanded


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shared: Shared) -> Tensor:
        ctx.shared, ctx.shape = shared, values.shape
        target = values.new_empty((shared.total, *values.shape[1:]))
        copy_ranges(values.detach().contiguous(), target, shared.offset, _places(shared), shared.length)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shared: Shared = ctx.shared
        target = gradient.new_zeros(ctx.shape)
        ways = (_places(shared), shared.offset, shared.length)
        add_ranges(gradient.contiguous(), target, *ways, shared.row, shared.rows)
        return target, None


def _places(shared: Shared) -> Tensor:
    return shared.length.cumsum(0) - shared.length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitSequence:
    """How the events of a sequence with `Sequence(split=...)` stand in the samples of a batch.

    The batch holds events only; this says where they and the tokens stand. All but the first two attributes are made
    when they are asked for, on the device of `events`, without synchronising.

    Attributes:
        events: int64 [B], events of each sample; with `share`, after `expand`.
        options: as the schema says.
        total_events, total_segments: E and S, known on the host.
    """

    events: Tensor
    options: Split
    total_events: int
    total_segments: int

    @classmethod
    def of(cls, events: Tensor, options: Split) -> "SplitSequence":
        """Of these lengths, int64 [B], in host memory."""
        lengths = events.numpy()  # for a few numbers it takes a tenth of the time of torch
        segments = -(-np.maximum(lengths - options.recent, 0) // options.segment)
        return cls(events=events, options=options, total_events=int(lengths.sum()), total_segments=int(segments.sum()))

    @property
    def older(self) -> Tensor:
        """int64 [B], events that stand in segments."""
        return (self.events - self.options.recent).clamp(min=0)

    @property
    def segments(self) -> Tensor:
        """int64 [B], how many."""
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
        """int64 [B + 1], where the positions of each sample begin."""
        return torch.cat([self.events.new_zeros(1), self.lengths.cumsum(0)])

    @property
    def segment_lengths(self) -> Tensor:
        """int64 [S], events of each segment, sample after sample. Only the last of a sample may be short."""
        sample, number = self._numbered(self.segments, self.total_segments)
        return (self.older[sample] - number * self.options.segment).clamp(max=self.options.segment)

    @property
    def segment_offsets(self) -> Tensor:
        """int64 [S], the position at which each segment begins, counted over all samples."""
        sample, number = self._numbered(self.segments, self.total_segments)
        return self.offsets[sample] + number * (self.options.segment + self.options.tokens)

    def positions(self) -> "Positions":
        """What stands at each of the P positions."""
        options, older, segments = self.options, self.older, self.segments
        sample, place = self._numbered(self.lengths, self.total)
        of_segments = (older + segments * options.tokens)[sample]
        recent = place >= of_segments
        segment = torch.minimum(place // (options.segment + options.tokens), (segments[sample] - 1).clamp(min=0))
        inside = place - segment * (options.segment + options.tokens)
        events = (older[sample] - segment * options.segment).clamp(max=options.segment)
        token = ~recent & (inside >= events)
        event = torch.where(recent, older[sample] + place - of_segments, segment * options.segment + inside)
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
        """[P, ...], what a model computes on: `events` [E, ...] and, at each token slot, its row of `tokens`.

        tokens: [`Split.tokens`, ...], learned vectors, say. Differentiable.
        """
        at = self.positions()
        return torch.cat([tokens, events]).index_select(0, torch.where(at.token, at.index, len(tokens) + at.index))

    def map(self, function: Callable[[Tensor], Any]) -> "SplitSequence":
        """The same with `function` of the lengths."""
        return replace(self, events=function(self.events))

    def record_stream(self, stream: torch.Stream) -> None:
        self.events.record_stream(stream)

    def _numbered(self, counts: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """int64 [total] each: the sample of every one of `counts` [B] things, and its number in the sample."""
        sample = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=total)
        return sample, torch.arange(total, device=counts.device) - (counts.cumsum(0) - counts)[sample]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """The P positions of a batch, sample after sample.

    Attributes:
        sample: int64, of each. place: int64, inside the sample, for position embeddings.
        segment: int64, inside the sample; for recent events the number of segments.
        recent, token: bool, what stands there; an event of a segment is neither.
        index: int64, of an event among the values of a field, of a token among the tokens of its segment.
    """

    sample: Tensor
    place: Tensor
    segment: Tensor
    recent: Tensor
    token: Tensor
    index: Tensor


def segment_mask(batch: Any, name: str) -> Tensor:
    """bool [B, L, L], which position (last dimension) each position sees; L: positions of the longest sample.

    An event of a segment sees the events of its segment up to itself. A token sees all events of its segment, and all
    tokens up to itself. A recent event sees all tokens, and recent events up to itself. Beyond the end of a sample
    nothing sees or is seen. This is the definition, dense and quadratic in L: models have kernels for it.
    """
    split: SplitSequence = batch.split[name]
    at = split.positions()
    longest = int(split.lengths.max()) if len(split.lengths) else 0

    def padded(values: Tensor, fill: int) -> Tensor:
        out = values.new_full((len(split.lengths), longest), fill)
        out[at.sample, at.place] = values
        return out

    segment, token, recent = padded(at.segment, -1), padded(at.token, 0), padded(at.recent, 0)
    event = (segment >= 0) & ~token & ~recent
    same = segment[:, :, None] == segment[:, None, :]
    sees = event[:, :, None] & event[:, None, :] & same
    sees |= token[:, :, None] & ((event[:, None, :] & same) | token[:, None, :])
    sees |= recent[:, :, None] & (recent | token)[:, None, :]
    place = torch.arange(longest, device=segment.device)
    return sees & (place[None, :] <= place[:, None])
