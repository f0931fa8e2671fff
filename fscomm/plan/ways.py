"""How the rows, or the pooled vectors, of one class travel: what is sent, what is read and what is updated.

A *strip* is what has one place on the wire: a row; or, of a pooled vector, as many columns as divide the width of every
table of the group. Letters: n strips or ids of the class, W peers, F features of an owner, D columns of a strip.
"""

import math
from dataclasses import dataclass

import torch

from fscomm.plan.sharding_group import GroupLayout


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SendGradients:
    """Requester: the gradient of one class.

    Attributes:
        index: int64[n] rows of the local gradient, as they go on the wire.
        splits: [chunks][W] to each owner.
    """

    index: torch.Tensor
    splits: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Owner: the gradient of one class.

    Attributes:
        splits: [chunks][W] from each requester.
        index: int64[n] rows of what was received, in the order of the lookup.
        ids, offsets: int64[n], int64[F + 1] the rows they belong to. Offsets stay in host memory.
    """

    splits: list[list[int]]
    index: torch.Tensor
    ids: torch.Tensor
    offsets: torch.Tensor

    @property
    def total(self) -> int:
        """Strips that come."""
        return sum(map(sum, self.splits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Owner: the rows of one class for the next step.

    Attributes:
        ids, offsets: int64[u], int64[F + 1] to look up, every row once, by table. Offsets stay in host memory.
        index: int64[n] which of them go on the wire.
        splits: [chunks][W] to each requester.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    index: torch.Tensor
    splits: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Requester: how the rows received in both classes become the local output.

    Attributes:
        exclusive, collision: [chunks][W] rows from each owner, which fill one buffer in this order.
        index: int64[N] the row of the buffer that is local output i.
    """

    exclusive: list[list[int]]
    collision: list[list[int]]
    index: torch.Tensor

    @property
    def exclusive_total(self) -> int:
        return sum(map(sum, self.exclusive))

    @property
    def collision_total(self) -> int:
        return sum(map(sum, self.collision))

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        """[E + C, row width] to be filled with what is received, exclusive strips first."""
        total = self.exclusive_total + self.collision_total
        return torch.empty(total, layout.row_width, dtype=layout.dtype, device=where)

    def output(self, buffer: torch.Tensor) -> torch.Tensor:
        """[N, D] the rows in the order of the ids that asked for them."""
        return buffer.index_select(0, self.index)


def of_others(counts: list[int], rank: int) -> int:
    """Of `counts` by peer, without those of `rank` itself."""
    return sum(counts) - counts[rank]


def per_peer(chosen: torch.Tensor, lengths: list[int]) -> list[int]:
    """How many of the entries of each peer are chosen."""
    before = torch.zeros(len(chosen) + 1, dtype=torch.int64)
    torch.cumsum(chosen, 0, out=before[1:])
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return before[ends].diff().tolist()


def spread(first: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """int64: for every i the numbers first[i], first[i] + 1, ..., lengths[i] of them."""
    ends = torch.cumsum(lengths, 0)
    return (first - (ends - lengths)).repeat_interleave(lengths) + torch.arange(int(ends[-1]) if len(ends) else 0)


def inverse(order: torch.Tensor) -> torch.Tensor:
    """int64: where each entry of a permutation stands."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places
