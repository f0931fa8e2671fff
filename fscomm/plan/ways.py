"""How the rows, or the pooled vectors, of one class travel: what is sent, what is read and what is updated.

A *strip* is what has one place on the wire: a row; or, of a pooled vector, as many columns as divide the width of every
table of the group. Letters: n strips or ids of the class, W peers, F features of an owner, D columns of a strip.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.sharding_group import GroupLayout

_ONE_EACH = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Both classes of what travels between this rank and its peers, by peer.

    Attributes:
        places: int32[n] where each stands as it travels, the collision class before the exclusive one.
        total: of the collision class.
        collision: [1][W], exclusive: [chunks][W] how many travel.
    """

    places: np.ndarray
    total: int
    collision: list[list[int]]
    exclusive: list[list[int]]


def cut(urgent: np.ndarray, lengths: np.ndarray, largest: int, step: int, slots: np.ndarray = _ONE_EACH) -> Cut:
    """Cut the exclusive class into exchanges of about `step` strips each from all peers together.

    urgent: bool[U] what is in the collision class; entry i of those that travel is if urgent[slots[i]]. slots:
    int32[n], by default i for entry i. lengths: int64[W] entries by peer.
    largest: the most of the exclusive class that one rank has to do with, those of its own left out. It is the same on
    all ranks, so all cut into equally many parts: every pair of ranks cuts its strips into that many, as equal as can
    be. The collision class stays in one piece: nothing more urgent waits for the wire.
    """
    splits = np.empty((exchanges(largest, step), len(lengths)), np.int64)
    places, counts = np.empty(lengths.sum(), np.int32), count(urgent, lengths, slots)
    wire_kernels.cut(urgent, slots, lengths, counts, splits, places)
    return Cut(places=places, total=int(counts.sum()), collision=[counts.tolist()], exclusive=splits.tolist())


def exchanges(largest: int, step: int) -> int:
    """Into how many `cut` cuts the exclusive class."""
    return max(math.ceil(largest / step), 1)


def count(flags: np.ndarray, lengths: np.ndarray, slots: np.ndarray = _ONE_EACH) -> np.ndarray:
    """int64[W] how many entries of each peer are flagged; as in `cut`."""
    counts = np.empty_like(lengths)
    wire_kernels.count(flags, slots, lengths, counts)
    return counts


class Most(NamedTuple):
    """No rank sends another one more strips than these in an exchange of the class. The same on every rank."""

    collision: int
    exclusive: int


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
class PassOn:
    """Requester: rows of one class that came to one rank of a host, on their way to its other ranks.

    Attributes:
        index: int64[n] of the rows that came to this rank from owners, those that it passes on.
        sent, received: [chunks][W] to and from each rank.
    """

    index: torch.Tensor
    sent: list[list[int]]
    received: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Requester: how the rows received in both classes become the local output.

    Attributes:
        exclusive, collision: [chunks][W] rows from each owner, which fill one buffer in this order.
        index: int64[N] the row of the buffer that is local output i.
        passed_on: how many more rows of each class ranks of the same host pass on; they stand behind those of owners.
    """

    exclusive: list[list[int]]
    collision: list[list[int]]
    index: torch.Tensor
    passed_on: tuple[int, int] = (0, 0)

    @property
    def exclusive_total(self) -> int:
        return sum(map(sum, self.exclusive)) + self.passed_on[0]

    @property
    def collision_total(self) -> int:
        return sum(map(sum, self.collision)) + self.passed_on[1]

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        """[E + C, row width] to be filled with what is received, exclusive strips first."""
        total = self.exclusive_total + self.collision_total
        return torch.empty(total, layout.row_width, dtype=layout.dtype, device=where)

    def output(self, buffer: torch.Tensor) -> torch.Tensor:
        """[N, D] the rows in the order of the ids that asked for them."""
        return buffer.index_select(0, self.index)


def of_classes(values: np.ndarray, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the collision class, `total` of them, and those of the exclusive class."""
    return torch.from_numpy(values[:total]), torch.from_numpy(values[total:])


def sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: of consecutive `values`, so many each."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """int64: where each of consecutive pieces begins."""
    return np.cumsum(lengths) - lengths


def take(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """values[index]; index: int32."""
    out = np.empty(len(index), values.dtype)
    wire_kernels.take(values, index, out)
    return out


def segments(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Pieces of `source`, one behind the other. starts, lengths: int64, of one shape."""
    out = np.empty(lengths.sum(), source.dtype)
    wire_kernels.gather_segments(source, starts.ravel(), lengths.ravel(), out)
    return out
