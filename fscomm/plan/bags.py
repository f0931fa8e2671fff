"""What travels where in a group of pooled tables: one vector for each *bag*, the ids of one feature of one sample.

The wire order is by peer, then by feature, then by sample. Empty bags do not travel: their vectors are zero. A bag is
in the collision class of a step if any of its rows is shared with the step next to it. Its vector then travels
urgently, and so does its gradient: once, for all of its rows. The owner updates the shared rows at once, and keeps the
gradient for the other rows, which are updated with the exclusive class.

Bags of one id that are asked for more than once by a rank have the same vector. It travels once, as a *distinct* bag;
their gradients all travel, because to add them up before they travel would change the order of additions.

Row-wise, a bag here is the part of it that one owner has. The requester adds parts up as plain training would:
table-row-wise and grid, host by host, each of which has columns of its own in the output.

Everything is in host memory. N ids, U bags, V distinct bags, Q strips, W peers, F features of an owner, P strips of a
sample.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.gloo_order import Region, add, regions
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.shared_rows import OwnerRows, first_occurrences
from fscomm.plan.ways import Apply, Cut, Lookup, Merge, SendGradients, cut, of_classes, starts_of, sums

_UNIQUE = 1 << 62  # above all ids: the key of a bag that is like no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """The bags between this rank and its peers, in wire order, without empty ones. All int64, but for weights.

    Attributes:
        ids: [N]. weights: float32[N] or None.
        starts: [U + 1] where each bag begins.
        features, samples: [U] numbers of the owner's feature and of the requester's sample.
        widths: [U] strips.
        by_peer: [W] bags. strips: [W] their strips.
        positions: [V] where each distinct bag is first. slots: [U] the distinct bag of each bag.
        distinct: [W] distinct bags.
    """

    ids: np.ndarray
    weights: np.ndarray | None
    starts: np.ndarray
    features: np.ndarray
    samples: np.ndarray
    widths: np.ndarray
    by_peer: np.ndarray
    strips: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    distinct: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64[U] ids of each bag."""
        return np.diff(self.starts)

    def first(self, chosen: np.ndarray) -> np.ndarray:
        """bool[U] the first bags of the distinct bags `chosen`, bool[V]."""
        found = np.zeros(len(self.slots), np.bool_)
        found[self.positions[chosen]] = True
        return found

    def cut(self, urgent: np.ndarray, largest: int, chunk_rows: int, taken: np.ndarray | None = None) -> Cut:
        """Of the strips of the bags `taken`, bool[U]. urgent: bool[U] which bags are in the collision class."""
        lengths = self.strips if taken is None else sums(self.widths * taken, self.by_peer)
        widths = self.widths if taken is None else self.widths[taken]
        return cut((urgent if taken is None else urgent[taken]).repeat(widths), lengths, largest, chunk_rows)


def bags(
    lengths: np.ndarray,
    features: np.ndarray,
    samples: np.ndarray,
    widths: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray | None,
) -> Bags:
    """lengths: int32 ids of each bag, by peer, feature and sample. features, samples: int64[W]; widths: int64 strips
    by peer and feature."""
    number = np.count_nonzero(lengths)
    starts, bags_of = np.empty(number + 1, np.int64), np.empty_like(widths)
    of_feature, of_sample, of_width, keys = (np.empty(number, np.int64) for _ in range(4))
    wire_kernels.find_bags(
        lengths, features, samples, widths, ids, weights is None, _UNIQUE,
        starts, of_feature, of_sample, of_width, keys, bags_of,
    )  # fmt: skip
    same = first_occurrences(keys, bags_of)
    return Bags(
        ids=ids,
        weights=weights,
        starts=starts,
        features=of_feature,
        samples=of_sample,
        widths=of_width,
        by_peer=sums(bags_of, features),
        strips=sums(bags_of * widths, features),
        positions=same.positions,
        slots=same.slots,
        distinct=sums(same.counts, features),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BagRequest:
    """What this rank asks of the owners in one step.

    Attributes:
        bags: peers are the owners.
        counts: int64[W] ids. lengths: int32 by owner, feature and sample.
        samples: B.
        local: int64[Q] where each strip belongs among the B * P strips of the output.
    """

    bags: Bags
    counts: np.ndarray
    lengths: np.ndarray
    samples: int
    local: np.ndarray


def request(ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, layout: GroupLayout) -> BagRequest:
    """lengths: [F of all owners, B] in wire order."""
    pooling, flat = pooled(layout), lengths.int().flatten().numpy()
    samples = np.full(layout.world_size, lengths.shape[1], np.int64)
    widths = np.array([strips for of_owner in pooling.strips for strips in of_owner], np.int64)
    found = bags(
        flat, layout.features, samples, widths, ids.numpy(), None if weights is None else weights.float().numpy()
    )
    of_hosts = np.repeat(starts_of(np.array([sum(of_host) for of_host in pooling.of_hosts])), pooling.owners)
    shift = of_hosts - starts_of(sums(widths, layout.features))
    inside = starts_of(widths) + shift.repeat(layout.features)  # where each feature begins in a sample of the output
    columns = inside[starts_of(layout.features).repeat(found.by_peer) + found.features]
    return BagRequest(
        bags=found,
        counts=sums(flat, layout.features * lengths.shape[1]),
        lengths=flat,
        samples=lengths.shape[1],
        local=spread(found.samples * row_strips(layout) + columns, found.widths),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBags:
    """What the ranks ask of this owner in one step.

    Attributes:
        bags: peers are the requesters.
        rows: the distinct rows that are asked for; `rows.numbers`: [N] by id.
        irregular: an id lies outside its table, or ranks differ in what they must have alike.
    """

    bags: Bags
    rows: OwnerRows
    irregular: bool

    def shared_bags(self, shared: np.ndarray) -> np.ndarray:
        """bool[U] bags with a shared row; `shared`: bool[N] by id."""
        starts = self.bags.starts[:-1]
        return np.logical_or.reduceat(shared, starts) if len(starts) else np.empty(0, np.bool_)


def serve(
    ids: np.ndarray,
    lengths: np.ndarray,
    samples: np.ndarray,
    weights: np.ndarray | None,
    layout: GroupLayout,
    *,
    alike: bool,
) -> ServedBags:
    """lengths: int32 by requester, feature and sample. samples: int64[W]. alike: ranks agree where they must."""
    mine, world_size = np.array(layout.runs[layout.rank], np.int64), layout.world_size
    features = np.full(world_size, mine.sum(), np.int64)
    widths = np.tile(np.array(pooled(layout).strips[layout.rank], np.int64), world_size)
    found = bags(lengths, features, samples, widths, ids, weights)
    by_table = sums(lengths, (samples[:, None] * mine).ravel()).reshape(world_size, len(mine))
    rows = OwnerRows(ids, by_table, np.array(layout.rows, np.int64))
    return ServedBags(bags=found, rows=rows, irregular=rows.irregular or not alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class BagLookup(Lookup):
    """Owner: the bags of one class for the next step, as the fused kernel reads them.

    Every feature has as many bags as the one with the most: the rest are empty.

    Attributes:
        ids, offsets: int64[n], int64[F * B + 1], by feature. Offsets stay in host memory.
        weights: float32[n] or None.
        index: int64[q] which strips of the B * P that the kernels give go on the wire.
        splits: [chunks][W] strips to each requester.
    """

    weights: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BagApply(Apply):
    """Owner: the gradients of one class, and the rows that they update.

    Attributes:
        splits: [chunks][W] strips from each requester.
        ids, offsets, weights: as in `BagLookup`; of a bag, only the rows of this class.
        shares: float32[n] 1 / the number of ids of the whole bag; None where no table averages.
        index: int64[B * P] the strip of the gradient: of the collision strips kept, then of those received with this
            class, then a strip of zeros.
    """

    weights: torch.Tensor | None
    shares: torch.Tensor | None


class Added(NamedTuple):
    """How `columns` of the output, of all samples, are added up."""

    columns: int
    regions: list[Region]


@dataclass(frozen=True, slots=True, kw_only=True)
class BagMerge(Merge):
    """Requester: how the strips received in both classes become the local output.

    Attributes:
        exclusive, collision: [chunks][W] strips from each owner, which fill one buffer in this order; a strip of zeros
            follows.
        index: int64[A, B * P] the strip of the buffer, for each of A parts that are added up.
        samples, strips: B, P.
        added: how parts are added up, columns by columns; None where there is one.
    """

    samples: int
    strips: int
    added: list[Added] | None

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        total = self.exclusive_total + self.collision_total
        buffer = torch.empty(total + 1, layout.row_width, dtype=layout.dtype, device=where)
        buffer[total] = 0
        return buffer

    def output(self, buffer: torch.Tensor) -> torch.Tensor:
        """[B, P * D] the vectors of all features."""
        shape = self.samples, self.strips * buffer.shape[1]
        parts = [buffer.index_select(0, index).view(shape) for index in self.index]
        if self.added is None:
            return parts[0]
        given = [each.split([added.columns for added in self.added], dim=1) for each in parts]
        totals = [
            add([part.flatten() for part in columns], added.regions).view(self.samples, added.columns)
            for added, *columns in zip(self.added, *given, strict=True)
        ]
        return totals[0] if len(totals) == 1 else torch.cat(totals, dim=1)


def send_gradients(request: BagRequest, of_strips: Cut) -> tuple[SendGradients, SendGradients]:
    """Collision class, exclusive class. of_strips: of all bags."""
    index = np.empty_like(request.local)
    index[of_strips.places] = request.local
    urgent, deferred = of_classes(index, of_strips.total)
    return (
        SendGradients(index=urgent, splits=of_strips.collision),
        SendGradients(index=deferred, splits=of_strips.exclusive),
    )


def lookup(served: ServedBags, shared: np.ndarray, largest: int, layout: GroupLayout) -> tuple[BagLookup, BagLookup]:
    """Collision class, exclusive class. shared: bool[V] which distinct bags are in the former."""
    found = served.bags
    once = found.first(np.ones(len(shared), np.bool_))
    urgent = found.first(shared)
    way = found.cut(urgent, largest, layout.chunk_rows, once)
    now = way.places < way.total
    return (
        _lookup(found, urgent, way.places[now], way.collision, layout),
        _lookup(found, once & ~urgent, way.places[~now] - way.total, way.exclusive, layout),
    )


def _lookup(
    found: Bags, chosen: np.ndarray, places: np.ndarray, splits: list[list[int]], layout: GroupLayout
) -> BagLookup:
    """places: int32[q] where each strip of the bags `chosen`, bool[U], travels."""
    call = _kernel_call(found, chosen, None, layout)
    index = np.empty_like(call.strips)
    index[places] = call.strips
    return BagLookup(
        ids=torch.from_numpy(found.ids[call.ids]),
        offsets=torch.from_numpy(call.offsets),
        weights=_floats(found.weights, call.ids),
        index=torch.from_numpy(index),
        splits=splits,
    )


def apply(served: ServedBags, shared: np.ndarray, of_strips: Cut, layout: GroupLayout) -> tuple[BagApply, BagApply]:
    """Collision class, exclusive class. shared: bool[N] which ids lie on shared rows; of_strips: of all bags."""
    came = of_strips.places  # where the gradient of each strip is, once all have come
    return (
        _apply(served, shared, came, of_strips.total, of_strips.collision, layout),
        _apply(served, ~shared, came, len(came), of_strips.exclusive, layout),
    )


def _apply(
    served: ServedBags, taken: np.ndarray, came: np.ndarray, zeros: int, splits: list[list[int]], layout: GroupLayout
) -> BagApply:
    """Of the ids `taken`, bool[N]. zeros: where the strip of zeros is."""
    found = served.bags
    call = _kernel_call(found, served.shared_bags(taken), taken, layout)
    index = np.full(call.samples * sum(pooled(layout).strips[layout.rank]), zeros, np.int64)
    index[call.strips] = came[call.bags.repeat(found.widths)]
    shares = None
    if pooled(layout).mean:
        shares = _floats((1 / found.lengths.astype(np.float32)).repeat(found.lengths), call.ids)
    return BagApply(
        splits=splits,
        index=torch.from_numpy(index),
        ids=torch.from_numpy(found.ids[call.ids]),
        offsets=torch.from_numpy(call.offsets),
        weights=_floats(found.weights, call.ids),
        shares=shares,
    )


def merge(request: BagRequest, shared: np.ndarray, largest: int, layout: GroupLayout) -> BagMerge:
    """shared: bool[V] which distinct bags are in the collision class."""
    found, owners = request.bags, pooled(layout).owners
    once = found.first(np.ones(len(shared), np.bool_))
    way = found.cut(found.first(shared), largest, layout.chunk_rows, once)
    place = np.full(found.widths.sum(), -1)  # in the buffer, of the strips of first bags
    deferred = len(way.places) - way.total
    place[once.repeat(found.widths)] = np.where(way.places < way.total, way.places + deferred, way.places - way.total)
    place = place[spread(starts_of(found.widths)[found.positions[found.slots]], found.widths)]
    strips = row_strips(layout)
    index = np.full((owners, request.samples * strips), len(way.places))
    part = np.arange(layout.world_size) % owners
    index[part.repeat(found.strips), request.local] = place
    return BagMerge(
        exclusive=way.exclusive,
        collision=way.collision,
        index=torch.from_numpy(index),
        samples=request.samples,
        strips=strips,
        added=None if owners == 1 else _sums(request.samples, layout),
    )


def _sums(samples: int, layout: GroupLayout) -> list[Added]:
    pooling = pooled(layout)
    sums = []
    for of_host in pooling.of_hosts:
        columns = sum(of_host) * layout.dim
        mine, all_ranks = samples * columns, samples * columns * layout.world_size
        first = pooling.turns[layout.rank] * mine
        sums.append(Added(columns, regions(first, mine, all_ranks, pooling.owners, layout.dtype.itemsize)))
    return sums


def pooled(layout: GroupLayout) -> Pooling:
    assert layout.pooling is not None
    return layout.pooling


def row_strips(layout: GroupLayout) -> int:
    """P of a requester: strips of a sample in the output."""
    return sum(map(sum, pooled(layout).of_hosts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelCall:
    """How chosen bags are given to a fused kernel that wants equally many of every feature.

    Attributes:
        ids: int64[n] which ids, by feature. offsets: int64[F * B + 1]. samples: B.
        bags: bool[U] which bags. strips: int64[q] where their strips are among B * P, in wire order.
    """

    ids: np.ndarray
    offsets: np.ndarray
    samples: int
    bags: np.ndarray
    strips: np.ndarray


def _kernel_call(found: Bags, chosen: np.ndarray, taken: np.ndarray | None, layout: GroupLayout) -> _KernelCall:
    """`taken`: bool[N] which ids of the bags `chosen`, bool[U]; None: all."""
    pooling = pooled(layout)
    widths = np.array(pooling.strips[layout.rank], np.int64)
    numbers = np.flatnonzero(chosen)
    features = found.features[numbers]
    turns = np.repeat(np.array(pooling.turns), found.by_peer)[numbers]
    by_feature = np.empty_like(numbers)
    wire_kernels.by_bucket(features * layout.world_size + turns, len(widths) * layout.world_size, by_feature)
    counts = np.bincount(features, minlength=len(widths))
    samples = int(counts.max(initial=0))
    row = np.empty_like(numbers)
    row[by_feature] = np.arange(len(numbers)) - starts_of(counts).repeat(counts)
    each = found.lengths if taken is None else np.diff(np.concatenate([[0], np.cumsum(taken)])[found.starts])
    lengths = np.zeros(len(widths) * samples, np.int64)
    lengths[features * samples + row] = each[numbers]
    ordered = numbers[by_feature]
    ids = spread(found.starts[ordered], found.lengths[ordered])
    return _KernelCall(
        ids=ids if taken is None else ids[taken[ids]],
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        samples=samples,
        bags=chosen,
        strips=spread(row * widths.sum() + starts_of(widths)[features], found.widths[numbers]),
    )


def _floats(values: np.ndarray | None, which: np.ndarray) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values[which])


def spread(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: for every i the numbers first[i], first[i] + 1, ..., lengths[i] of them."""
    return (first - starts_of(lengths)).repeat(lengths) + np.arange(lengths.sum())
