"""What travels where: pure planning of one step of one sharding group, from ids and masks to index tensors.

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
from fscomm.plan.ways import Apply, Cut, Lookup, Merge, SendGradients, of_classes, sums, take

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
    def irregular(self) -> bool:
        """An id lies outside its table."""
        return self.rows.irregular


def serve(ids: np.ndarray, counts: np.ndarray, layout: GroupLayout) -> Served:
    """counts: int64[W, F] occurrences."""
    world_size, mine = layout.world_size, np.array(layout.runs[layout.rank], np.int64)
    features, tables = (np.full(world_size, of_one, np.int64) for of_one in (counts.shape[1], len(mine)))
    found = wire(ids, counts.ravel(), features, np.tile(mine, world_size), tables)
    by_table = found.by_table.reshape(world_size, len(mine))
    rows = OwnerRows(take(ids, found.positions), by_table, np.array(layout.rows, np.int64))
    return Served(wire=found, counts=counts, rows=rows)


def send_gradients(request: Request, of_ids: Cut) -> tuple[SendGradients, SendGradients]:
    """Collision class, exclusive class. of_ids: of the occurrences; so in `apply`."""
    index = np.empty(len(of_ids.places), np.int64)
    wire_kernels.indices_to_send(of_ids.places, request.from_wire, index)
    urgent, deferred = of_classes(index, of_ids.total)
    return (
        SendGradients(index=urgent, splits=of_ids.collision),
        SendGradients(index=deferred, splits=of_ids.exclusive),
    )


def apply(served: Served, of_ids: Cut) -> tuple[Apply, Apply]:
    """Collision class, exclusive class."""
    offsets = np.zeros((2, served.counts.shape[1] + 1), np.int64)
    index, ids = (np.empty(len(of_ids.places), np.int64) for _ in range(2))
    wire_kernels.updates(served.wire.ids, of_ids.places, of_ids.total, served.counts, index, ids, offsets[:, 1:])
    of_class = zip(
        (of_ids.collision, of_ids.exclusive),
        of_classes(index, of_ids.total),
        of_classes(ids, of_ids.total),
        offsets,
        strict=True,
    )
    urgent, deferred = (
        Apply(splits=splits, index=places, ids=rows, offsets=torch.from_numpy(ends))
        for splits, places, rows, ends in of_class
    )
    return urgent, deferred


def lookup(
    served: Served, sent: np.ndarray, of_rows: Cut, shared: np.ndarray, layout: GroupLayout
) -> tuple[Lookup, Lookup]:
    """Collision class, exclusive class. sent: int32[n] the numbers of the rows that travel. of_rows: of these; in
    `merge`, of the distinct rows of pairs of ranks. shared: bool[R] which distinct rows of this owner are.

    All rows of a table are read as if its first feature had asked for them: `offsets` repeats where it ends.
    """
    rows, total = served.rows, int(np.count_nonzero(shared))
    ids, index = np.empty(len(rows), np.int64), np.empty(len(of_rows.places), np.int64)
    ends = np.zeros((2, len(layout.rows) + 1), np.int64)
    wire_kernels.rows_to_read(
        sent, of_rows.places, rows.ids, shared, rows.ends, total, np.empty(len(rows), np.int32),
        ids, index, ends[:, 1:],
    )  # fmt: skip
    of_class = zip(
        (of_rows.collision, of_rows.exclusive),
        of_classes(ids, total),
        of_classes(index, of_rows.total),
        ends.repeat([1, *layout.runs[layout.rank]], axis=1),
        strict=True,
    )
    urgent, deferred = (
        Lookup(ids=read, offsets=torch.from_numpy(offsets), index=sent, splits=splits)
        for splits, read, sent, offsets in of_class
    )
    return urgent, deferred


def merge(request: Request, of_rows: Cut) -> Merge:
    return Merge(
        exclusive=of_rows.exclusive,
        collision=of_rows.collision,
        index=merged(request, of_rows.places, of_rows.total),
    )


def merged(request: Request, places: np.ndarray, total: int) -> torch.Tensor:
    """int64[N] of `Merge.index`. places: int32[U] of the distinct rows, `total` of them collision rows."""
    index = np.empty(len(request.wire.slots), np.int64)
    wire_kernels.merged(places, total, request.wire.slots, request.from_wire, index)
    return torch.from_numpy(index)
