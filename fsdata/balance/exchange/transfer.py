"""Stage III of `step_exchange`: every sample to the rank it was planned for, in one all-to-all.

Samples that stay are not copied: their references are passed on. The others are gathered from where they lie into one
send buffer, for each rank field after field. What arrives is a block, with one run of values per field and sender; the
only other copy is the one into the batch.
"""

from collections.abc import Callable

import numpy as np
import torch

from fsdata.balance.exchange.route import RecordSpec, Route
from fsdata.batch.host_memory import Reused
from fsdata.decode.block import Block, Column, RowRefs, Spans, concat
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import DataError
from fsdata.kernels import runs
from fsranks.control_group import AnyGroup

RowsOf = Callable[[list[Column], int], RowRefs]
"""(columns of the fields, how many rows) -> the rows; completes those whose values do not travel."""


class Transfer:
    """Moves samples over one group; keeps its send buffer from step to step. For one thread."""

    def __init__(self, group: AnyGroup) -> None:
        self._group = group
        self._memory = Reused(Pool())
        self._send = torch.empty(0, dtype=torch.uint8)

    def move(
        self,
        rows: RowRefs,
        spans: Spans,
        spec: RecordSpec,
        lengths: np.ndarray,
        counts: np.ndarray,
        rank: np.ndarray,
        rows_of: RowsOf | None = None,
    ) -> tuple[RowRefs, np.ndarray]:
        """This rank's samples after the exchange, in order of home rank and row, and their origin, int64 [n, 2].

        rows, spans: its samples before. lengths: int64 [G, N] of the global batch; counts: int64 [W] before; rank:
        int64 [N].
        """
        way = Route.of(spec, lengths, counts, rank, self._group.rank)
        received = self._memory.tensor(int(way.here.bytes.sum()), torch.uint8)
        sent = self._gather(spans, spec, way)
        self._group.all_to_all(received, sent, way.here.bytes.tolist(), way.away.bytes.tolist())
        come = (rows_of or _rows)(_columns(spec, way, received), len(way.sender))
        return concat([rows.take(way.stay), come]).take(way.place), way.origin

    def _gather(self, spans: Spans, spec: RecordSpec, way: Route) -> torch.Tensor:
        """The send buffer, filled; valid until the next call."""
        size = int(way.away.bytes.sum())
        if size > len(self._send):
            self._send = torch.empty(size + size // 4, dtype=torch.uint8)
        if size:
            target = np.where(spec.sent[:, None] > 0, self._send.data_ptr() + way.away.value, 0)
            spans.gather_each(spec.itemsize, way.order, target)
        return self._send[:size]


def _rows(columns: list[Column], rows: int) -> RowRefs:
    return RowRefs.of(Block.of(columns, rows))


def _columns(spec: RecordSpec, way: Route, buffer: torch.Tensor) -> list[Column]:
    """The fields of the samples that arrive; nothing lies where values do not travel."""
    senders = np.unique(way.sender)
    first = np.append(np.searchsorted(way.sender, senders), len(way.sender))
    before = np.concatenate([np.zeros((len(way.length), 1), np.int64), np.cumsum(way.length, axis=1)], axis=1)
    found = []
    for slot, (group, width) in enumerate(zip(spec.group.tolist(), spec.width.tolist(), strict=True)):
        table = np.zeros((len(senders) + 1, runs.COLUMNS), np.int64)
        table[:, runs.FIRST] = first * width if group < 0 else before[group, first]
        table[:, runs.FORM] = runs.FINAL
        table[:-1, runs.AT] = buffer.data_ptr() + way.here.part[senders, slot]
        if group < 0:
            found.append(Column(table, step=width, width=width, owners=(buffer,)))
        else:
            found.append(Column(table, before[group, :-1], way.length[group], owners=(buffer,)))
    return found


def check_lengths(spans: Spans, spec: RecordSpec) -> np.ndarray:
    """The lengths of the groups, int64 [G, n]; DataError where a field disagrees with its group.

    The receiver knows the lengths of groups: values of a longer field would run into those of the next.
    """
    lengths = spec.group_lengths(spans.length)
    wrong = spec.field_lengths(lengths) != spans.length
    if wrong.any():
        field, row = (int(index[0]) for index in np.nonzero(wrong))
        raise DataError(
            f"field {spec.names[field]!r} of row {row} has {spans.length[field, row]} elements, its group or width "
            f"asks for {spec.field_lengths(lengths)[field, row]}: all fields of a group must have the same lengths"
        )
    return lengths
