"""Sequences whose events a batch holds once for all samples that see them, and how each sample gets its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsdata.kernels.ranges import add_ranges, copy_ranges


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
