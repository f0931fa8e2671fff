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
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.gloo_order import Region, add, regions
from fscomm.plan.sharding_group import GroupLayout, Pooling
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
    Splits,
    Told,
    count,
    cut,
    of_classes,
    segments,
    starts_of,
    sums,
    take,
)

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

    @property
    def distinct_widths(self) -> np.ndarray:
        """int64[V] strips of each distinct bag."""
        return self.widths[self.positions]

    def first(self, chosen: np.ndarray) -> np.ndarray:
        """bool[U] the first bags of the distinct bags `chosen`, bool[V]."""
        found = np.zeros(len(self.slots), np.bool_)
        found[self.positions[chosen]] = True
        return found

    def cut(self, urgent: np.ndarray, largest: int, chunk_rows: int) -> Cut:
        """Of the strips of all bags. urgent: bool[U] which bags are in the collision class."""
        return cut(urgent.repeat(self.widths), self.strips, largest, chunk_rows)

    def cut_distinct(self, urgent: np.ndarray, largest: int, chunk_rows: int) -> Cut:
        """Of the strips of distinct bags. urgent: bool[V]."""
        widths = self.distinct_widths
        return cut(urgent.repeat(widths), sums(widths, self.distinct), largest, chunk_rows)


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

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct bags by owner."""
        return self.bags.distinct


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

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct bags by requester."""
        return self.bags.distinct

    def shared_bags(self, shared: np.ndarray) -> np.ndarray:
        """bool[U] bags with a shared row; `shared`: bool[N] by id."""
        starts = self.bags.starts[:-1]
        return np.logical_or.reduceat(shared, starts) if len(starts) else np.empty(0, np.bool_)


class Added(NamedTuple):
    """How `columns` of the output, of all samples, are added up."""

    columns: int
    regions: list[Region]


@dataclass(frozen=True, slots=True, kw_only=True)
class BagMerge(Merge):
    """Requester: how the strips received in both classes become the local output.

    Attributes:
        totals: strips of each class, which fill one buffer, the exclusive class first; a strip of zeros follows.
        index: int64[A, B * P] the strip of the buffer, for each of A parts that are added up.
        samples, strips: B, P.
        added: how parts are added up, columns by columns; None where there is one.
    """

    samples: int
    strips: int
    added: list[Added] | None

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        total = sum(self.totals)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelCall:
    """How chosen bags are given to a fused kernel that wants equally many of every feature: B, that of the feature with
    the most. The rest are empty.

    Attributes:
        ids: int64[n] which ids, by feature. offsets: int64[F * B + 1]. samples: B.
        strips: int64[q] where the strips of the bags are among B * P, in wire order.
    """

    ids: np.ndarray
    offsets: np.ndarray
    samples: int
    strips: np.ndarray

    def arguments(self, found: Bags) -> dict[str, Any]:
        """Of the kernel, by what a look-up and an update call them."""
        return {
            "ids": torch.from_numpy(found.ids[self.ids]),
            "offsets": torch.from_numpy(self.offsets),
            "weights": _floats(found.weights, self.ids),
        }


class BagPlan:
    """Of a group that gives the ids of one feature of one sample one vector. For the rest see `RowPlan`.

    Numbers: samples, whether ids are weighted, ids. Words: lengths (int32), weights (float32), ids, each rounded up to
    whole words.
    """

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout
        self._pooling = pooled(layout)
        self._features = int(layout.features[layout.rank])
        self._widths = np.array(self._pooling.strips[layout.rank], np.int64)  # [F] strips of this owner's features

    @property
    def numbers_to(self) -> np.ndarray:
        return np.full(self.layout.world_size, 3, np.int64)

    def numbers(self, request: BagRequest) -> np.ndarray:
        samples, weighted = (
            np.full_like(request.counts, number) for number in (request.samples, request.bags.weights is not None)
        )
        return np.stack([samples, weighted, request.counts], axis=1).ravel()

    def words(self, request: BagRequest) -> tuple[np.ndarray, np.ndarray]:
        weights, lengths = request.bags.weights, request.lengths
        given = (lengths, np.zeros(1, np.int32), weights, request.bags.ids)
        source = np.concatenate([part.view(np.int32) for part in given if part is not None])
        pieces = _pieces(self.layout.features, request.samples, weights is not None, request.counts)
        zero, first_weight, first_id = len(lengths), len(lengths) + 1, len(source) - 2 * len(request.bags.ids)
        starts = np.cumsum(pieces, axis=0) - pieces + np.array([0, zero, first_weight, zero, first_id])
        starts[:, [1, 3]] = zero
        return segments(source, starts, pieces).view(np.int64), pieces.sum(1) // 2

    def words_of(self, numbers: np.ndarray) -> np.ndarray:
        return _pieces(self._features, *numbers.T).sum(1) // 2

    def serve(self, words: np.ndarray, numbers: np.ndarray) -> ServedBags:
        """Irregular are also requests that differ in what all ranks must have alike."""
        samples, weighted, _ = np.ascontiguousarray(numbers.T)
        halves, pieces = words.view(np.int32), _pieces(self._features, *numbers.T)
        starts = starts_of(pieces.ravel()).reshape(pieces.shape)
        lengths, weights, ids = (segments(halves, starts[:, column], pieces[:, column]) for column in (0, 2, 4))
        layout, world_size = self.layout, self.layout.world_size
        features, widths = np.full(world_size, self._features), np.tile(self._widths, world_size)
        mine = np.array(layout.runs[layout.rank], np.int64)
        by_table = sums(lengths, (samples[:, None] * mine).ravel()).reshape(world_size, len(mine))
        rows = OwnerRows(ids.view(np.int64), by_table, np.array(layout.rows, np.int64))
        samples_alike = (samples == samples[0]).all() or self._pooling.owners == 1
        alike = samples_alike and (weighted == weighted[0]).all()
        given = weights.view(np.float32) if weighted.all() else None
        found = bags(lengths, features, samples, widths, ids.view(np.int64), given)
        return ServedBags(bags=found, rows=rows, irregular=rows.irregular or not alike)

    def shared(self, served: ServedBags, rows: np.ndarray) -> Shared:
        ids = take(rows, served.rows.numbers)
        asked = sums(served.bags.lengths, served.bags.by_peer)
        return Shared(rows, served.shared_bags(ids)[served.bags.positions], asked, count(ids, asked))

    def strips_ahead(self, served: ServedBags, shared: Shared) -> np.ndarray:
        found = served.bags
        urgent = sums(found.distinct_widths * shared.units, found.distinct)
        return np.stack([urgent, sums(found.distinct_widths, found.distinct) - urgent])

    def strips_back(self, served: ServedBags, shared: Shared) -> np.ndarray:
        found = served.bags
        urgent = sums(served.shared_bags(take(shared.rows, served.rows.numbers)) * found.widths, found.by_peer)
        return np.stack([urgent, found.strips - urgent])

    def ahead(self, request: BagRequest, served: ServedBags, shared: Shared, told: Told) -> RowsAhead:
        asked, sent = (
            found.cut_distinct(urgent, told.largest, self.layout.chunk_rows)
            for found, urgent in ((request.bags, told.mine), (served.bags, shared.units))
        )
        moved, urgent = sent.moved(), sent.places < sent.totals.collision
        places = ByClass(moved[urgent], moved[~urgent])
        lookups = of_classes(
            partial(self._lookup, served.bags),
            distinct=(shared.units, ~shared.units),
            places=places,
            splits=sent.splits,
        )
        fetch = of_classes(Fetch, lookup=lookups, received=asked.splits, most=told.most)
        return RowsAhead(merge=self._merge(request, asked), fetch=fetch)

    def _lookup(self, found: Bags, distinct: np.ndarray, places: np.ndarray, splits: Splits) -> Lookup:
        """places: int32[q] where each strip of the bags `distinct`, bool[V], travels."""
        call = self._kernel_call(found, found.first(distinct), None)
        index = np.empty_like(call.strips)
        index[places] = call.strips
        return Lookup(index=torch.from_numpy(index), splits=splits, **call.arguments(found))

    def _merge(self, request: BagRequest, asked: Cut) -> BagMerge:
        """asked: of the strips of distinct bags."""
        found, owners, strips = request.bags, self._pooling.owners, row_strips(self.layout)
        of_distinct = asked.moved(collision=asked.totals.exclusive)  # in the buffer
        place = of_distinct[spread(starts_of(found.distinct_widths)[found.slots], found.widths)]
        index = np.full((owners, request.samples * strips), len(asked.places))
        part = np.arange(self.layout.world_size) % owners
        index[part.repeat(found.strips), request.local] = place
        return BagMerge(
            totals=asked.totals,
            index=torch.from_numpy(index),
            samples=request.samples,
            strips=strips,
            added=None if owners == 1 else _sums(request.samples, self.layout),
        )

    def back(self, request: BagRequest, served: ServedBags, shared: Shared, told: Told) -> ByClass[Back]:
        """The gradients of all bags travel. An id is updated with its row's class."""
        chunk_rows, ids = self.layout.chunk_rows, take(shared.rows, served.rows.numbers)
        sent = request.bags.cut(told.mine[request.bags.slots], told.largest, chunk_rows)
        came = served.bags.cut(served.shared_bags(ids), told.largest, chunk_rows)
        index = np.empty_like(request.local)
        index[sent.places] = request.local
        applies = of_classes(partial(self._apply, served, came.places), taken=(ids, ~ids), splits=came.splits)
        return of_classes(Back, index=sent.by_class(index), sent=sent.splits, most=told.most, apply=applies)

    def _apply(self, served: ServedBags, came: np.ndarray, taken: np.ndarray, splits: Splits) -> Apply:
        """Of the ids `taken`, bool[N]. came: where the gradient of each strip is, once all have come.

        Bags without an id in the call get some gradient: it reaches no row.
        """
        found, chosen = served.bags, served.shared_bags(taken)
        call = self._kernel_call(found, chosen, taken)
        index = np.zeros(call.samples * self._widths.sum(), np.int64)
        index[call.strips] = came[chosen.repeat(found.widths)]
        shares = None
        if self._pooling.mean:
            shares = _floats((1 / found.lengths.astype(np.float32)).repeat(found.lengths), call.ids)
        return Apply(splits=splits, index=torch.from_numpy(index), shares=shares, **call.arguments(found))

    def _kernel_call(self, found: Bags, chosen: np.ndarray, taken: np.ndarray | None) -> _KernelCall:
        """`taken`: bool[N] which ids of the bags `chosen`, bool[U]; None: all."""
        pooling, widths, world_size = self._pooling, self._widths, self.layout.world_size
        numbers = np.flatnonzero(chosen)
        features = found.features[numbers]
        turns = np.repeat(np.array(pooling.turns), found.by_peer)[numbers]
        by_feature = np.empty_like(numbers)
        wire_kernels.by_bucket(features * world_size + turns, len(widths) * world_size, by_feature)
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
            strips=spread(row * widths.sum() + starts_of(widths)[features], found.widths[numbers]),
        )


def _pieces(features: Any, samples: Any, weighted: Any, ids: np.ndarray) -> np.ndarray:
    """int64[W, 5] how many halves of words a requester tells an owner: lengths, a zero if that makes words whole,
    weights, a zero likewise, ids. What is given: int64[W], or one number for all peers."""
    lengths, weights = features * samples, weighted * ids
    return np.stack([lengths, lengths % 2, weights, weights % 2, 2 * ids], axis=1)


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


def _floats(values: np.ndarray | None, which: np.ndarray) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values[which])


def spread(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: for every i the numbers first[i], first[i] + 1, ..., lengths[i] of them."""
    return (first - starts_of(lengths)).repeat(lengths) + np.arange(lengths.sum())
