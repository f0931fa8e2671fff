"""The plan of a group whose every id gets its row. A unit is a distinct row of a pair of ranks, and travels as a strip.

Numbers: ids of each feature of the owner in each part; words: ids.

A step may be computed in *parts*, consecutive samples of each rank. The wire order is that of the whole step, the local
output is that of one part after the other.

N ids, U units, R distinct rows of an owner, W peers, F features and T tables of an owner, k parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from fscomm.plan import kernels
from fscomm.plan.arrays import segments, starts_of, sums, take
from fscomm.plan.group_plan import Apply, AskedIds, Buckets, GroupPlan, Merge, Request, Served, Shared
from fscomm.plan.kernel_calls import KernelCall, equal_bags
from fscomm.plan.peer_ids import PeerIds, unit_classes_back
from fscomm.plan.shared_rows import OwnerRows, first_occurrences

_IDENTITY = np.empty(0, np.int64)
_ONE_PART = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds(PeerIds):
    """by_table: int64[S] units by peer, then by table."""

    by_table: np.ndarray


def row_ids(
    ids: np.ndarray, counts: np.ndarray, features: np.ndarray, runs: np.ndarray, tables: np.ndarray, parts: int
) -> RowIds:
    """Number the distinct rows of `ids`, int64[N] in wire order.

    counts: int64 ids by peer, then by feature, then by part. features, tables: int64[W] how many each peer has.
    runs: int64, by peer and table, how many features read the table.
    """
    found = first_occurrences(ids, sums(counts, runs * parts))
    # Ids of a feature are ordered by part, so parts follow from the counts.
    of_each = np.tile(np.arange(parts, dtype=np.min_scalar_type(parts)), len(counts) // parts)
    part_of = of_each.repeat(counts) if parts > 1 else _ONE_PART
    return RowIds(
        ids=ids,
        parts=parts,
        part_of=part_of,
        first_of=part_of,
        items=sums(counts, features * parts),
        positions=found.positions,
        slots=found.slots,
        units=sums(found.counts, tables),
        by_table=found.counts,
    )


class Mapped(NamedTuple):
    """What an owner makes of ids that are no rows yet: rows int64[N] in wire order; reassigned: [T] int64 the rows of
    each table that the forward of this step reassigns, asked for or not."""

    rows: np.ndarray
    reassigned: Sequence[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRows(Served):
    """With ids that were mapped, `ids.ids` are rows; two units of a pair may then be one row.

    Attributes:
        counts: int64[W, F] ids.
        numbers: int32[U] which of `rows` each unit is. reassigned: int32 which of them the forward reassigns.
        hosts: bool[U, H] which ranks of the requester's host ask for a row; None unless rows travel in two levels.
    """

    counts: np.ndarray
    numbers: np.ndarray
    reassigned: np.ndarray
    hosts: np.ndarray | None = None

    def distinct(self, rows: np.ndarray) -> np.ndarray:
        """Of `rows`, uint8[R] classes, those that are asked for: not all reassigned ones are."""
        return rows[np.unique(self.numbers)] if len(self.reassigned) else rows


class RowPlan(GroupPlan):
    def request(self, parts: Sequence[AskedIds]) -> Request:
        layout = self.layout
        ids, counts, from_wire = _whole_step(parts) if len(parts) > 1 else _one_part(*parts)
        local = _IDENTITY
        if from_wire is not None:
            local = np.empty(len(ids), np.int64)
            local[from_wire] = np.arange(len(ids))
        return Request(
            ids=self._number(ids, counts, layout.features, layout.flat_runs, layout.tables, len(parts)),
            counts=counts,
            local=local,
            ends=np.cumsum([len(part.ids) for part in parts]).tolist(),
        )

    def _number(
        self,
        ids: np.ndarray,
        counts: np.ndarray,
        features: np.ndarray,
        runs: np.ndarray,
        tables: np.ndarray,
        parts: int,
    ) -> RowIds:
        """See `row_ids`. counts: by peer and feature, `counts_of(parts)` of each."""
        return row_ids(ids, counts, features, runs, tables, parts)

    def counts_of(self, parts: int) -> int:
        """In how many counts the ids of a feature are sent."""
        return parts

    def numbers_to(self, parts: int) -> np.ndarray:
        return self.layout.features * self.counts_of(parts)

    def numbers(self, request: Request) -> np.ndarray:
        return request.counts

    def words(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        return request.ids.ids, request.ids.items

    def words_from(self, numbers: np.ndarray, parts: int) -> np.ndarray:
        del parts
        return numbers.sum(1)

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int, mapped: Mapped | None = None) -> ServedRows:
        world_size, mine = self.layout.world_size, np.array(self.layout.runs[self.layout.rank], np.int64)
        features, tables = (np.full(world_size, of_one, np.int64) for of_one in (mine.sum(), len(mine)))
        found = self._number(words, numbers.ravel(), features, np.tile(mine, world_size), tables, parts)
        # Rows are numbered from units, not from ids: a popular row is hashed once for each rank that wants it.
        by_table = found.by_table.reshape(world_size, len(mine))
        if mapped is not None:
            found = replace(found, ids=mapped.rows)
        asked, units = take(found.ids, found.positions), len(found.positions)
        # Units are distinguished by id. A map may give an id two rows; such an id has no single row to send.
        two_rows = mapped is not None and not np.array_equal(asked[found.slots], found.ids)
        if mapped is not None:
            asked = np.concatenate([asked, *mapped.reassigned])
            by_table = np.vstack([by_table, [len(of_table) for of_table in mapped.reassigned]])
        rows = OwnerRows(asked, by_table, np.array(self.layout.rows, np.int64))
        return ServedRows(
            ids=found,
            counts=numbers if parts == 1 else numbers.reshape(world_size, mine.sum(), self.counts_of(parts)).sum(2),
            rows=rows,
            irregular=rows.irregular or two_rows,
            numbers=rows.numbers[:units],
            reassigned=rows.numbers[units:],
        )

    def needed_later(self, served: ServedRows) -> np.ndarray:
        later = np.full(len(served.rows), served.ids.parts > 1, np.uint8)
        if served.ids.parts > 1:
            later[served.numbers[served.ids.slots[served.ids.first_of == 0]]] = 0
        return later

    def units(self, served: ServedRows, rows: np.ndarray) -> np.ndarray:
        return take(rows, served.numbers)

    def colliding(self, served: ServedRows, rows: np.ndarray) -> int:
        return int(np.count_nonzero(take(take(rows, served.numbers), served.ids.slots) == 0))

    def lookups(self, served: ServedRows, shared: Shared, sent: Buckets) -> list[tuple[KernelCall, torch.Tensor]]:
        return self._read(served.rows, sent.in_place_order(served.numbers), sent)

    def _read(self, rows: OwnerRows, numbers: np.ndarray, sent: Buckets) -> list[tuple[KernelCall, torch.Tensor]]:
        """numbers: int32[n] of the row in each place. All rows of a table are read once, whichever of its features
        asked for them."""
        ids, index = np.empty(len(numbers) + 1, np.int64), np.empty(len(numbers), np.int64)
        ends = np.zeros((len(sent.counts), len(rows.ends) + 1), np.int64)
        read = np.zeros(len(rows), np.int32)
        kernels.rows_to_read(numbers, sent.starts, rows.ids, rows.ends, read, ids, index, ends)
        last = np.cumsum(ends[:, -1])
        of_classes = np.split(ids[: last[-1]], last[:-1])
        return [
            (KernelCall(ids=torch.from_numpy(of_class), bags=equal_bags(self.layout, of_tables)), which)
            for of_class, of_tables, which in zip(of_classes, ends, sent.by_class(index), strict=True)
        ]

    def merge(self, request: Request, asked: Buckets) -> Merge:
        return self._merge(request, asked.places, int(asked.starts[-1]))

    def _merge(self, request: Request, places: np.ndarray, strips: int) -> Merge:
        """places: int32[U] of the units in a buffer of so many strips."""
        index = take(places, request.ids.slots).astype(np.int64)
        if len(request.local):
            wired, index = index, np.empty_like(index)
            kernels.put(request.local, wired, index)
        return Merge(index=torch.from_numpy(index), ends=request.ends, strips=strips)

    def applies(self, served: ServedRows, shared: Shared, received: Buckets) -> list[Apply]:
        ids, layout = served.ids, self.layout
        # Gradients are not added up here: the fused kernel does that, in the order in which TorchRec would give them.
        ends = np.zeros((unit_classes_back(ids.parts) + 1, served.counts.shape[1] + 1), np.int64)
        index, rows = (np.empty(len(ids.ids), np.int64) for _ in range(2))
        classes = take(shared.units, ids.slots)
        kernels.updates(ids.ids, received.places, classes, served.counts, index, rows, ends)
        of_tables = np.take(ends, np.cumsum([0, *layout.runs[layout.rank]]), axis=1)  # without gaps, for kernels
        starts = np.cumsum(ends[:, -1])[:-1]
        return [
            Apply(
                call=KernelCall(ids=torch.from_numpy(of_class), bags=equal_bags(layout, of_class_ends)),
                index=torch.from_numpy(which),
            )
            for which, of_class, of_class_ends in zip(
                np.split(index, starts), np.split(rows, starts), of_tables, strict=True
            )
        ]


def _one_part(part: AskedIds) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    from_wire = None if part.from_wire is None else part.from_wire.numpy()
    return part.ids.numpy(), np.asarray(part.counts, np.int64), from_wire


def _whole_step(parts: Sequence[AskedIds]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids int64[N] in wire order; counts as in `Request`; from_wire."""
    counts = np.array([part.counts for part in parts], np.int64)  # [k, features of all owners]
    before = starts_of(np.array([len(part.ids) for part in parts]))
    given = (np.cumsum(counts, axis=1) - counts + before[:, None]).T  # where each part of each feature is now
    ids = segments(np.concatenate([part.ids.numpy() for part in parts]), given, counts.T)
    to_wire = starts_of(counts.T.ravel()).reshape(counts.T.shape).T  # and where in the wire order
    wire_of = (to_wire.ravel() - starts_of(counts.ravel())).repeat(counts.ravel()) + np.arange(len(ids))
    local = [
        of_part if part.from_wire is None else of_part[part.from_wire.numpy()]
        for part, of_part in zip(parts, np.split(wire_of, before[1:]), strict=True)
    ]
    return ids, np.ascontiguousarray(counts.T).ravel(), np.concatenate(local)


def outputs(request: Request, of_units: np.ndarray) -> np.ndarray:
    """[N] of each local output what is given for its unit, [U]."""
    wired = of_units[request.ids.slots]
    if not len(request.local):
        return wired
    local = np.empty_like(wired)
    local[request.local] = wired
    return local
