"""What travels where in a group of pooled tables: one vector for each *bag*, the ids of one feature of one sample.

The wire order is by peer, then by feature, then by sample. Empty bags do not travel: their vectors are zero. A bag is
in the most urgent class of its rows: so is its vector, and so is its gradient, which travels once for all of its rows.
The owner updates rows of that class at once, and other rows with their own class, from the gradient that came.

Bags of one id that are asked for more than once by a rank have the same vector. It travels once, as a *distinct* bag;
their gradients all travel, because to add them up before they travel would change the order of additions.

Row-wise, a bag here is the part of it that one owner has. The requester adds parts up as plain training would:
table-row-wise and grid, host by host, each of which has columns of its own in the output.

Everything is in host memory. N ids, U bags, V distinct bags, Q strips, W peers, F features of an owner, k parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    Cut,
    Fetch,
    Lookup,
    Merge,
    RowsAhead,
    Shared,
    Splits,
    Told,
    bags_of_kernels,
    classes_back,
    count,
    cut,
    go_back,
    pieces_back,
    pieces_of_gradients,
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
        parts: k of the step. part_of: uint8[U] in which part of it the sample of each bag is.
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
    parts: int
    part_of: np.ndarray
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

    def pieces_ahead(self, classes: np.ndarray) -> np.ndarray:
        """uint8[V] the piece in which each distinct bag travels before the step; classes: uint8[V], 0 or 1."""
        if self.parts == 1:
            return classes
        pieces = np.full(len(classes), self.parts, np.uint8)
        wire_kernels.first_parts(self.slots, self.part_of, pieces)
        pieces[classes > 0] = self.parts
        return pieces

    def pieces_back(self, classes: np.ndarray) -> np.ndarray:
        """uint8[U] the piece in which the gradient of each bag travels after the step; classes: uint8[U]."""
        return pieces_of_gradients(classes, self.part_of, self.parts)

    def cut(self, pieces: np.ndarray, largest: int, chunk_rows: int) -> Cut:
        """Of the strips of all bags. pieces: uint8[U]."""
        return cut(pieces.repeat(self.widths), pieces_back(self.parts), self.strips, largest, chunk_rows)

    def cut_distinct(self, pieces: np.ndarray, largest: int, chunk_rows: int) -> Cut:
        """Of the strips of distinct bags. pieces: uint8[V]."""
        widths = self.distinct_widths
        return cut(pieces.repeat(widths), self.parts, sums(widths, self.distinct), largest, chunk_rows)


def bags(
    lengths: np.ndarray,
    features: np.ndarray,
    samples: np.ndarray,
    widths: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray | None,
    ends: np.ndarray,
) -> Bags:
    """lengths: int32 ids of each bag, by peer, feature and sample. features, samples: int64[W]; widths: int64 strips
    by peer and feature. ends: int64[W, k] the sample at which each part of a peer's step ends."""
    number = np.count_nonzero(lengths)
    starts, bags_of = np.empty(number + 1, np.int64), np.empty_like(widths)
    of_feature, of_sample, of_width, keys = (np.empty(number, np.int64) for _ in range(4))
    wire_kernels.find_bags(
        lengths, features, samples, widths, ids, weights is None, _UNIQUE,
        starts, of_feature, of_sample, of_width, keys, bags_of,
    )  # fmt: skip
    same = first_occurrences(keys, bags_of)
    by_peer = sums(bags_of, features)
    part_of = (of_sample[:, None] >= ends[:, :-1].repeat(by_peer, axis=0)).sum(1, dtype=np.uint8)
    return Bags(
        ids=ids,
        weights=weights,
        starts=starts,
        features=of_feature,
        samples=of_sample,
        parts=ends.shape[1],
        part_of=part_of,
        widths=of_width,
        by_peer=by_peer,
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
        ends: [k] the sample at which each part ends; the last is B.
        local: int64[Q] where each strip belongs among the B times `row_strips` strips of the output.
    """

    bags: Bags
    counts: np.ndarray
    lengths: np.ndarray
    ends: list[int]
    local: np.ndarray

    @property
    def units(self) -> np.ndarray:
        """int64[W] distinct bags by owner."""
        return self.bags.distinct


class BagPart(NamedTuple):
    """What a rank asks for in one part of a step: ids int64[n] in the wire order of the part; lengths [F of all owners,
    B of the part] in that order; weights float[n]."""

    ids: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None


def request(parts: Sequence[BagPart], layout: GroupLayout) -> BagRequest:
    pooling = pooled(layout)
    lengths = np.concatenate([part.lengths.int().numpy() for part in parts], axis=1)
    ends = np.cumsum([part.lengths.shape[1] for part in parts])
    ids, *weights = _one_step(parts)
    flat, samples = lengths.ravel(), np.full(layout.world_size, ends[-1])
    widths = np.array([strips for of_owner in pooling.strips for strips in of_owner], np.int64)
    found = bags(
        flat, layout.features, samples, widths, ids, weights[0] if weights else None,
        np.tile(ends, (layout.world_size, 1)),
    )  # fmt: skip
    of_hosts = np.repeat(starts_of(np.array([sum(of_host) for of_host in pooling.of_hosts])), pooling.owners)
    shift = of_hosts - starts_of(sums(widths, layout.features))
    inside = starts_of(widths) + shift.repeat(layout.features)  # where each feature begins in a sample of the output
    columns = inside[starts_of(layout.features).repeat(found.by_peer) + found.features]
    return BagRequest(
        bags=found,
        counts=sums(flat, layout.features * ends[-1]),
        lengths=flat,
        ends=ends.tolist(),
        local=spread(found.samples * row_strips(layout) + columns, found.widths),
    )


def _one_step(parts: Sequence[BagPart]) -> list[np.ndarray]:
    """ids int64[N] of all parts in wire order; and, if there are any, weights float32[N]."""
    given = [[part.ids.numpy() for part in parts]]
    if any(part.weights is not None for part in parts):  # a part without a sample has none
        given.append(
            [np.empty(0, np.float32) if part.weights is None else part.weights.float().numpy() for part in parts]
        )
    if len(parts) == 1:
        return [values for (values,) in given]
    counts = np.array([part.lengths.sum(1).numpy() for part in parts], np.int64)  # [k, features of all owners]
    before = starts_of(np.array([len(part.ids) for part in parts]))
    starts = (np.cumsum(counts, axis=1) - counts + before[:, None]).T
    return [segments(np.concatenate(values), starts, counts.T) for values in given]


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

    def classes(self, ids: np.ndarray) -> np.ndarray:
        """uint8[U] the most urgent class in each bag; `ids`: uint8[N] by id."""
        starts = self.bags.starts[:-1]
        return np.minimum.reduceat(ids, starts) if len(starts) else np.empty(0, np.uint8)

    @property
    def parts(self) -> int:
        return self.bags.parts

    @property
    def in_later_parts(self) -> np.ndarray:
        """uint8[R] 1 for rows that no rank asks for in the first part of the step."""
        later = np.ones(len(self.rows), np.uint8)
        later[self.rows.numbers[(self.bags.part_of == 0).repeat(self.bags.lengths)]] = 0
        return later


class Added(NamedTuple):
    """How `columns` of the output, of all samples, are added up."""

    columns: int
    regions: list[Region]


@dataclass(frozen=True, slots=True, kw_only=True)
class BagMerge(Merge):
    """Requester: how the strips received in all pieces become the local output.

    Attributes:
        starts: of pieces, as in `Merge`; a strip of zeros follows the last one.
        index: int64[A, B * strips] the strip of the buffer, for each of A parts of vectors that are added up.
        strips: of a sample.
        added: [k] how vectors are added up, columns by columns; None where there is one.
    """

    strips: int
    added: list[list[Added]] | None

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        total = self.starts[-1]
        buffer = torch.empty(total + 1, layout.row_width, dtype=layout.dtype, device=where)
        buffer[total] = 0
        return buffer

    def output(self, buffer: torch.Tensor, part: int) -> torch.Tensor:
        """[B of the part, strips * D] the vectors of all features."""
        first, end = self.ends[part - 1] if part else 0, self.ends[part]
        shape, here = (end - first, self.strips * buffer.shape[1]), slice(first * self.strips, end * self.strips)
        vectors = [buffer.index_select(0, index[here]).view(shape) for index in self.index]
        if self.added is None:
            return vectors[0]
        of_part = self.added[part]
        given = [each.split([added.columns for added in of_part], dim=1) for each in vectors]
        totals = [
            add([vector.flatten() for vector in columns], added.regions).view(end - first, added.columns)
            for added, *columns in zip(of_part, *given, strict=True)
        ]
        return totals[0] if len(totals) == 1 else torch.cat(totals, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelCall:
    """How chosen bags are given to a fused kernel that wants equally many of every feature: B, that of the feature with
    the most. The rest are empty.

    Attributes:
        ids: int64[n] which ids, by feature. offsets: int64[F * B + 1]. samples: B.
        strips: int64[q] where the strips of the bags are in what the kernel gives, in wire order.
    """

    ids: np.ndarray
    offsets: np.ndarray
    samples: int
    strips: np.ndarray

    def arguments(self, found: Bags, layout: GroupLayout) -> dict[str, Any]:
        """Of the kernels, by what a look-up and an update call them."""
        return {
            "ids": torch.from_numpy(found.ids[self.ids]),
            "bags": bags_of_kernels(layout, self.offsets, self.samples),
            "weights": _floats(found.weights, self.ids),
        }


class BagPlan:
    """Of a group that gives the ids of one feature of one sample one vector. For the rest see `RowPlan`.

    Numbers: samples up to the end of each part, whether ids are weighted, ids. Words: lengths (int32), weights
    (float32), ids, each rounded up to whole words.
    """

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout
        self._pooling = pooled(layout)
        self._features = int(layout.features[layout.rank])
        self._widths = np.array(self._pooling.strips[layout.rank], np.int64)  # [F] strips of this owner's features

    def numbers_to(self, parts: int) -> np.ndarray:
        return np.full(self.layout.world_size, parts + 2, np.int64)

    def numbers(self, request: BagRequest) -> np.ndarray:
        given = [*request.ends, request.bags.weights is not None]
        same = np.tile(np.array(given, np.int64), (len(request.counts), 1))
        return np.column_stack([same, request.counts]).ravel()

    def words(self, request: BagRequest) -> tuple[np.ndarray, np.ndarray]:
        weights, lengths = request.bags.weights, request.lengths
        given = (lengths, np.zeros(1, np.int32), weights, request.bags.ids)
        source = np.concatenate([part.view(np.int32) for part in given if part is not None])
        pieces = _pieces(self.layout.features, request.ends[-1], weights is not None, request.counts)
        zero, first_weight, first_id = len(lengths), len(lengths) + 1, len(source) - 2 * len(request.bags.ids)
        starts = np.cumsum(pieces, axis=0) - pieces + np.array([0, zero, first_weight, zero, first_id])
        starts[:, [1, 3]] = zero
        return segments(source, starts, pieces).view(np.int64), pieces.sum(1) // 2

    def words_of(self, numbers: np.ndarray, parts: int) -> np.ndarray:
        return _pieces(self._features, *numbers[:, parts - 1 :].T).sum(1) // 2

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int) -> ServedBags:
        """Irregular are also requests that differ in what all ranks must have alike."""
        ends = np.ascontiguousarray(numbers[:, :parts])
        samples, weighted, counts = np.ascontiguousarray(numbers[:, parts - 1 :].T)
        halves, pieces = words.view(np.int32), _pieces(self._features, samples, weighted, counts)
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
        found = bags(lengths, features, samples, widths, ids.view(np.int64), given, ends)
        return ServedBags(bags=found, rows=rows, irregular=rows.irregular or not alike)

    def shared(self, served: ServedBags, rows: np.ndarray, *, back: bool) -> Shared:
        found, ids = served.bags, take(rows, served.rows.numbers)
        classes = served.classes(ids)
        units = classes[found.positions]
        if back:
            pieces, urgent = found.pieces_back(classes).repeat(found.widths), pieces_back(found.parts)
            by_peer = found.strips
        else:
            widths, urgent = found.distinct_widths, found.parts
            pieces, by_peer = found.pieces_ahead(units).repeat(widths), sums(widths, found.distinct)
        counts = count(pieces, urgent, by_peer)
        asked = sums(found.lengths, found.by_peer)
        of_ids = count(ids, classes_back(found.parts) if back else 1, asked).sum(0)
        return Shared(rows, units, pieces, np.vstack([counts, by_peer - counts.sum(0)]), asked, of_ids)

    def ahead(self, request: BagRequest, served: ServedBags, shared: Shared, told: Told) -> RowsAhead:
        largest, chunk_rows, found = told.largest, self.layout.chunk_rows, served.bags
        asked = request.bags.cut_distinct(request.bags.pieces_ahead(told.mine), largest, chunk_rows)
        pieces = found.pieces_ahead(shared.units)
        sent = found.cut_distinct(pieces, largest, chunk_rows)
        of_strips, from_start = pieces.repeat(found.distinct_widths), sent.moved([0] * len(sent.splits))
        return RowsAhead(
            merge=self._merge(request, asked),
            fetch=[
                Fetch(
                    lookup=self._lookup(found, pieces == piece, from_start[of_strips == piece], splits),
                    received=received,
                    most=most,
                )
                for piece, (splits, received, most) in enumerate(zip(sent.splits, asked.splits, told.most, strict=True))
            ],
        )

    def _lookup(self, found: Bags, distinct: np.ndarray, places: np.ndarray, splits: Splits) -> Lookup:
        """places: int32[q] where each strip of the bags `distinct`, bool[V], travels."""
        call = self._kernel_call(found, found.first(distinct), None)
        index = np.empty_like(call.strips)
        index[places] = call.strips
        return Lookup(index=torch.from_numpy(index), splits=splits, **call.arguments(found, self.layout))

    def _merge(self, request: BagRequest, asked: Cut) -> BagMerge:
        """asked: of the strips of distinct bags."""
        found, owners, strips = request.bags, self._pooling.owners, row_strips(self.layout)
        place = asked.places[spread(starts_of(found.distinct_widths)[found.slots], found.widths)]
        index = np.full((owners, request.ends[-1] * strips), len(asked.places))
        owner = np.arange(self.layout.world_size) % owners
        index[owner.repeat(found.strips), request.local] = place
        return BagMerge(
            starts=asked.starts,
            index=torch.from_numpy(index),
            ends=request.ends,
            strips=strips,
            added=None if owners == 1 else _sums(request.ends, self.layout),
        )

    def back(self, request: BagRequest, served: ServedBags, shared: Shared, told: Told) -> Back:
        """The gradients of all bags travel. An id is updated with its row's class."""
        chunk_rows, found = self.layout.chunk_rows, request.bags
        ids = take(shared.rows, served.rows.numbers)
        sent = found.cut(found.pieces_back(told.mine[found.slots]), told.largest, chunk_rows)
        came = cut(shared.pieces, pieces_back(found.parts), served.bags.strips, told.largest, chunk_rows)
        index = np.empty_like(request.local)
        index[sent.places] = request.local
        ends = [end * row_strips(self.layout) for end in request.ends]
        return Back(
            ends=ends,
            pieces=go_back(index, sent, came, told, ends),
            starts=came.starts,
            applies=[
                self._apply(served, came.places, ids == of_class) for of_class in range(classes_back(found.parts) + 1)
            ],
        )

    def _apply(self, served: ServedBags, came: np.ndarray, taken: np.ndarray) -> Apply:
        """Of the ids `taken`, bool[N]. came: where the gradient of each strip is, once all have come.

        Bags without an id in the call get some gradient: it reaches no row.
        """
        found, chosen = served.bags, served.classes(np.where(taken, 0, 1)) == 0
        call = self._kernel_call(found, chosen, taken)
        index = np.zeros(call.samples * self._widths.sum(), np.int64)
        index[call.strips] = came[chosen.repeat(found.widths)]
        shares = None
        if self._pooling.mean:
            shares = _floats((1 / found.lengths.astype(np.float32)).repeat(found.lengths), call.ids)
        return Apply(index=torch.from_numpy(index), shares=shares, **call.arguments(found, self.layout))

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


def _sums(ends: list[int], layout: GroupLayout) -> list[list[Added]]:
    """[k] A sum has the bits that it has in the output of the whole step."""
    pooling, samples = pooled(layout), ends[-1]
    by_part: list[list[Added]] = []
    for start, end in zip([0, *ends], ends, strict=False):
        by_part.append([])
        for of_host in pooling.of_hosts:
            columns = sum(of_host) * layout.dim
            mine, all_ranks = samples * columns, samples * columns * layout.world_size
            first = pooling.turns[layout.rank] * mine + start * columns
            of_part = (end - start) * columns
            by_part[-1].append(
                Added(columns, regions(first, of_part, all_ranks, pooling.owners, layout.dtype.itemsize))
            )
    return by_part


def pooled(layout: GroupLayout) -> Pooling:
    assert layout.pooling is not None
    return layout.pooling


def row_strips(layout: GroupLayout) -> int:
    """Of a requester: strips of a sample in the output."""
    return sum(map(sum, pooled(layout).of_hosts))


def _floats(values: np.ndarray | None, which: np.ndarray) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values[which])


def spread(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: for every i the numbers first[i], first[i] + 1, ..., lengths[i] of them."""
    return (first - starts_of(lengths)).repeat(lengths) + np.arange(lengths.sum())
