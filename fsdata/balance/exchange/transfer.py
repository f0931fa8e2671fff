"""Stage III of `step_exchange`: sends every sample to its planned rank, in one all-to-all.

Samples that stay are not copied: their references are passed on. The others are gathered into one send buffer, for
each rank field after field. The received buffer becomes a block with one run of values per field and sender; the only
other copy is the one into the batch.
"""

from collections.abc import Callable

import numpy as np
import torch

from fsdata.balance.exchange.route import RecordSpec, Route
from fsdata.batch.host_memory import PooledMemory
from fsdata.decode.block import Block, Column, RowRefs, Spans, concat
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import DataError
from fsdata.kernels import runs
from fsranks.control_group import AnyGroup

RowsOf = Callable[[list[Column], int], RowRefs]
"""(columns of the fields, number of rows) -> the rows; adds the columns of fields whose values do not travel."""


class Transfer:
    """Moves samples over one group; reuses its send buffer in every step. For one thread."""

    def __init__(self, group: AnyGroup) -> None:
        self._group = group
        self._memory = PooledMemory(Pool())
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
        route = Route.of(spec, lengths, counts, rank, self._group.rank)
        # Not reused by the next step: the rows point into it. The pool gets it back when their block is dropped.
        received = self._memory.tensor(int(route.incoming.bytes.sum()), torch.uint8)
        sent = self._gather(spans, spec, route)
        self._group.all_to_all(received, sent, route.incoming.bytes.tolist(), route.outgoing.bytes.tolist())
        incoming = (rows_of or _rows)(_columns(spec, route, received), len(route.sender))
        return concat([rows.take(route.stay), incoming]).take(route.position), route.origin

    def _gather(self, spans: Spans, spec: RecordSpec, route: Route) -> torch.Tensor:
        """The send buffer, filled; valid until the next call."""
        size = int(route.outgoing.bytes.sum())
        if size > len(self._send):
            self._send = torch.empty(size + size // 4, dtype=torch.uint8)  # a quarter more: sizes differ by step
        if size:
            # Address 0: the values of this field do not travel, and gather_each skips it.
            target = np.where(spec.sent[:, None] > 0, self._send.data_ptr() + route.outgoing.value, 0)
            spans.gather_each(spec.itemsize, route.order, target)
        return self._send[:size]


def _rows(columns: list[Column], rows: int) -> RowRefs:
    return RowRefs.of(Block.of(columns, rows))


def _columns(spec: RecordSpec, route: Route, buffer: torch.Tensor) -> list[Column]:
    """The fields of the incoming samples, as columns of `buffer`. Addresses of fields that do not travel are unused."""
    senders = np.unique(route.sender)
    first = np.append(np.searchsorted(route.sender, senders), len(route.sender))
    before = np.concatenate([np.zeros((len(route.length), 1), np.int64), np.cumsum(route.length, axis=1)], axis=1)
    columns = []
    for slot, (group, width) in enumerate(zip(spec.group.tolist(), spec.width.tolist(), strict=True)):
        table = np.zeros((len(senders) + 1, runs.COLUMNS), np.int64)
        table[:, runs.FIRST] = first * width if group < 0 else before[group, first]
        table[:, runs.FORM] = runs.FINAL
        table[:-1, runs.AT] = buffer.data_ptr() + route.incoming.part[senders, slot]
        if group < 0:
            columns.append(Column(table, step=width, width=width, owners=(buffer,)))
        else:
            columns.append(Column(table, before[group, :-1], route.length[group], owners=(buffer,)))
    return columns


def check_lengths(spans: Spans, spec: RecordSpec) -> np.ndarray:
    """The lengths of the groups, int64 [G, n]; DataError where a field disagrees with its group.

    The receiver only has the lengths of groups: a longer field would overwrite the values of the next one.
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
