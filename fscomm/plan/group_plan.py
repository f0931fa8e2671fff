"""What the exchange of ids wants to know of a sharding group: whether each id gets its row, or bags are pooled.

What is told before a step, in three rounds: some numbers, then words of 8 bytes, then one bit for each *unit* that an
owner serves a requester, a distinct row or bag: whether the step shares it with the one next to it. With rows in two
levels, one more bit for each rank of the requester's host: whether it asks for the row, too.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fscomm.plan import bags, routes, two_levels
from fscomm.plan.bags import BagRequest, ServedBags
from fscomm.plan.routes import Request, Served
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import (
    Apply,
    Lookup,
    Merge,
    PassOn,
    SendGradients,
    count,
    cut,
    segments,
    starts_of,
    sums,
    take,
)


class Shared(NamedTuple):
    """What an owner serves that two steps have in common: of its rows bool[R], and of units bool[U].

    ids: int64[W] those of each requester; colliding: int64[W] those of them on shared rows.
    """

    rows: np.ndarray
    units: np.ndarray
    ids: np.ndarray
    colliding: np.ndarray


class RowsAhead(NamedTuple):
    merge: Merge
    exclusive: Lookup
    collision: Lookup
    exclusive_passed: PassOn | None = None
    collision_passed: PassOn | None = None


class WayBack(NamedTuple):
    collision_send: SendGradients
    collision_apply: Apply
    exclusive_send: SendGradients
    exclusive_apply: Apply


class GroupPlan(ABC):
    """Of the group of `layout`. Numbers and words for owners, and from requesters, stand by rank. `mine`: bool[U] which
    units that this rank asked for are in the collision class. `asking`: bool[U, H] which ranks of this host ask for
    them; None unless rows go in two levels. `largest`: the most exclusive strips that one owner sends to all others, or
    gets from them."""

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout

    @property
    @abstractmethod
    def numbers_to(self) -> np.ndarray:
        """int64[W] how many numbers every requester tells each owner."""

    @abstractmethod
    def numbers(self, request: Any) -> np.ndarray:
        """int64, those of `request`."""

    @abstractmethod
    def words(self, request: Any) -> tuple[np.ndarray, np.ndarray]:
        """int64 words: what the owners have to know of `request`; int64[W] how many go to each."""

    @abstractmethod
    def words_of(self, numbers: np.ndarray) -> np.ndarray:
        """int64[W] how many words come from requesters that told `numbers`, int64[W, n]."""

    @abstractmethod
    def serve(self, words: np.ndarray, numbers: np.ndarray) -> Any:
        """What the ranks ask of this owner, from what they sent. Has `rows: OwnerRows` and `irregular: bool`."""

    @abstractmethod
    def asked_units(self, request: Any) -> np.ndarray:
        """int64[W] by owner."""

    @abstractmethod
    def served_units(self, served: Any) -> np.ndarray:
        """int64[W] by requester."""

    @abstractmethod
    def shared(self, served: Any, rows: np.ndarray) -> Shared:
        """`rows`: bool[R]."""

    @abstractmethod
    def strips_ahead(self, served: Any, shared: Shared) -> np.ndarray:
        """int64[2, W] that this owner sends each requester, in the collision class and in the exclusive class."""

    @abstractmethod
    def strips_back(self, served: Any, shared: Shared) -> np.ndarray:
        """The same of the gradients that come back."""

    @abstractmethod
    def ahead(
        self,
        request: Any,
        served: Any,
        shared: Shared,
        mine: np.ndarray,
        largest: int,
        asking: np.ndarray | None = None,
    ) -> RowsAhead:
        """How rows travel before the step."""

    @abstractmethod
    def back(self, request: Any, served: Any, shared: Shared, mine: np.ndarray, largest: int) -> WayBack:
        """How gradients travel after it."""


class RowPlan(GroupPlan):
    """Every id gets its row. Numbers: ids of each feature of the owner."""

    @property
    def numbers_to(self) -> np.ndarray:
        return self.layout.features

    def numbers(self, request: Request) -> np.ndarray:
        return request.counts

    def words(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        return request.wire.ids, request.wire.occurrences

    def words_of(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.sum(1)

    def serve(self, words: np.ndarray, numbers: np.ndarray) -> Served:
        served = routes.serve(words, numbers, self.layout)
        return replace(served, asking=two_levels.asking(served, self.layout)) if self.layout.two_levels else served

    def asked_units(self, request: Request) -> np.ndarray:
        return request.wire.rows

    def served_units(self, served: Served) -> np.ndarray:
        return served.wire.rows

    def shared(self, served: Served, rows: np.ndarray) -> Shared:
        found = served.wire
        units = take(rows, served.rows.numbers)
        return Shared(rows, units, found.occurrences, count(units, found.occurrences, found.slots))

    def strips_ahead(self, served: Served, shared: Shared) -> np.ndarray:
        return _by_class(count(shared.units, served.wire.rows), served.wire.rows)

    def strips_back(self, served: Served, shared: Shared) -> np.ndarray:
        return _by_class(shared.colliding, shared.ids)

    def ahead(
        self,
        request: Request,
        served: Served,
        shared: Shared,
        mine: np.ndarray,
        largest: int,
        asking: np.ndarray | None = None,
    ) -> RowsAhead:
        if asking is not None:
            urgent, deferred = two_levels.lookup(served, shared.units, shared.rows, largest, self.layout)
            merge, now, later = two_levels.merge(request, asking, mine, largest, self.layout)
            return RowsAhead(merge, deferred, urgent, later, now)
        chunk_rows = self.layout.chunk_rows
        asked = cut(mine, request.wire.rows, largest, chunk_rows)
        of_owner = cut(shared.units, served.wire.rows, largest, chunk_rows)
        urgent, deferred = routes.lookup(served, served.rows.numbers, of_owner, shared.rows, self.layout)
        return RowsAhead(routes.merge(request, asked), deferred, urgent)

    def back(self, request: Request, served: Served, shared: Shared, mine: np.ndarray, largest: int) -> WayBack:
        chunk_rows = self.layout.chunk_rows
        asked, here = request.wire, served.wire
        sent = cut(mine, asked.occurrences, largest, chunk_rows, asked.slots)
        came = cut(shared.units, here.occurrences, largest, chunk_rows, here.slots)
        (urgent, deferred), (now, later) = routes.send_gradients(request, sent), routes.apply(served, came)
        return WayBack(urgent, now, deferred, later)


class BagPlan(GroupPlan):
    """The ids of one feature of one sample get one vector. Numbers: samples, whether ids are weighted, ids.

    Words: lengths (int32), weights (float32), ids, each rounded up to whole words.
    """

    @property
    def numbers_to(self) -> np.ndarray:
        return np.full(self.layout.world_size, 3, np.int64)

    def numbers(self, request: BagRequest) -> np.ndarray:
        samples, weighted = (
            np.full_like(request.counts, number) for number in (request.samples, request.bags.weights is not None)
        )
        return np.stack([samples, weighted, request.counts], axis=1).ravel()

    def words(self, request: BagRequest) -> tuple[np.ndarray, np.ndarray]:
        weights = request.bags.weights
        of_lengths, ids = self.layout.features * request.samples, request.counts
        of_weights = ids if weights is not None else np.zeros_like(ids)
        given = (request.lengths, np.zeros(1, np.int32), weights, request.bags.ids)
        parts = [part.view(np.int32) for part in given if part is not None]
        zero, first_weight = len(request.lengths), len(request.lengths) + 1
        lengths = np.stack([of_lengths, of_lengths % 2, of_weights, of_weights % 2, 2 * ids], axis=1)
        starts = (
            starts_of(lengths[:, 0]),
            np.zeros_like(ids),
            starts_of(of_weights),
            np.zeros_like(ids),
            starts_of(2 * ids),
        )
        firsts = np.array([0, zero, first_weight, zero, first_weight + of_weights.sum()])
        words = segments(np.concatenate(parts), np.stack(starts, axis=1) + firsts, lengths)
        return words.view(np.int64), lengths.sum(1) // 2

    def words_of(self, numbers: np.ndarray) -> np.ndarray:
        samples, weighted, ids = numbers.T
        return -(-samples * self._features // 2) + weighted * -(-ids // 2) + ids

    def serve(self, words: np.ndarray, numbers: np.ndarray) -> ServedBags:
        samples, weighted, ids = np.ascontiguousarray(numbers.T)
        halves, firsts = words.view(np.int32), 2 * starts_of(self.words_of(numbers))
        of_lengths, of_weights = samples * self._features, weighted * ids
        first_weight = firsts + of_lengths + of_lengths % 2
        weights = segments(halves, first_weight, of_weights).view(np.float32) if weighted.all() else None
        samples_alike = (samples == samples[0]).all() or bags.pooled(self.layout).owners == 1
        return bags.serve(
            segments(halves, first_weight + of_weights + of_weights % 2, 2 * ids).view(np.int64),
            segments(halves, firsts, of_lengths),
            samples,
            weights,
            self.layout,
            alike=bool(samples_alike and (weighted == weighted[0]).all()),
        )

    def asked_units(self, request: BagRequest) -> np.ndarray:
        return request.bags.distinct

    def served_units(self, served: ServedBags) -> np.ndarray:
        return served.bags.distinct

    def shared(self, served: ServedBags, rows: np.ndarray) -> Shared:
        ids = take(rows, served.rows.numbers)
        asked = sums(served.bags.lengths, served.bags.by_peer)
        return Shared(rows, served.shared_bags(ids)[served.bags.positions], asked, count(ids, asked))

    def strips_ahead(self, served: ServedBags, shared: Shared) -> np.ndarray:
        found = served.bags
        of_classes = (found.first(units) * found.widths for units in (shared.units, ~shared.units))
        return np.stack([sums(strips, found.by_peer) for strips in of_classes])

    def strips_back(self, served: ServedBags, shared: Shared) -> np.ndarray:
        found = served.bags
        urgent = served.shared_bags(take(shared.rows, served.rows.numbers)) * found.widths
        return _by_class(sums(urgent, found.by_peer), found.strips)

    def ahead(
        self,
        request: BagRequest,
        served: ServedBags,
        shared: Shared,
        mine: np.ndarray,
        largest: int,
        asking: np.ndarray | None = None,
    ) -> RowsAhead:
        collision, exclusive = bags.lookup(served, shared.units, largest, self.layout)
        return RowsAhead(bags.merge(request, mine, largest, self.layout), exclusive, collision)

    def back(self, request: BagRequest, served: ServedBags, shared: Shared, mine: np.ndarray, largest: int) -> WayBack:
        chunk_rows, ids = self.layout.chunk_rows, take(shared.rows, served.rows.numbers)
        sent = request.bags.cut(mine[request.bags.slots], largest, chunk_rows)
        came = served.bags.cut(served.shared_bags(ids), largest, chunk_rows)
        (urgent, deferred), (now, later) = (
            bags.send_gradients(request, sent),
            bags.apply(served, ids, came, self.layout),
        )
        return WayBack(urgent, now, deferred, later)

    @property
    def _features(self) -> int:
        return int(self.layout.features[self.layout.rank])


def _by_class(collision: np.ndarray, all_strips: np.ndarray) -> np.ndarray:
    return np.stack([collision, all_strips - collision])


def group_plan(layout: GroupLayout) -> GroupPlan:
    return RowPlan(layout) if layout.pooling is None else BagPlan(layout)
