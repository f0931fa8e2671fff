"""What travels where, where every id gets its row: from ids and masks to index tensors.

Every id *occurrence* of a rank has a place in the *wire order*: by peer, then by feature, then by sample. Among the ids
of one pair of ranks a row counts once: both ranks see the same ids, and number these *distinct rows* alike, by first
occurrence. In the forward distinct rows travel. In backward the gradient of every occurrence travels, because to add
gradients up before they travel would change the order of additions.

A row is *shared* by a step and the next one if some rank uses it in the one and some rank in the other. The shared
rows of a step form its collision class, all others its exclusive class. One row lies on one owner, so all its
occurrences from all ranks are in one class, and an update of a class is complete for each of its rows.

Everything is in host memory, and every pass over ids is a kernel of `fscomm/plan/wire_kernels.py`.
N occurrences, U distinct rows of pairs of ranks, R distinct rows of an owner, W peers, F features and T tables of an
owner, D columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import OwnerRows, first_occurrences
from fscomm.plan.ways import (
    Apply,
    Back,
    ByClass,
    Cut,
    Fetch,
    Lookup,
    Merge,
    RowsAhead,
    Shared,
    Told,
    count,
    cut,
    halves,
    of_classes,
    sums,
    take,
)

_IN_WIRE_ORDER = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The ids between this rank and its peers, in wire order.

    Attributes:
        ids: int64[N].
        occurrences: int64[W] by peer.
        positions: int32[U] where each distinct row occurs first.
        slots: int32[N] the distinct row of each occurrence.
        rows: int64[W] distinct rows by peer. by_table: int64[S] by peer, then by table.
    """

    ids: np.ndarray
    occurrences: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    rows: np.ndarray
    by_table: np.ndarray


def wire(ids: np.ndarray, counts: np.ndarray, features: np.ndarray, runs: np.ndarray, tables: np.ndarray) -> Wire:
    """Number the distinct rows of `ids`.

    counts: int64 occurrences by peer, then by feature. features, tables: int64[W] how many each peer has. runs: int64,
    by peer and table, how many features read the table.
    """
    found = first_occurrences(ids, sums(counts, runs))
    return Wire(
        ids=ids,
        occurrences=sums(counts, features),
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
        counts: int64 occurrences by owner, then by its feature.
        from_wire: int64[N], or empty for the identity: local output i is occurrence from_wire[i].
    """

    wire: Wire
    counts: np.ndarray
    from_wire: np.ndarray

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct rows by owner."""
        return self.wire.rows

    def merge(self, places: np.ndarray, totals: ByClass[int]) -> Merge:
        """places: int32[U] of the distinct rows as they come, the collision class first."""
        index = np.empty(len(self.wire.slots), np.int64)
        wire_kernels.merged(places, totals.collision, self.wire.slots, self.from_wire, index)
        return Merge(totals=totals, index=torch.from_numpy(index))


def request(ids: torch.Tensor, counts: Sequence[int], from_wire: torch.Tensor | None, layout: GroupLayout) -> Request:
    of_features = np.asarray(counts, np.int64)
    return Request(
        wire=wire(ids.numpy(), of_features, layout.features, layout.flat_runs, layout.tables),
        counts=of_features,
        from_wire=_IN_WIRE_ORDER if from_wire is None else from_wire.long().numpy(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the ranks ask of this owner in one step.

    Attributes:
        wire: peers are the requesters.
        counts: int64[W, F] occurrences.
        rows: all distinct rows that are asked for; `rows.numbers`: [U] by distinct row of a pair.
        asking: bool[U, H] which ranks of the requester's host ask for a row; None unless rows go in two levels.
    """

    wire: Wire
    counts: np.ndarray
    rows: OwnerRows
    asking: np.ndarray | None = None

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct rows by requester."""
        return self.wire.rows

    @property
    def irregular(self) -> bool:
        """An id lies outside its table."""
        return self.rows.irregular


class RowPlan:
    """Of a group whose every id gets its row. Numbers: ids of each feature of the owner; words: ids.

    Numbers and words for owners, and from requesters, stand by rank.
    """

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout

    @property
    def numbers_to(self) -> np.ndarray:
        """int64[W] how many numbers every requester tells each owner."""
        return self.layout.features

    def numbers(self, request: Request) -> np.ndarray:
        """int64, those of `request`."""
        return request.counts

    def words(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """int64 words: what the owners have to know of `request`; int64[W] how many go to each."""
        return request.wire.ids, request.wire.occurrences

    def words_of(self, numbers: np.ndarray) -> np.ndarray:
        """int64[W] how many words come from requesters that told `numbers`, int64[W, n]."""
        return numbers.sum(1)

    def serve(self, words: np.ndarray, numbers: np.ndarray) -> Served:
        """What the ranks ask of this owner, from what they sent."""
        world_size, mine = self.layout.world_size, np.array(self.layout.runs[self.layout.rank], np.int64)
        features, tables = (np.full(world_size, of_one, np.int64) for of_one in (numbers.shape[1], len(mine)))
        found = wire(words, numbers.ravel(), features, np.tile(mine, world_size), tables)
        by_table = found.by_table.reshape(world_size, len(mine))
        rows = OwnerRows(take(words, found.positions), by_table, np.array(self.layout.rows, np.int64))
        return Served(wire=found, counts=numbers, rows=rows)

    def shared(self, served: Served, rows: np.ndarray) -> Shared:
        """`rows`: bool[R]."""
        found = served.wire
        units = take(rows, served.rows.numbers)
        return Shared(rows, units, found.occurrences, count(units, found.occurrences, found.slots))

    def strips_ahead(self, served: Served, shared: Shared) -> np.ndarray:
        """int64[2, W] that this owner sends each requester, in the collision class and in the exclusive class."""
        urgent = count(shared.units, served.units)
        return np.stack([urgent, served.units - urgent])

    def strips_back(self, served: Served, shared: Shared) -> np.ndarray:
        """The same of the gradients that come back."""
        return np.stack([shared.colliding, shared.ids - shared.colliding])

    def ahead(self, request: Request, served: Served, shared: Shared, told: Told) -> RowsAhead:
        """How rows travel before the step."""
        asked = cut(told.mine, request.units, told.largest, self.layout.chunk_rows)
        sent = cut(shared.units, served.units, told.largest, self.layout.chunk_rows)
        lookups = self.lookups(served, served.rows.numbers, sent, shared.rows)
        return RowsAhead(
            merge=request.merge(asked.places, asked.totals),
            fetch=of_classes(Fetch, lookup=lookups, received=asked.splits, most=told.most),
        )

    def lookups(self, served: Served, sent: np.ndarray, of_sent: Cut, shared: np.ndarray) -> ByClass[Lookup]:
        """sent: int32[n] the numbers of the rows that travel. shared: bool[R] which rows of this owner are.

        All rows of a table are read as if its first feature had asked for them: `offsets` repeats where it ends.
        """
        rows, total = served.rows, int(np.count_nonzero(shared))
        ids, index = np.empty(len(rows), np.int64), np.empty(len(sent), np.int64)
        ends = np.zeros((2, len(rows.ends) + 1), np.int64)
        wire_kernels.rows_to_read(
            sent, of_sent.places, rows.ids, shared, rows.ends, total, np.empty(len(rows), np.int32),
            ids, index, ends[:, 1:],
        )  # fmt: skip
        offsets = ends.repeat([1, *self.layout.runs[self.layout.rank]], axis=1)
        return of_classes(
            Lookup,
            ids=halves(ids, total),
            offsets=map(torch.from_numpy, offsets),
            index=of_sent.by_class(index),
            splits=of_sent.splits,
        )

    def back(self, request: Request, served: Served, shared: Shared, told: Told) -> ByClass[Back]:
        """How gradients travel after it: those of all occurrences."""
        chunk_rows, largest = self.layout.chunk_rows, told.largest
        asked, here = request.wire, served.wire
        sent = cut(told.mine, asked.occurrences, largest, chunk_rows, asked.slots)
        came = cut(shared.units, here.occurrences, largest, chunk_rows, here.slots)
        index = np.empty(len(sent.places), np.int64)
        wire_kernels.indices_to_send(sent.places, request.from_wire, index)
        return of_classes(
            Back, index=sent.by_class(index), sent=sent.splits, most=told.most, apply=_applies(served, came)
        )


def _applies(served: Served, came: Cut) -> ByClass[Apply]:
    offsets = np.zeros((2, served.counts.shape[1] + 1), np.int64)
    index, ids = (np.empty(len(came.places), np.int64) for _ in range(2))
    wire_kernels.updates(served.wire.ids, came.places, came.totals.collision, served.counts, index, ids, offsets[:, 1:])
    return of_classes(
        Apply,
        splits=came.splits,
        index=came.by_class(index),
        ids=came.by_class(ids),
        offsets=map(torch.from_numpy, offsets),
    )
