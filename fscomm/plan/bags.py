"""What travels where in a group of pooled tables: one vector for each *bag*, the ids of one feature of one sample.

The wire order is by peer, then by feature, then by sample. Empty bags do not travel: their vectors are zero. A bag is
in the collision class of a step if any of its rows is shared with the step next to it. Its vector then travels
urgently, and so does its gradient: once, for all of its rows. The owner updates the shared rows at once, and keeps the
gradient for the other rows, which are updated with the exclusive class.

Bags of one id that are asked for more than once by a rank have the same vector. It travels once, as a *distinct* bag;
their gradients all travel, because to add them up before they travel would change the order of additions.

Row-wise, a bag here is the part of it that one owner has. The requester adds parts up as plain training would:
table-row-wise and grid, host by host, each of which has columns of its own in the output.

All tensors are in host memory. N ids, U bags, V distinct bags, Q strips, W peers, F features of an owner, P strips of a
sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fscomm.plan.gloo_order import Region, add, regions
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.shared_rows import first_occurrences
from fscomm.plan.ways import Apply, Lookup, Merge, SendGradients, chunks, inverse, spread

_UNIQUE = 1 << 62  # above all ids: the key of a bag that is like no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """The bags between this rank and its peers, in wire order, without empty ones.

    Attributes:
        ids: int64[N]. weights: float32[N] or None.
        starts: int64[U + 1] where each bag begins.
        features, samples: int64[U] numbers of the owner's feature and of the requester's sample.
        widths: int64[U] strips.
        by_peer: [W] bags. strips: [W] their strips.
        positions: int64[V] where each distinct bag is first. slots: int64[U] the distinct bag of each bag.
        distinct: [W] distinct bags.
    """

    ids: torch.Tensor
    weights: torch.Tensor | None
    starts: torch.Tensor
    features: torch.Tensor
    samples: torch.Tensor
    widths: torch.Tensor
    by_peer: list[int]
    strips: list[int]
    positions: torch.Tensor
    slots: torch.Tensor
    distinct: list[int]

    def first(self, chosen: torch.Tensor) -> torch.Tensor:
        """bool[U] the first bags of the distinct bags `chosen`, bool[V]."""
        found = torch.zeros(len(self.slots), dtype=torch.bool)
        found[self.positions[chosen]] = True
        return found

    def strips_per_peer(self, chosen: torch.Tensor) -> list[int]:
        """[W] strips of the bags `chosen`, bool[U]."""
        before = torch.zeros(len(chosen) + 1, dtype=torch.int64)
        torch.cumsum(chosen * self.widths, 0, out=before[1:])
        return before[torch.tensor([0, *self.by_peer]).cumsum(0)].diff().tolist()


def bags(
    lengths: Sequence[torch.Tensor], widths: Sequence[Sequence[int]], ids: torch.Tensor, weights: torch.Tensor | None
) -> Bags:
    """lengths: [W] int64[F, B] ids of each bag; widths: [W][F] strips of each feature."""
    found = [of_peer.nonzero() for of_peer in lengths]
    features, samples = torch.cat(found).unbind(1)
    sizes = torch.cat([of_peer.flatten() for of_peer in lengths])
    starts = torch.zeros(len(features) + 1, dtype=torch.int64)
    torch.cumsum(sizes[sizes > 0], 0, out=starts[1:])
    of_bags = [torch.tensor(each, dtype=torch.int64)[at[:, 0]] for each, at in zip(widths, found, strict=True)]
    keys = _UNIQUE + torch.arange(len(features))
    if weights is None:
        alone = (starts.diff() == 1).nonzero().squeeze(1)
        keys[alone] = ids[starts[alone]]
    of_feature = [int(count) for of_peer in lengths for count in (of_peer > 0).sum(1)]
    same = first_occurrences(keys, of_feature)
    per_feature = torch.tensor(same.counts, dtype=torch.int64).split([len(of_peer) for of_peer in lengths])
    return Bags(
        ids=ids,
        weights=weights,
        starts=starts,
        features=features,
        samples=samples,
        widths=torch.cat(of_bags),
        by_peer=[len(at) for at in found],
        strips=[int(of_peer.sum()) for of_peer in of_bags],
        positions=same.positions,
        slots=same.slots,
        distinct=[int(counts.sum()) for counts in per_feature],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BagRequest:
    """What this rank asks of the owners in one step.

    Attributes:
        bags: peers are the owners.
        counts: [W] ids. lengths: [W] int32[F, B].
        samples: B.
        local: int64[Q] where each strip belongs among the B * P strips of the output.
    """

    bags: Bags
    counts: list[int]
    lengths: list[torch.Tensor]
    samples: int
    local: torch.Tensor


def request(ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, layout: GroupLayout) -> BagRequest:
    """lengths: [F of all owners, B] in wire order."""
    pooling = pooled(layout)
    of_owner = list(lengths.long().split(layout.features_to))
    found = bags(of_owner, pooling.strips, ids, weights)
    start, starts = 0, []
    for of_host in pooling.of_hosts:
        starts += [np.cumsum([start, *of_host])[:-1]] * pooling.owners
        start += sum(of_host)
    columns = torch.cat(
        [
            torch.from_numpy(of_features)[of_bags].long()
            for of_features, of_bags in zip(starts, found.features.split(found.by_peer), strict=True)
        ]
    )
    return BagRequest(
        bags=found,
        counts=[int(each.sum()) for each in of_owner],
        lengths=[each.to(torch.int32) for each in of_owner],
        samples=lengths.shape[1],
        local=spread(found.samples * row_strips(layout) + columns, found.widths),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBags:
    """What the ranks ask of this owner in one step.

    Attributes:
        bags: peers are the requesters.
        keys: int64[N] row number over all tables of this owner, by id.
        irregular: an id lies outside its table, or ranks differ in what they must have alike.
    """

    bags: Bags
    keys: torch.Tensor
    irregular: bool

    def shared_bags(self, shared: torch.Tensor) -> torch.Tensor:
        """bool[U] bags with a shared row; `shared`: bool[N] by id."""
        starts = self.bags.starts[:-1].numpy()
        return torch.from_numpy(np.logical_or.reduceat(shared.numpy(), starts)) if len(starts) else shared[:0]


def serve(
    ids: torch.Tensor, lengths: list[torch.Tensor], weights: torch.Tensor | None, layout: GroupLayout, *, alike: bool
) -> ServedBags:
    """lengths: [W] int32[F, B of the requester]. alike: the ranks have alike what they must."""
    runs = layout.runs[layout.rank]
    table_of = torch.arange(len(runs)).repeat_interleave(torch.tensor(runs, dtype=torch.int64))
    found = bags(
        [each.long() for each in lengths], [pooled(layout).strips[layout.rank]] * layout.world_size, ids, weights
    )
    tables = table_of[found.features].repeat_interleave(found.starts.diff())
    rows = torch.tensor(layout.rows, dtype=torch.int64)
    outside = (ids < 0) | (ids >= rows[tables])
    irregular = bool(outside.any())
    keys = (torch.where(outside, 0, ids) if irregular else ids) + (torch.cumsum(rows, 0) - rows)[tables]
    return ServedBags(bags=found, keys=keys, irregular=irregular or not alike)


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


def send_gradients(request: BagRequest, chosen: torch.Tensor, largest: int | None, chunk_rows: int) -> SendGradients:
    """`chosen`: bool[U] which bags; `largest`: see `chunks`."""
    index = request.local[chosen.repeat_interleave(request.bags.widths)]
    cut = chunks(request.bags.strips_per_peer(chosen), largest, chunk_rows)
    return SendGradients(index=index if cut.order is None else index[cut.order], splits=cut.splits)


def lookup(served: ServedBags, chosen: torch.Tensor, largest: int | None, layout: GroupLayout) -> BagLookup:
    """`chosen`: bool[V] which distinct bags."""
    found = served.bags
    chosen = found.first(chosen)
    call = _kernel_call(found, chosen, None, layout)
    cut = chunks(found.strips_per_peer(chosen), largest, layout.chunk_rows)
    return BagLookup(
        ids=found.ids[call.ids],
        offsets=call.offsets,
        weights=None if found.weights is None else found.weights[call.ids],
        index=call.strips if cut.order is None else call.strips[cut.order],
        splits=cut.splits,
    )


def apply(served: ServedBags, shared: torch.Tensor, largest: int, layout: GroupLayout, *, collision: bool) -> BagApply:
    """`shared`: bool[N] which ids lie on shared rows."""
    found, urgent = served.bags, served.shared_bags(shared)
    kept = chunks(found.strips_per_peer(urgent), None, layout.chunk_rows)
    cut = kept if collision else chunks(found.strips_per_peer(~urgent), largest, layout.chunk_rows)
    taken = shared if collision else ~shared
    call = _kernel_call(found, _any(taken, found), taken, layout)
    is_urgent = urgent.repeat_interleave(found.widths)
    came = torch.empty(len(is_urgent), dtype=torch.int64)  # where the gradient of each strip is
    came[is_urgent] = torch.arange(sum(kept.splits[0]))
    total = sum(kept.splits[0])
    if not collision:
        deferred = torch.arange(len(is_urgent) - total)
        came[~is_urgent] = total + (deferred if cut.order is None else inverse(cut.order))
        total = len(is_urgent)
    index = torch.full((call.samples * sum(pooled(layout).strips[layout.rank]),), total)
    index[call.strips] = came[call.bags.repeat_interleave(found.widths)]
    shares = None
    if pooled(layout).mean:
        lengths = found.starts.diff()
        shares = (1.0 / lengths.to(torch.float32)).repeat_interleave(lengths)[call.ids]
    return BagApply(
        splits=cut.splits,
        index=index,
        ids=found.ids[call.ids],
        offsets=call.offsets,
        weights=None if found.weights is None else found.weights[call.ids],
        shares=shares,
    )


def merge(request: BagRequest, shared: torch.Tensor, largest: int, layout: GroupLayout) -> BagMerge:
    """`shared`: bool[V] which distinct bags are in the collision class."""
    found, owners = request.bags, pooled(layout).owners
    deferred, urgent = found.first(~shared), found.first(shared)
    cut = chunks(found.strips_per_peer(deferred), largest, layout.chunk_rows)
    collision = found.strips_per_peer(urgent)
    total = int(found.widths[deferred].sum())
    place = torch.full((int(found.widths.sum()),), -1)  # in the buffer, of the strips of first bags
    place[deferred.repeat_interleave(found.widths)] = torch.arange(total) if cut.order is None else inverse(cut.order)
    place[urgent.repeat_interleave(found.widths)] = total + torch.arange(sum(collision))
    strip_starts = torch.cumsum(found.widths, 0) - found.widths
    place = place[spread(strip_starts[found.positions[found.slots]], found.widths)]
    strips = row_strips(layout)
    index = torch.full((owners, request.samples * strips), total + sum(collision))
    part = torch.arange(layout.world_size) % owners
    index[part.repeat_interleave(torch.tensor(found.strips)), request.local] = place
    return BagMerge(
        exclusive=cut.splits,
        collision=[collision],
        index=index,
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

    ids: torch.Tensor
    offsets: torch.Tensor
    samples: int
    bags: torch.Tensor
    strips: torch.Tensor


def _kernel_call(found: Bags, chosen: torch.Tensor, taken: torch.Tensor | None, layout: GroupLayout) -> _KernelCall:
    """`taken`: bool[N] which ids of the bags `chosen`, bool[U]; None: all."""
    pooling = pooled(layout)
    widths = pooling.strips[layout.rank]
    numbers = chosen.nonzero().squeeze(1)
    features = found.features[numbers]
    turns = torch.tensor(pooling.turns).repeat_interleave(torch.tensor(found.by_peer))[numbers]
    by_feature = torch.argsort(features * layout.world_size + turns, stable=True)
    counts = torch.bincount(features, minlength=len(widths))
    samples = int(counts.max()) if len(widths) else 0
    row = torch.empty_like(by_feature)
    row[by_feature] = torch.arange(len(numbers)) - (torch.cumsum(counts, 0) - counts).repeat_interleave(counts)
    ends = found.starts
    if taken is not None:
        before = torch.zeros(len(taken) + 1, dtype=torch.int64)
        torch.cumsum(taken, 0, out=before[1:])
        ends = before[found.starts]
    lengths = torch.zeros(len(widths) * samples, dtype=torch.int64)
    lengths[features * samples + row] = ends.diff()[numbers]
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    ordered = numbers[by_feature]
    ids = spread(found.starts[ordered], found.starts.diff()[ordered])
    columns = torch.tensor([0, *widths]).cumsum(0)[features]
    return _KernelCall(
        ids=ids if taken is None else ids[taken[ids]],
        offsets=offsets,
        samples=samples,
        bags=chosen,
        strips=spread(row * sum(widths) + columns, found.widths[numbers]),
    )


def _any(taken: torch.Tensor, found: Bags) -> torch.Tensor:
    """bool[U] bags of which an id is `taken`, bool[N]."""
    before = torch.zeros(len(taken) + 1, dtype=torch.int64)
    torch.cumsum(taken, 0, out=before[1:])
    return before[found.starts].diff() > 0
