"""Stage III: every sample to the rank it was planned for, in one all-to-all.

Samples that stay are not copied: their references are passed on. The others are gathered from where they lie into one
send buffer, for each rank field after field. What arrives is a block, with one run of values per field and sender; the
only other copy is the one into the batch.

Letters: F fields, G groups of fields that share lengths, N samples of the global batch, n of one rank, W ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fsdata.balance.exchange.alone import Alone
from fsdata.balance.exchange.record import RecordSpec
from fsdata.batch.host_memory import Reused
from fsdata.decode.block import Block, Column, Rows, Spans, concat
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import DataError
from fsdata.kernels.columns import gather_samples
from fsdata.kernels.pages import runs
from fsranks.control_group import ControlGroup

Receive = Callable[[list[Column], int], Rows]
"""(columns of the fields, how many rows) -> the rows; completes those whose values do not travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Where the values of M samples lie in a buffer: of one rank after those of another, field after field (pure).

    Attributes:
        bytes: int64 [W], of every rank.
        part: int64 [W, F], where the values of a rank's field begin; a multiple of 8.
        value: int64 [F, M], where those of each sample begin.
    """

    bytes: np.ndarray
    part: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, rank: np.ndarray, length: np.ndarray, itemsize: np.ndarray, world_size: int) -> "Parcel":
        """rank: int64 [M], ascending; length: int64 [F, M]; itemsize: int64 [F], bytes of a value."""
        size = length * itemsize[:, None]
        before = np.concatenate([np.zeros((len(itemsize), 1), np.int64), np.cumsum(size, axis=1)], axis=1)
        bounds = np.searchsorted(rank, np.arange(world_size + 1))
        parts = (np.diff(before[:, bounds], axis=1).T + 7) & ~7
        part = (np.cumsum(parts.ravel()) - parts.ravel()).reshape(parts.shape)
        value = part.T[:, rank] + before[:, :-1] - before[:, bounds[rank]]
        return cls(bytes=parts.sum(axis=1), part=part, value=value)


class Transfer:
    """Moves samples over one group; keeps its send buffer from step to step. For one thread."""

    def __init__(self, group: ControlGroup | Alone) -> None:
        self._group = group
        self._memory = Reused(Pool())
        self._send = torch.empty(0, dtype=torch.uint8)

    def move(
        self,
        rows: Rows,
        spans: Spans,
        spec: RecordSpec,
        lengths: np.ndarray,
        counts: np.ndarray,
        rank: np.ndarray,
        receive: Receive | None = None,
    ) -> tuple[Rows, np.ndarray]:
        """This rank's samples after the exchange, in order of home rank and row, and their origin, int64 [n, 2].

        rows, spans: its samples before. lengths: int64 [G, N] of the global batch; counts: int64 [W] before; rank:
        int64 [N].
        """
        me, world_size = self._group.rank, len(counts)
        first = np.cumsum(counts) - counts
        home = np.repeat(np.arange(world_size), counts)
        mine = rank[first[me] : first[me] + counts[me]]
        order = np.argsort(mine, kind="stable")
        order = order[mine[order] != me]
        away = Parcel.of(mine[order], spans.length[:, order], spec.sent, world_size)
        sample = np.flatnonzero(rank == me)
        arriving = sample[home[sample] != me]
        length = lengths[:, arriving]
        here = Parcel.of(home[arriving], spec.field_lengths(length), spec.sent, world_size)
        received = self._memory.tensor(int(here.bytes.sum()), torch.uint8)
        sent = self._gather(spans, spec, order, away)
        self._group.all_to_all(received, sent, here.bytes.tolist(), away.bytes.tolist())
        columns = _columns(spec, length, home[arriving], here, received)
        come = (receive or _rows)(columns, len(arriving))
        origin = np.stack([home[sample], sample - first[home[sample]]], axis=1)
        stay = origin[origin[:, 0] == me, 1]
        place = np.empty(len(sample), np.int64)
        place[home[sample] == me] = np.arange(len(stay))
        place[home[sample] != me] = len(stay) + np.arange(len(arriving))
        return concat([rows.take(stay), come]).take(place), origin

    def _gather(self, spans: Spans, spec: RecordSpec, order: np.ndarray, away: Parcel) -> torch.Tensor:
        """The send buffer, filled; valid until the next call."""
        size = int(away.bytes.sum())
        if size > len(self._send):
            self._send = torch.empty(size + size // 4, dtype=torch.uint8)
        if size:
            target = np.where(spec.sent[:, None] > 0, self._send.data_ptr() + away.value, 0)
            gather_samples(spans.columns, spans.block, spans.start, spans.length, spec.itemsize, order, target)
        return self._send[:size]


def _rows(columns: list[Column], rows: int) -> Rows:
    return Rows.of(Block.of(columns, rows))


def _columns(
    spec: RecordSpec, length: np.ndarray, sender: np.ndarray, parcel: Parcel, buffer: torch.Tensor
) -> list[Column]:
    """The fields of received samples. length: int64 [G, M] of the groups; sender: int64 [M], ascending."""
    senders = np.unique(sender)
    first = np.append(np.searchsorted(sender, senders), len(sender))
    before = np.concatenate([np.zeros((len(length), 1), np.int64), np.cumsum(length, axis=1)], axis=1)
    found = []
    for slot, (group, width) in enumerate(zip(spec.group.tolist(), spec.width.tolist(), strict=True)):
        table = np.zeros((len(senders) + 1, runs.COLUMNS), np.int64)
        table[:, runs.FIRST] = first * width if group < 0 else before[group, first]
        table[:, runs.FORM] = runs.FINAL
        table[:-1, runs.AT] = buffer.data_ptr() + parcel.part[senders, slot]
        if group < 0:
            found.append(Column(table, step=width, width=width, owners=(buffer,)))
        else:
            found.append(Column(table, before[group, :-1], length[group], owners=(buffer,)))
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
