"""Stage III: every sample to the rank it was planned for, in one all-to-all of whole records.

Samples that stay are not copied: their table columns are passed on. The others are gathered from where they lie into
one send buffer, and the received buffer is addressed in place; the only other copy is the one into the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch

from fsdata.balance.exchange.alone import Alone
from fsdata.balance.exchange.record import RecordSpec
from fsdata.batch.host_memory import Reused
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_table import RowTable
from fsdata.errors import DataError
from fsdata.kernels.copy import gather_samples
from fsranks.control_group import ControlGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What one rank sends and receives (pure; letters as in exchange.py).

    Attributes:
        order: int64, own rows to send, by destination, then row.
        offset: int64, byte offset of each of them in the send buffer.
        sent, received: int64 [W], bytes to and from each rank; 0 for itself.
        origin: int64 [n, 2], home rank and row of every sample this rank has afterwards.
        sample: int64 [n], their positions in the global batch.
        record: int64 [n], byte offset of each record in the received buffer, -1 for own rows.
    """

    order: np.ndarray
    offset: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    origin: np.ndarray
    sample: np.ndarray
    record: np.ndarray


def route(rank: np.ndarray, counts: np.ndarray, record_bytes: np.ndarray, me: int) -> Route:
    """The part of rank `me` in moving N samples, `counts` [W] of them per home rank, to `rank` [N]."""
    world_size = len(counts)
    first = np.cumsum(counts) - counts
    home = np.repeat(np.arange(world_size), counts)
    mine = slice(int(first[me]), int(first[me] + counts[me]))
    order = np.argsort(rank[mine], kind="stable")
    order = order[rank[mine][order] != me]
    size = record_bytes[mine][order]
    sample = np.flatnonzero(rank == me)
    arriving = home[sample] != me
    arriving_bytes = np.where(arriving, record_bytes[sample], 0)
    return Route(
        order=order,
        offset=np.cumsum(size) - size,
        sent=_sum_by(rank[mine][order], size, world_size),
        received=_sum_by(home[sample], arriving_bytes, world_size),
        origin=np.stack([home[sample], sample - first[home[sample]]], axis=1),
        sample=sample,
        record=np.where(arriving, np.cumsum(arriving_bytes) - arriving_bytes, -1),
    )


class Transfer:
    """Moves records over one group; keeps its send buffer from step to step. For one thread."""

    def __init__(self, group: ControlGroup | Alone) -> None:
        self._group = group
        self._memory = Reused(Pool())
        self._send = torch.empty(0, dtype=torch.uint8)

    def move(
        self, table: RowTable | None, spec: RecordSpec, lengths: np.ndarray, counts: np.ndarray, rank: np.ndarray
    ) -> tuple[RowTable, np.ndarray]:
        """This rank's samples after the exchange, and their origin, int64 [n, 2].

        lengths: int64 [G, N] of the global batch; counts: int64 [W] before; rank: int64 [N].
        """
        way = route(rank, counts, spec.record_bytes(lengths), self._group.rank)
        received = self._memory.tensor(int(way.received.sum()), torch.uint8)
        sent = self._gather(table, spec, way)
        self._group.all_to_all(received, sent, way.received.tolist(), way.sent.tolist())
        length = spec.field_lengths(lengths[:, way.sample])
        address = spec.addresses(length, received.data_ptr() + way.record)
        owners: tuple[object, ...] = (received,)
        if table is not None:
            own = way.record < 0
            address[:, own] = table.address[:, way.origin[own, 1]]
            owners = (*table.owners, received)
        return RowTable(address, length, spec.itemsize, owners), way.origin

    def _gather(self, table: RowTable | None, spec: RecordSpec, way: Route) -> torch.Tensor:
        """The send buffer, filled; valid until the next call."""
        size = int(way.sent.sum())
        if size > len(self._send):
            self._send = torch.empty(size + size // 4, dtype=torch.uint8)
        if table is not None and size:
            target = self._send.data_ptr() + way.offset
            gather_samples(table.address, table.length, spec.sent, way.order, target)
        return self._send[:size]


def check_lengths(table: RowTable, spec: RecordSpec) -> np.ndarray:
    """The lengths of the groups, int64 [G, n]; DataError where a field disagrees with its group.

    Records are laid out by group lengths: writing a longer field would run into the next record.
    """
    lengths = spec.group_lengths(table.length)
    wrong = spec.field_lengths(lengths) != table.length
    if wrong.any():
        field, row = (int(index[0]) for index in np.nonzero(wrong))
        raise DataError(
            f"field {spec.names[field]!r} of row {row} has {table.length[field, row]} elements, its group or width "
            f"asks for {spec.field_lengths(lengths)[field, row]}: all fields of a group must have the same lengths"
        )
    return lengths


def _sum_by(key: np.ndarray, value: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.int64)
    np.add.at(out, key, value)
    return out
