"""The plan of a pooled group. The requester adds parts of vectors up as plain training would: table-row-wise and grid,
host by host, each of which has columns of its own in the output.

Numbers: samples up to the end of each part, whether ids are weighted, ids. Words: lengths (int32), weights (float32),
ids, each rounded up to whole words.

N ids, I bags, U distinct bags, W peers, F features of an owner, k parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.bags import kernels
from fscomm.bags.bag_ids import BagIds, bag_ids, whole_step
from fscomm.bags.gloo_order import Region, add, regions
from fscomm.plan.arrays import segments, spread, starts_of, sums, take
from fscomm.plan.group_plan import Apply, AskedIds, Buckets, GroupPlan, Merge, Request, Served, Shared
from fscomm.plan.kernel_calls import KernelCall, bags_of_kernels
from fscomm.plan.peer_ids import unit_classes_back
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.shared_rows import OwnerRows


@dataclass(frozen=True, slots=True, kw_only=True)
class BagRequest(Request):
    """lengths: int32 by owner, feature and sample. samples: [k] the sample at which each part ends; the last is B."""

    lengths: np.ndarray
    samples: list[int]


class Summed(NamedTuple):
    """How `columns` of the output, of all samples, are added up."""

    columns: int
    regions: list[Region]


@dataclass(frozen=True, slots=True, kw_only=True)
class BagMerge(Merge):
    """Requester: a strip of zeros, for empty bags, follows those that are received.

    Attributes:
        index: int64[A, n] for each of A parts of vectors that are added up.
        columns: of all features.
        summed: [k] how vectors are added up, columns by columns; None where there is one.
    """

    columns: int
    summed: list[list[Summed]] | None

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        buffer = torch.empty(self.strips + 1, layout.row_width, dtype=layout.dtype, device=where)
        buffer[self.strips] = 0
        return buffer

    def output(self, buffer: torch.Tensor, part: int) -> torch.Tensor:
        """[B of the part, columns] the vectors of all features."""
        here = slice(self.ends[part - 1] if part else 0, self.ends[part])
        vectors = [buffer.index_select(0, index[here]).view(-1, self.columns) for index in self.index]
        if self.summed is None:
            return vectors[0]
        of_part = self.summed[part]
        given = [each.split([summed.columns for summed in of_part], dim=1) for each in vectors]
        totals = [
            add([vector.flatten() for vector in columns], summed.regions).view(len(vectors[0]), summed.columns)
            for summed, *columns in zip(of_part, *given, strict=True)
        ]
        return totals[0] if len(totals) == 1 else torch.cat(totals, dim=1)


class BagPlan(GroupPlan):
    def __init__(self, layout: GroupLayout) -> None:
        super().__init__(layout)
        self._pooling = pooling_of(layout)
        self._features = int(layout.features[layout.rank])
        self._widths = np.array(self._pooling.strips[layout.rank], np.int64)  # [F] strips of this owner's features

    def request(self, parts: Sequence[AskedIds]) -> BagRequest:
        layout, pooling = self.layout, self._pooling
        lengths, ids, weights = whole_step(parts)
        ends = np.cumsum([of_part.lengths.shape[1] for of_part in parts if of_part.lengths is not None])
        widths = np.array([strips for of_owner in pooling.strips for strips in of_owner], np.int64)
        samples = np.full(layout.world_size, ends[-1])
        found = bag_ids(
            lengths.ravel(), layout.features, samples, widths, ids, weights, np.tile(ends, (layout.world_size, 1))
        )
        of_hosts = np.repeat(starts_of(np.array([sum(of_host) for of_host in pooling.of_hosts])), pooling.owners)
        shift = of_hosts - starts_of(sums(widths, layout.features))
        inside = starts_of(widths) + shift.repeat(
            layout.features
        )  # where each feature begins in a sample of the output
        columns = inside[starts_of(layout.features).repeat(found.items) + found.features]
        return BagRequest(
            ids=found,
            counts=sums(lengths.ravel(), layout.features * ends[-1]),
            lengths=lengths.ravel(),
            local=spread(found.samples * strips_of_sample(layout) + columns, found.widths),
            ends=(ends * strips_of_sample(layout)).tolist(),
            samples=ends.tolist(),
        )

    def numbers_to(self, parts: int) -> np.ndarray:
        return np.full(self.layout.world_size, parts + 2, np.int64)

    def numbers(self, request: BagRequest) -> np.ndarray:
        given = [*request.samples, _bags(request).weights is not None]
        same = np.tile(np.array(given, np.int64), (len(request.counts), 1))
        return np.column_stack([same, request.counts]).ravel()

    def words(self, request: BagRequest) -> tuple[np.ndarray, np.ndarray]:
        ids, weights, lengths = request.ids.ids, _bags(request).weights, request.lengths
        given = (lengths, np.zeros(1, np.int32), weights, ids)
        source = np.concatenate([part.view(np.int32) for part in given if part is not None])
        pieces = _halves(self.layout.features, request.samples[-1], weights is not None, request.counts)
        zero, first_weight, first_id = len(lengths), len(lengths) + 1, len(source) - 2 * len(ids)
        starts = np.cumsum(pieces, axis=0) - pieces + np.array([0, zero, first_weight, zero, first_id])
        starts[:, [1, 3]] = zero
        return segments(source, starts, pieces).view(np.int64), pieces.sum(1) // 2

    def words_from(self, numbers: np.ndarray, parts: int) -> np.ndarray:
        return _halves(self._features, *numbers[:, parts - 1 :].T).sum(1) // 2

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int) -> Served:
        """Irregular are also requests that differ in what all ranks must have alike."""
        ends = np.ascontiguousarray(numbers[:, :parts])
        samples, weighted, counts = np.ascontiguousarray(numbers[:, parts - 1 :].T)
        halves, pieces = words.view(np.int32), _halves(self._features, samples, weighted, counts)
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
        found = bag_ids(lengths, features, samples, widths, ids.view(np.int64), given, ends)
        return Served(ids=found, rows=rows, irregular=rows.irregular or not alike)

    def needed_later(self, served: Served) -> np.ndarray:
        later = np.ones(len(served.rows), np.uint8)
        later[served.rows.numbers[(served.ids.part_of == 0).repeat(_bags(served).lengths)]] = 0
        return later

    def units(self, served: Served, rows: np.ndarray) -> np.ndarray:
        classes = _most_urgent(_bags(served), take(rows, served.rows.numbers))
        return classes[served.ids.positions]

    def colliding(self, served: Served, rows: np.ndarray) -> int:
        return int(np.count_nonzero(take(rows, served.rows.numbers) == 0))

    def lookups(self, served: Served, shared: Shared, sent: Buckets) -> list[tuple[KernelCall, torch.Tensor]]:
        ids, index = _bags(served), np.empty(len(sent.places), np.int64)
        unit_strips = ids.widths[ids.positions]
        of_units = shared.strips.classes[starts_of(unit_strips)]
        calls = []
        for of in range(len(sent.counts)):
            chosen = np.zeros(len(ids.slots), np.bool_)
            chosen[ids.positions[of_units == of]] = True
            found = self._call(ids, chosen, None)
            index[sent.places[shared.strips.classes == of]] = found.strips
            calls.append(found.call)
        return list(zip(calls, sent.by_class(index), strict=True))

    def merge(self, request: BagRequest, asked: Buckets) -> BagMerge:
        ids, layout, owners = _bags(request), self.layout, self._pooling.owners
        unit_strips = ids.widths[ids.positions]
        place = asked.places[spread(starts_of(unit_strips)[ids.slots], ids.widths)]
        index = np.full((owners, request.ends[-1]), len(asked.places))
        owner = np.arange(layout.world_size) % owners
        index[owner.repeat(sums(ids.widths, ids.items)), request.local] = place
        return BagMerge(
            index=torch.from_numpy(index),
            ends=request.ends,
            strips=len(asked.places),
            columns=strips_of_sample(layout) * layout.row_width,
            summed=None if owners == 1 else _sums(request.samples, layout),
        )

    def applies(self, served: Served, shared: Shared, received: Buckets) -> list[Apply]:
        """An id is updated with its row's class, by the gradient of its bag, which has the most urgent class of it."""
        ids = take(shared.rows, served.rows.numbers)
        return [
            self._apply(_bags(served), received.places, ids == of)
            for of in range(unit_classes_back(served.ids.parts) + 1)
        ]

    def _apply(self, ids: BagIds, places: np.ndarray, taken: np.ndarray) -> Apply:
        """Of the ids `taken`, bool[N]. places: of the gradient of each strip.

        Bags without an id in the call get some gradient: it reaches no row.
        """
        chosen = _most_urgent(ids, np.where(taken, 0, 1)) == 0
        found = self._call(ids, chosen, taken)
        index = np.zeros(found.samples * self._widths.sum(), np.int64)
        index[found.strips] = places[chosen.repeat(ids.widths)]
        shares = None
        if self._pooling.mean:
            of_bags = (1 / ids.lengths.astype(np.float32)).repeat(ids.lengths)
            shares = torch.from_numpy(of_bags[found.ids])
        return Apply(call=found.call, index=torch.from_numpy(index), shares=shares)

    def _call(self, ids: BagIds, chosen: np.ndarray, taken: np.ndarray | None) -> "_Call":
        """`taken`: bool[N] which ids of the bags `chosen`, bool[I]; None: all."""
        pooling, widths, world_size = self._pooling, self._widths, self.layout.world_size
        numbers = np.flatnonzero(chosen)
        features = ids.features[numbers]
        sample_order = np.repeat(np.array(pooling.sample_order), ids.items)[numbers]
        by_feature = np.empty_like(numbers)
        kernels.by_bucket(features * world_size + sample_order, len(widths) * world_size, by_feature)
        counts = np.bincount(features, minlength=len(widths))
        samples = int(counts.max(initial=0))
        row = np.empty_like(numbers)
        row[by_feature] = np.arange(len(numbers)) - starts_of(counts).repeat(counts)
        each = ids.lengths if taken is None else np.diff(np.concatenate([[0], np.cumsum(taken)])[ids.starts])
        lengths = np.zeros(len(widths) * samples, np.int64)
        lengths[features * samples + row] = each[numbers]
        ordered = numbers[by_feature]
        which = spread(ids.starts[ordered], ids.lengths[ordered])
        which = which if taken is None else which[taken[which]]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        weights = None if ids.weights is None else torch.from_numpy(ids.weights[which])
        bags = bags_of_kernels(self.layout, offsets, samples)
        return _Call(
            call=KernelCall(ids=torch.from_numpy(ids.ids[which]), bags=bags, weights=weights),
            ids=which,
            samples=samples,
            strips=spread(row * widths.sum() + starts_of(widths)[features], ids.widths[numbers]),
        )


class _Call(NamedTuple):
    """A fused kernel wants equally many bags of every feature: B, of the feature with the most; the rest are empty.

    call: of the kernels. ids: int64[n] which ids, by feature. samples: B. strips: int64[q] where the strips of the bags
    are in what the kernels give, in wire order.
    """

    call: KernelCall
    ids: np.ndarray
    samples: int
    strips: np.ndarray


def _bags(side: Request | Served) -> BagIds:
    assert isinstance(side.ids, BagIds)
    return side.ids


def _most_urgent(ids: BagIds, classes: np.ndarray) -> np.ndarray:
    """uint8[I] the most urgent class in each bag; classes: of each id, [N]."""
    starts = ids.starts[:-1]
    return np.minimum.reduceat(classes, starts) if len(starts) else np.empty(0, np.uint8)


def _halves(features: Any, samples: Any, weighted: Any, ids: np.ndarray) -> np.ndarray:
    """int64[W, 5] how many halves of words a requester sends an owner: lengths, a zero if that makes words whole,
    weights, a zero likewise, ids. Arguments: int64[W], or one number for all peers."""
    lengths, weights = features * samples, weighted * ids
    return np.stack([lengths, lengths % 2, weights, weights % 2, 2 * ids], axis=1)


def _sums(samples: list[int], layout: GroupLayout) -> list[list[Summed]]:
    """[k] A sum is bitwise that of the output of the whole step. samples: as in `BagRequest`."""
    pooling = pooling_of(layout)
    by_part: list[list[Summed]] = []
    for start, end in zip([0, *samples], samples, strict=False):
        by_part.append([])
        for of_host in pooling.of_hosts:
            columns = sum(of_host) * layout.dim
            mine, all_ranks = samples[-1] * columns, samples[-1] * columns * layout.world_size
            first = pooling.sample_order[layout.rank] * mine + start * columns
            of_part = (end - start) * columns
            summed = regions(first, of_part, all_ranks, pooling.owners, layout.dtype.itemsize)
            by_part[-1].append(Summed(columns, summed))
    return by_part


def pooling_of(layout: GroupLayout) -> Pooling:
    assert layout.pooling is not None
    return layout.pooling


def strips_of_sample(layout: GroupLayout) -> int:
    """Of a requester, in the output."""
    return sum(map(sum, pooling_of(layout).of_hosts))
