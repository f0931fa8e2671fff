"""How rows, or pooled vectors, travel: what is sent, what is read and what is updated, in each class.

A *strip* is what has one place on the wire: a row; or, of a pooled vector, as many columns as divide the width of every
table of the group. Letters: n strips or ids of the class, W peers, F features of an owner, D columns of a strip.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.sharding_group import GroupLayout

Splits = list[list[int]]
"""[chunks][W] strips to each rank, or from each."""
T = TypeVar("T")
_ONE_EACH = np.empty(0, np.int32)


class ByClass(NamedTuple, Generic[T]):
    """The same of both classes of rows: those that two steps share, and all others."""

    collision: T
    exclusive: T


def of_classes(make: Callable[..., T], **given: Iterable[Any]) -> ByClass[T]:
    """What `make` makes of each class; given: what it is given, by class."""
    return ByClass(*(make(**dict(zip(given, of_class, strict=True))) for of_class in zip(*given.values(), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Both classes of what travels between this rank and its peers, by peer.

    Attributes:
        places: int32[n] where each stands as it travels, the collision class before the exclusive one.
        totals: how many travel.
        splits: how many travel to, or from, each peer; the collision class has one chunk.
    """

    places: np.ndarray
    totals: ByClass[int]
    splits: ByClass[Splits]

    def moved(self, *, collision: int = 0, exclusive: int = 0) -> np.ndarray:
        """int[n] the places, if the classes begin there."""
        urgent = self.totals.collision
        return np.where(self.places < urgent, self.places + collision, self.places - urgent + exclusive)

    def by_class(self, values: np.ndarray) -> ByClass[torch.Tensor]:
        """`values`, [n] in the order of places."""
        return halves(values, self.totals.collision)


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
    total = int(counts.sum())
    return Cut(
        places=places,
        totals=ByClass(total, len(places) - total),
        splits=ByClass([counts.tolist()], splits.tolist()),
    )


def exchanges(largest: int, step: int) -> int:
    """Into how many `cut` cuts the exclusive class."""
    return max(math.ceil(largest / step), 1)


def count(flags: np.ndarray, lengths: np.ndarray, slots: np.ndarray = _ONE_EACH) -> np.ndarray:
    """int64[W] how many entries of each peer are flagged; as in `cut`."""
    counts = np.empty_like(lengths)
    wire_kernels.count(flags, slots, lengths, counts)
    return counts


def halves(values: np.ndarray, total: int) -> ByClass[torch.Tensor]:
    """`values` that stand with those of the collision class, `total` of them, first."""
    return ByClass(torch.from_numpy(values[:total]), torch.from_numpy(values[total:]))


class Shared(NamedTuple):
    """What an owner serves that two steps have in common: of its rows bool[R], and of units bool[U].

    ids: int64[W] those of each requester; colliding: int64[W] those of them on shared rows.
    """

    rows: np.ndarray
    units: np.ndarray
    ids: np.ndarray
    colliding: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a rank knows of the units that it asked for once all owners told it, and what all ranks know alike.

    Attributes:
        mine: bool[U] which of the units are in the collision class.
        asking: bool[U, H] which ranks of this host ask for them; None unless rows go in two levels.
        largest: the most exclusive strips that one owner sends to all others, or gets from them.
        most: no rank sends another one more strips in an exchange of the class.
        most_passed: nor passes more on to one.
    """

    mine: np.ndarray
    asking: np.ndarray | None
    largest: int
    most: ByClass[int]
    most_passed: ByClass[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Owner: the rows, or vectors, of one class for the next step, as the fused kernels read them.

    Attributes:
        ids, offsets: int64[u] to look up, by feature; int64[F + 1] where the ids of each feature begin, or int64
            [F * B + 1] where those of each of B bags of a feature do. Offsets stay in host memory.
        index: int64[n] which of the strips that the kernels give go on the wire.
        splits: to each requester.
        weights: float32[u] of ids in bags, or None.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    index: torch.Tensor
    splits: Splits
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOn:
    """Requester: rows of one class that came to one rank of a host, on their way to its other ranks.

    Attributes:
        index: int64[n] of the rows that came to this rank from owners, those that it passes on.
        sent, received: to and from each rank.
        most: as in `Told`.
    """

    index: torch.Tensor
    sent: Splits
    received: Splits
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How what one class needs comes from the owners.

    Attributes:
        lookup: what this rank sends as an owner. received: from each owner.
        most: as in `Told`.
        passed_on: if rows go in two levels.
    """

    lookup: Lookup
    received: Splits
    most: int
    passed_on: PassOn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Requester: how the rows received in both classes become the local output.

    Attributes:
        totals: rows of each class, which fill one buffer, the exclusive class first; inside a class those of owners
            come first, then those that ranks of the same host pass on.
        index: int64[N] the row of the buffer that is local output i.
    """

    totals: ByClass[int]
    index: torch.Tensor

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        """[E + C, row width] to be filled with what is received, exclusive strips first."""
        return torch.empty(sum(self.totals), layout.row_width, dtype=layout.dtype, device=where)

    def output(self, buffer: torch.Tensor) -> torch.Tensor:
        """[N, D] the rows in the order of the ids that asked for them."""
        return buffer.index_select(0, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAhead:
    """How the rows of a group travel before a step."""

    merge: Merge
    fetch: ByClass[Fetch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Owner: the gradient of one class, and the rows that it updates.

    Attributes:
        splits: from each requester.
        index: int64[n] which strips of what was received, in the order of the look-up. In bags, int64[B * P]: of the
            collision strips kept, then of those received with this class.
        ids, offsets, weights: as in `Lookup`; of a bag, only the rows of this class.
        shares: float32[u] 1 / the number of ids of the whole bag; None where no table averages.
    """

    splits: Splits
    index: torch.Tensor
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None
    shares: torch.Tensor | None = None

    @property
    def total(self) -> int:
        """Strips that come."""
        return sum(map(sum, self.splits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """How the gradients of one class travel after a step.

    Attributes:
        index: int64[n] strips of the local gradient, as they go on the wire to the owners.
        sent: to each owner.
        most: as in `Told`.
        apply: what this rank does with what comes.
    """

    index: torch.Tensor
    sent: Splits
    most: int
    apply: Apply


def with_tensors(part: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """The same part of a plan, with `change(its name, it)` in the place of every tensor but offsets."""
    if isinstance(part, ByClass):
        return ByClass(*(with_tensors(each, change) for each in part))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changed = {}
    for name in (each.name for each in fields(part)):
        value = getattr(part, name)
        tensor = isinstance(value, torch.Tensor) and name != "offsets"
        changed[name] = change(name, value) if tensor else with_tensors(value, change)
    return replace(part, **changed)


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
