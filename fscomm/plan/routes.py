"""What travels where, where every id gets its row: from ids and masks to index tensors.

Every id *occurrence* of a rank has a place in the *wire order*: by peer, then by feature, then by sample. Among the ids
of one pair of ranks a row counts once: both ranks see the same ids, and number these *distinct rows* alike, by first
occurrence. In the forward distinct rows travel. In backward the gradient of every occurrence travels, because to add
gradients up before they travel would change the order of additions.

A row is *shared* by a step and the next one if some rank uses it in the one and some rank in the other; all other rows
are exclusive. One row lies on one owner, so all its occurrences from all ranks are in one class, and an update of a
class is complete for each of its rows.

A step may be computed in *parts*, consecutive samples of each rank. The wire order is that of the whole step, the local
output is that of one part after the other. Of a shared row, the first part of a requester that asks for it says when
it travels; its gradients travel part by part.

Everything is in host memory, and every pass over ids is a kernel of `fscomm/plan/wire_kernels.py`.
N occurrences, U distinct rows of pairs of ranks, R distinct rows of an owner, W peers, F features and T tables of an
owner, D columns, k parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import OwnerRows, first_occurrences
from fscomm.plan.ways import (
    Apply,
    Back,
    Cut,
    Fetch,
    Lookup,
    Merge,
    RowsAhead,
    Shared,
    Told,
    classes_back,
    count,
    cut,
    equal_bags,
    go_back,
    pieces_back,
    pieces_of,
    pieces_of_gradients,
    segments,
    starts_of,
    sums,
    take,
)

_IN_WIRE_ORDER = np.empty(0, np.int64)
_ONE_PART = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The ids between this rank and its peers, in wire order.

    Attributes:
        ids: int64[N].
        parts: k of the step. part_of: uint8[N] the part of each occurrence; empty if there is one.
        occurrences: int64[W] by peer.
        positions: int32[U] where each distinct row occurs first.
        slots: int32[N] the distinct row of each occurrence.
        rows: int64[W] distinct rows by peer. by_table: int64[S] by peer, then by table.
    """

    ids: np.ndarray
    parts: int
    part_of: np.ndarray
    occurrences: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    rows: np.ndarray
    by_table: np.ndarray

    def pieces_ahead(self, classes: np.ndarray) -> np.ndarray:
        """uint8[U] the piece in which each distinct row travels before the step; classes: uint8[U], 0 or 1."""
        if self.parts == 1:
            return classes
        first = np.full(len(classes), self.parts, np.uint8)
        wire_kernels.first_parts(self.slots, self.part_of, first)
        first[classes > 0] = self.parts
        return first

    def pieces_back(self, classes: np.ndarray) -> np.ndarray:
        """uint8[N] the piece in which the gradient of each occurrence travels after the step; classes: uint8[U]."""
        return pieces_of_gradients(take(classes, self.slots), self.part_of, self.parts)


def wire(
    ids: np.ndarray, counts: np.ndarray, features: np.ndarray, runs: np.ndarray, tables: np.ndarray, parts: int
) -> Wire:
    """Number the distinct rows of `ids`.

    counts: int64 occurrences by peer, then by feature, then by part. features, tables: int64[W] how many each peer has.
    runs: int64, by peer and table, how many features read the table.
    """
    found = first_occurrences(ids, sums(counts, runs * parts))
    of_each = np.tile(np.arange(parts, dtype=np.uint8), len(counts) // parts)
    return Wire(
        ids=ids,
        parts=parts,
        part_of=of_each.repeat(counts) if parts > 1 else _ONE_PART,
        occurrences=sums(counts, features * parts),
        positions=found.positions,
        slots=found.slots,
        rows=sums(found.counts, tables),
        by_table=found.counts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What this rank asks of the owners in one step.

    Attributes:
        wire: peers are the owners.
        counts: int64 occurrences by owner, then by its feature, then by part.
        from_wire: int64[N], or empty for the identity: local output i is occurrence from_wire[i].
        ends: [k] where the local output of each part ends.
    """

    wire: Wire
    counts: np.ndarray
    from_wire: np.ndarray
    ends: list[int]

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct rows by owner."""
        return self.wire.rows

    def outputs(self, of_units: np.ndarray) -> np.ndarray:
        """[N] of each local output what is given for each distinct row, [U]."""
        wired = of_units[self.wire.slots]
        return wired[self.from_wire] if len(self.from_wire) else wired

    def merge(self, places: np.ndarray, starts: list[int]) -> Merge:
        """places: int32[U] of the distinct rows in the buffer; starts: [P + 2] of pieces there."""
        index = np.empty(len(self.wire.slots), np.int64)
        wire_kernels.merged(places, self.wire.slots, self.from_wire, index)
        return Merge(starts=starts, index=torch.from_numpy(index), ends=self.ends)


class Part(NamedTuple):
    """What a rank asks for in one part of a step: ids int64[n] in the wire order of the part; counts int64 by owner and
    feature; from_wire int[n] where the local output of the part is in that order, None for the identity."""

    ids: torch.Tensor
    counts: Sequence[int]
    from_wire: torch.Tensor | None


def request(parts: Sequence[Part], layout: GroupLayout) -> Request:
    ids, counts, from_wire, ends = _one_step(parts) if len(parts) > 1 else _one_part(*parts)
    return Request(
        wire=wire(ids, counts, layout.features, layout.flat_runs, layout.tables, len(parts)),
        counts=counts,
        from_wire=from_wire,
        ends=ends,
    )


def _one_part(part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    from_wire = _IN_WIRE_ORDER if part.from_wire is None else part.from_wire.long().numpy()
    return part.ids.numpy(), np.asarray(part.counts, np.int64), from_wire, [len(part.ids)]


def _one_step(parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """ids int64[N] in wire order, counts as in `Request`, from_wire, and the ends of parts."""
    counts = np.array([part.counts for part in parts], np.int64)  # [k, features of all owners]
    lengths = np.array([len(part.ids) for part in parts])
    before = starts_of(lengths)
    given = (np.cumsum(counts, axis=1) - counts + before[:, None]).T  # where each part of each feature is now
    ids = segments(np.concatenate([part.ids.numpy() for part in parts]), given, counts.T)
    to_wire = starts_of(counts.T.ravel()).reshape(counts.T.shape).T  # and where in the wire order
    wire_of = (to_wire.ravel() - starts_of(counts.ravel())).repeat(counts.ravel()) + np.arange(len(ids))
    places = np.split(wire_of, before[1:])
    local = [
        of_part if part.from_wire is None else of_part[part.from_wire.numpy()]
        for part, of_part in zip(parts, places, strict=True)
    ]
    return ids, np.ascontiguousarray(counts.T).ravel(), np.concatenate(local), np.cumsum(lengths).tolist()


class Mapped(NamedTuple):
    """What a group behind managed collision makes of the ids that came: rows int64[N] in wire order; evicted: [T] int64
    the rows of each table that belong to another id from this step on, asked for or not."""

    rows: np.ndarray
    evicted: Sequence[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the ranks ask of this owner in one step.

    Attributes:
        wire: peers are the requesters. Behind managed collision, `wire.ids` are what the ids were mapped to; two
            distinct rows of a pair may then be one row.
        counts: int64[W, F] occurrences.
        rows: all distinct rows that are asked for, or evicted.
        numbers: int32[U] which of `rows` each distinct row of a pair is. evicted: int32 which were evicted.
        two_rows: some id is mapped to several rows.
        asking: bool[U, H] which ranks of the requester's host ask for a row; None unless rows go in two levels.
    """

    wire: Wire
    counts: np.ndarray
    rows: OwnerRows
    numbers: np.ndarray
    evicted: np.ndarray
    two_rows: bool = False
    asking: np.ndarray | None = None

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct rows by requester."""
        return self.wire.rows

    @property
    def irregular(self) -> bool:
        """An id lies outside its table, or is mapped to two rows of it: what ids are told apart by is the id."""
        return self.rows.irregular or self.two_rows

    @property
    def parts(self) -> int:
        return self.wire.parts

    @property
    def in_later_parts(self) -> np.ndarray:
        """uint8[R] 1 for rows that no rank asks for in the first part of the step."""
        later = np.full(len(self.rows), self.parts > 1, np.uint8)
        if self.parts > 1:
            later[self.numbers[self.wire.slots[self.wire.part_of == 0]]] = 0
        return later


def by_feature(words: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """From wire order to the order of an owner's look-up: by feature, inside a feature by peer. counts: int64[W, F]."""
    starts = starts_of(counts.ravel()).reshape(counts.shape)
    return segments(words, np.ascontiguousarray(starts.T), np.ascontiguousarray(counts.T))


def by_peer(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The inverse of `by_feature`."""
    starts = starts_of(counts.T.ravel()).reshape(counts.T.shape)
    return segments(rows, np.ascontiguousarray(starts.T), counts)


class RowPlan:
    """Of a group whose every id gets its row. Numbers: ids of each feature of the owner in each part; words: ids.

    Numbers and words for owners, and from requesters, stand by rank.
    """

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout

    def numbers_to(self, parts: int) -> np.ndarray:
        """int64[W] how many numbers every requester tells each owner, of a step in so many parts."""
        return self.layout.features * parts

    def numbers(self, request: Request) -> np.ndarray:
        """int64, those of `request`."""
        return request.counts

    def words(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """int64 words: what the owners have to know of `request`; int64[W] how many go to each."""
        return request.wire.ids, request.wire.occurrences

    def words_of(self, numbers: np.ndarray, parts: int) -> np.ndarray:
        """int64[W] how many words come from requesters that told `numbers`, int64[W, n], of a step in so many parts."""
        del parts
        return numbers.sum(1)

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int, mapped: Mapped | None = None) -> Served:
        """What the ranks ask of this owner, from what they sent. mapped: of a group behind managed collision."""
        world_size, mine = self.layout.world_size, np.array(self.layout.runs[self.layout.rank], np.int64)
        features, tables = (np.full(world_size, of_one, np.int64) for of_one in (mine.sum(), len(mine)))
        found = wire(words, numbers.ravel(), features, np.tile(mine, world_size), tables, parts)
        by_table = found.by_table.reshape(world_size, len(mine))
        if mapped is not None:
            found = replace(found, ids=mapped.rows)
        asked, units = take(found.ids, found.positions), len(found.positions)
        two_rows = mapped is not None and not np.array_equal(asked[found.slots], found.ids)
        if mapped is not None:
            asked = np.concatenate([asked, *mapped.evicted])
            by_table = np.vstack([by_table, [len(of_table) for of_table in mapped.evicted]])
        rows = OwnerRows(asked, by_table, np.array(self.layout.rows, np.int64))
        counts = numbers if parts == 1 else numbers.reshape(world_size, -1, parts).sum(2)
        return Served(
            wire=found,
            counts=counts,
            rows=rows,
            numbers=rows.numbers[:units],
            evicted=rows.numbers[units:],
            two_rows=two_rows,
        )

    def shared(self, served: Served, rows: np.ndarray, *, back: bool) -> Shared:
        """rows: uint8[R] their classes. back: of the gradients after the step, not of the rows before it."""
        found, units = served.wire, take(rows, served.numbers)
        if back:
            pieces, urgent, by_peer = found.pieces_back(units), pieces_back(found.parts), found.occurrences
        else:
            pieces, urgent, by_peer = found.pieces_ahead(units), self.layout.pieces_ahead(found.parts), found.rows
        counts = count(pieces, urgent, by_peer)
        of_ids = counts.sum(0) if back else count(take(units, found.slots), 1, found.occurrences)[0]
        strips = np.vstack([counts, by_peer - counts.sum(0)])
        return Shared(rows, units, pieces, strips, found.occurrences, of_ids)

    def ahead(self, request: Request, served: Served, shared: Shared, told: Told) -> RowsAhead:
        """How rows travel before the step."""
        urgent, chunk_rows = self.layout.pieces_ahead(request.wire.parts), self.layout.chunk_rows
        asked = cut(request.wire.pieces_ahead(told.mine), urgent, request.units, told.largest, chunk_rows)
        sent = cut(shared.pieces, urgent, served.units, told.largest, chunk_rows)
        lookups = self.lookups(served, served.numbers, sent)
        return RowsAhead(
            merge=request.merge(asked.places, asked.starts),
            fetch=[
                Fetch(lookup=lookup, received=received, most=most)
                for lookup, received, most in zip(lookups, asked.splits, told.most, strict=True)
            ],
        )

    def lookups(self, served: Served, sent: np.ndarray, of_sent: Cut) -> list[Lookup]:
        """[P + 1]. sent: int32[n] the numbers of the rows that travel.

        All rows of a table are read once, whichever of its features asked for them.
        """
        rows, placed = served.rows, np.empty(len(sent), np.int32)
        wire_kernels.put(of_sent.places, sent, placed)
        ids, index = np.empty(len(sent) + 1, np.int64), np.empty(len(sent), np.int64)
        ends = np.zeros((len(of_sent.splits), len(rows.ends) + 1), np.int64)
        starts, read = np.array(of_sent.starts), np.zeros(len(rows), np.int32)
        wire_kernels.rows_to_read(placed, starts, rows.ids, rows.ends, read, ids, index, ends)
        of_pieces = pieces_of(ids[: ends[:, -1].sum()], [0, *np.cumsum(ends[:, -1])])
        given = zip(of_pieces, ends, of_sent.by_piece(index), of_sent.splits, strict=True)
        return [
            Lookup(ids=of_piece, bags=equal_bags(self.layout, of_tables), index=which, splits=splits)
            for of_piece, of_tables, which, splits in given
        ]

    def back(self, request: Request, served: Served, shared: Shared, told: Told) -> Back:
        """How gradients travel after it: those of all occurrences."""
        chunk_rows, asked, here = self.layout.chunk_rows, request.wire, served.wire
        urgent = pieces_back(asked.parts)
        sent = cut(asked.pieces_back(told.mine), urgent, asked.occurrences, told.largest, chunk_rows)
        came = cut(shared.pieces, urgent, here.occurrences, told.largest, chunk_rows)
        index = np.empty(len(sent.places), np.int64)
        wire_kernels.indices_to_send(sent.places, request.from_wire, index)
        return Back(
            ends=request.ends,
            pieces=go_back(index, sent, came, told, request.ends),
            starts=came.starts,
            applies=_applies(self.layout, served, came),
        )


def _applies(layout: GroupLayout, served: Served, came: Cut) -> list[Apply]:
    """[C + 1]"""
    parts = served.parts
    starts = [*came.starts[::parts][: classes_back(parts) + 1], len(came.places)]  # of classes among places
    ends = np.zeros((len(starts) - 1, served.counts.shape[1] + 1), np.int64)
    index, ids = (np.empty(len(came.places), np.int64) for _ in range(2))
    wire_kernels.updates(served.wire.ids, came.places, starts[1], starts[2], served.counts, index, ids, ends)
    of_tables = ends[:, np.cumsum([0, *layout.runs[layout.rank]])]
    return [
        Apply(index=which, ids=of_class, bags=equal_bags(layout, of_class_ends))
        for which, of_class, of_class_ends in zip(
            pieces_of(index, starts), pieces_of(ids, starts), of_tables, strict=True
        )
    ]
