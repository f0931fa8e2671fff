"""The plan of one step of a sharding group in torch operations: what `fscomm.plan.routes` did before it had kernels.

Kept to compare with: both must say the same of every id.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import by_sorting
import numpy as np
import torch

from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import Apply, Lookup, Merge, SendGradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How the rows of a class are cut, so that all ranks issue equally many exchanges.

    Attributes:
        order: int64 or None for the identity: row i on the wire is row order[i] of the class by peer.
        splits: [chunks][W] rows.
    """

    order: torch.Tensor | None
    splits: list[list[int]]


def chunks(counts: list[int], largest: int | None, step: int) -> Chunks:
    """Cut `counts` rows by peer, so that an exchange has about `step` of them from all peers together.

    largest: the most of this class that one rank has to do with, those of its own left out. It is the same on all
    ranks, so all cut into equally many parts: every pair of ranks cuts its rows into that many, as equal as can be.
    With None they stay in one piece: these are collision rows, and nothing more urgent waits for the wire.
    """
    if largest is None:
        return Chunks(order=None, splits=[counts])
    number = max(math.ceil(largest / step), 1)
    if number == 1:
        return Chunks(order=None, splits=[counts])
    lengths = torch.tensor(counts)
    ends = torch.arange(number + 1)[:, None] * lengths // number
    peers = torch.arange(len(counts)).repeat_interleave(lengths)
    inside = torch.arange(len(peers)) - (torch.cumsum(lengths, 0) - lengths)[peers]
    part = ((inside + 1) * number - 1) // lengths[peers]
    return Chunks(order=torch.argsort(part * len(counts) + peers, stable=True), splits=ends.diff(dim=0).tolist())


def per_peer(chosen: torch.Tensor, lengths: list[int]) -> list[int]:
    """How many of the entries of each peer are chosen."""
    before = torch.zeros(len(chosen) + 1, dtype=torch.int64)
    torch.cumsum(chosen, 0, out=before[1:])
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return before[ends].diff().tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The ids between this rank and its peers, in wire order.

    Attributes:
        ids: int64[N].
        counts: [W][F of the peer as owner, or of this rank] occurrences by peer and feature.
        occurrences: [W] their sums.
        positions: int64[U] where each distinct row occurs first.
        slots: int64[N] the distinct row of each occurrence.
        rows: [W] distinct rows by peer.
    """

    ids: torch.Tensor
    counts: list[list[int]]
    occurrences: list[int]
    positions: torch.Tensor
    slots: torch.Tensor
    rows: list[int]


def wire(ids: torch.Tensor, counts: list[list[int]], runs: Sequence[tuple[int, ...]]) -> Wire:
    """Number the distinct rows of `ids`; `runs[p]` says which features of peer p read one table."""
    segments: list[int] = []
    for given, lengths in zip(counts, runs, strict=True):
        start = 0
        for length in lengths:
            segments.append(sum(given[start : start + length]))
            start += length
    found = _first_occurrences(ids, segments)
    rows, start = [], 0
    for lengths in runs:
        rows.append(sum(found.counts[start : start + len(lengths)]))
        start += len(lengths)
    return Wire(
        ids=ids,
        counts=counts,
        occurrences=[sum(given) for given in counts],
        positions=found.positions,
        slots=found.slots,
        rows=rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What this rank asks of the owners in one step.

    Attributes:
        wire: peers are the owners.
        from_wire: int64[N] or None for the identity: local output i is occurrence from_wire[i].
        to_wire: its inverse.
    """

    wire: Wire
    from_wire: torch.Tensor | None
    to_wire: torch.Tensor | None


def request(ids: torch.Tensor, counts: list[list[int]], from_wire: torch.Tensor | None, layout: GroupLayout) -> Request:
    to_wire = None
    if from_wire is not None:
        from_wire = from_wire.long()
        to_wire = torch.empty_like(from_wire)
        to_wire[from_wire] = torch.arange(len(from_wire))
    return Request(wire=wire(ids, counts, layout.runs), from_wire=from_wire, to_wire=to_wire)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the ranks ask of this owner in one step.

    Attributes:
        wire: peers are the requesters.
        keys: int64[N] row number over all tables of this owner, by occurrence.
        order: int64[N] the occurrences by feature, then requester, then sample: the order of TorchRec's lookup, in
            which gradients of one row are added up.
        ends: int64[F + 1] where each feature starts and ends in `order`.
        irregular: an id lies outside its table.
    """

    wire: Wire
    keys: torch.Tensor
    order: torch.Tensor
    ends: torch.Tensor
    irregular: bool


def serve(ids: torch.Tensor, counts: list[list[int]], layout: GroupLayout) -> Served:
    runs = layout.runs[layout.rank]
    table_of = torch.arange(len(runs)).repeat_interleave(torch.tensor(runs, dtype=torch.int64))
    lengths = torch.tensor(counts, dtype=torch.int64).view(layout.world_size, len(table_of))  # [W, F]
    tables = table_of.repeat(layout.world_size).repeat_interleave(lengths.flatten())
    rows = torch.tensor(layout.rows, dtype=torch.int64)
    bases = torch.cumsum(rows, 0) - rows
    outside = (ids < 0) | (ids >= rows[tables])
    irregular = bool(outside.any())
    keys = (torch.where(outside, 0, ids) if irregular else ids) + bases[tables]
    starts = torch.cumsum(lengths.flatten(), 0).view_as(lengths) - lengths
    by_feature = lengths.T.flatten()
    shift = starts.T.flatten() - (torch.cumsum(by_feature, 0) - by_feature)
    order = shift.repeat_interleave(by_feature) + torch.arange(len(ids))
    ends = torch.zeros(len(table_of) + 1, dtype=torch.int64)
    torch.cumsum(lengths.sum(0), 0, out=ends[1:])
    return Served(
        wire=wire(ids, counts, [runs] * layout.world_size), keys=keys, order=order, ends=ends, irregular=irregular
    )


def send_gradients(request: Request, chosen: torch.Tensor, largest: int | None, chunk_rows: int) -> SendGradients:
    """`chosen`: bool[N] which occurrences, in wire order."""
    places = chosen.nonzero().squeeze(1)
    index = places if request.to_wire is None else request.to_wire[places]
    cut = chunks(per_peer(chosen, request.wire.occurrences), largest, chunk_rows)
    return SendGradients(index=index if cut.order is None else index[cut.order], splits=cut.splits)


def apply(served: Served, chosen: torch.Tensor, largest: int | None, chunk_rows: int) -> Apply:
    """`chosen`: bool[N] which occurrences, in wire order."""
    cut = chunks(per_peer(chosen, served.wire.occurrences), largest, chunk_rows)
    place = torch.cumsum(chosen, 0) - 1
    if cut.order is not None:
        moved = torch.empty_like(cut.order)
        moved[cut.order] = torch.arange(len(moved))
        place = moved[place] if len(moved) else place
    taken = chosen[served.order]
    order = served.order[taken]
    before = torch.zeros(len(taken) + 1, dtype=torch.int64)
    torch.cumsum(taken, 0, out=before[1:])
    return Apply(splits=cut.splits, index=place[order], ids=served.wire.ids[order], offsets=before[served.ends])


def lookup(served: Served, chosen: torch.Tensor, largest: int | None, layout: GroupLayout) -> Lookup:
    """`chosen`: bool[U] which distinct rows."""
    places = served.wire.positions[chosen]
    cut = chunks(per_peer(chosen, served.wire.rows), largest, layout.chunk_rows)
    if cut.order is not None:
        places = places[cut.order]
    keys = served.keys[places]
    found = _first_occurrences(keys, [len(keys)])
    distinct = keys[found.positions]
    bases = [0]
    for rows in layout.rows:
        bases.append(bases[-1] + rows)
    index = found.slots
    if len(layout.rows) > 1:
        table = torch.bucketize(distinct, torch.tensor(bases[1:]), right=True)
        by_table = torch.argsort(table, stable=True)
        moved = torch.empty_like(by_table)
        moved[by_table] = torch.arange(len(moved))
        index = moved[found.slots] if len(moved) else index
        distinct = distinct[by_table]
        per_table = torch.bincount(table, minlength=len(layout.rows)).tolist()
        distinct = distinct - torch.tensor(bases[:-1])[table[by_table]]
    else:
        per_table = [len(distinct)] * len(layout.rows)
    offsets = [0]
    for number, features in zip(per_table, layout.runs[layout.rank], strict=True):
        offsets += [offsets[-1] + number] * features  # all rows of a table as if its first feature had asked
    return Lookup(ids=distinct, offsets=torch.tensor(offsets), index=index, splits=cut.splits)


def merge(request: Request, shared: torch.Tensor, largest: int, chunk_rows: int) -> Merge:
    """`shared`: bool[U] which distinct rows are in the collision class."""
    exclusive = ~shared
    cut = chunks(per_peer(exclusive, request.wire.rows), largest, chunk_rows)
    collision = per_peer(shared, request.wire.rows)
    place = torch.empty(len(shared), dtype=torch.int64)
    total = len(shared) - sum(collision)
    if cut.order is None:
        place[exclusive] = torch.arange(total)
    else:
        place[exclusive.nonzero().squeeze(1)[cut.order]] = torch.arange(total)
    place[shared] = torch.arange(total, len(shared))
    index = place[request.wire.slots]
    if request.from_wire is not None:
        index = index[request.from_wire]
    return Merge(exclusive=cut.splits, collision=[collision], index=index)


class _Found(NamedTuple):
    positions: torch.Tensor
    slots: torch.Tensor
    counts: list[int]


def _first_occurrences(keys: torch.Tensor, segments: Sequence[int]) -> _Found:
    found = by_sorting.first_occurrences(keys.numpy(), np.array(segments, np.int64))
    return _Found(torch.from_numpy(found.positions), torch.from_numpy(found.slots), found.counts.tolist())
