"""What the exchange of ids wants to know of a sharding group: whether each id gets its row, or bags are pooled.

What is told before a step, in three rounds: some numbers, then words of 8 bytes, then one bit for each *unit* that an
owner serves a requester, a distinct row or bag: whether the step shares it with the one next to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fscomm.plan import bags, routes
from fscomm.plan.bags import BagRequest, ServedBags
from fscomm.plan.routes import Request, Served
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import first_occurrences
from fscomm.plan.ways import Apply, Lookup, Merge, SendGradients, of_others, per_peer


class RowsAhead(NamedTuple):
    merge: Merge
    exclusive: Lookup
    collision: Lookup


class WayBack(NamedTuple):
    collision_send: SendGradients
    collision_apply: Apply
    exclusive_send: SendGradients
    exclusive_apply: Apply


class GroupPlan(ABC):
    """Of the group of `layout`. `shared`: bool[N] which ids that this owner serves lie on shared rows. `mine`: bool[U]
    which units that this rank asked for are in the collision class. `largest`: the most exclusive
    strips that one owner sends to all others, or gets from them."""

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout

    @abstractmethod
    def numbers_to(self, owner: int) -> int:
        """How many numbers every requester tells an owner."""

    @abstractmethod
    def numbers(self, request: Any, owner: int) -> list[int]:
        """Those of `request`."""

    @abstractmethod
    def words(self, request: Any) -> list[torch.Tensor]:
        """[W] int64: what each owner has to know of `request`."""

    @abstractmethod
    def words_of(self, numbers: Sequence[int]) -> int:
        """How many words a requester that told these `numbers` sends."""

    @abstractmethod
    def serve(self, words: list[torch.Tensor], numbers: list[list[int]]) -> Any:
        """What the ranks ask of this owner, from what each sent."""

    @abstractmethod
    def asked_units(self, request: Any) -> list[int]:
        """[W] by owner."""

    @abstractmethod
    def served_units(self, served: Any) -> list[int]:
        """[W] by requester."""

    @abstractmethod
    def shared_units(self, served: Any, shared: torch.Tensor) -> torch.Tensor:
        """bool[U] which units that this owner serves are in the collision class."""

    @abstractmethod
    def sent_ahead(self, served: Any, shared: torch.Tensor) -> int:
        """Exclusive strips that this owner sends to all others."""

    @abstractmethod
    def sent_back(self, served: Any, shared: torch.Tensor) -> int:
        """Exclusive strips of gradient that all others send this owner."""

    @abstractmethod
    def ahead(self, request: Any, served: Any, shared: torch.Tensor, mine: torch.Tensor, largest: int) -> RowsAhead:
        """How rows travel before the step."""

    @abstractmethod
    def distinct_rows(self, served: Any, shared: torch.Tensor, ahead: RowsAhead) -> tuple[int, int]:
        """How many rows this owner serves, and how many of them are shared."""

    @abstractmethod
    def back(self, request: Any, served: Any, shared: torch.Tensor, mine: torch.Tensor, largest: int) -> WayBack:
        """How gradients travel after it."""


class RowPlan(GroupPlan):
    """Every id gets its row."""

    def numbers_to(self, owner: int) -> int:
        return self.layout.features_to[owner]

    def numbers(self, request: Request, owner: int) -> list[int]:
        return request.wire.counts[owner]

    def words(self, request: Request) -> list[torch.Tensor]:
        return list(request.wire.ids.split(request.wire.occurrences))

    def words_of(self, numbers: Sequence[int]) -> int:
        return sum(numbers)

    def serve(self, words: list[torch.Tensor], numbers: list[list[int]]) -> Served:
        return routes.serve(torch.cat(words), numbers, self.layout)

    def asked_units(self, request: Request) -> list[int]:
        return request.wire.rows

    def served_units(self, served: Served) -> list[int]:
        return served.wire.rows

    def shared_units(self, served: Served, shared: torch.Tensor) -> torch.Tensor:
        return shared[served.wire.positions]

    def sent_ahead(self, served: Served, shared: torch.Tensor) -> int:
        return of_others(per_peer(~shared[served.wire.positions], served.wire.rows), self.layout.rank)

    def sent_back(self, served: Served, shared: torch.Tensor) -> int:
        return of_others(per_peer(~shared, served.wire.occurrences), self.layout.rank)

    def ahead(
        self, request: Request, served: Served, shared: torch.Tensor, mine: torch.Tensor, largest: int
    ) -> RowsAhead:
        rows = shared[served.wire.positions]
        return RowsAhead(
            routes.merge(request, mine, largest, self.layout.chunk_rows),
            routes.lookup(served, ~rows, largest, self.layout),
            routes.lookup(served, rows, None, self.layout),
        )

    def distinct_rows(self, served: Served, shared: torch.Tensor, ahead: RowsAhead) -> tuple[int, int]:
        return len(ahead.exclusive.ids) + len(ahead.collision.ids), len(ahead.collision.ids)

    def back(self, request: Request, served: Served, shared: torch.Tensor, mine: torch.Tensor, largest: int) -> WayBack:
        ids, rows = mine[request.wire.slots], self.layout.chunk_rows
        return WayBack(
            routes.send_gradients(request, ids, None, rows),
            routes.apply(served, shared, None, rows),
            routes.send_gradients(request, ~ids, largest, rows),
            routes.apply(served, ~shared, largest, rows),
        )


class BagPlan(GroupPlan):
    """The ids of one feature of one sample get one vector. Numbers: samples, whether ids are weighted, ids."""

    def numbers_to(self, owner: int) -> int:
        return 3

    def numbers(self, request: BagRequest, owner: int) -> list[int]:
        return [request.samples, int(request.bags.weights is not None), request.counts[owner]]

    def words(self, request: BagRequest) -> list[torch.Tensor]:
        ids = request.bags.ids.split(request.counts)
        if request.bags.weights is None:
            return [torch.cat([_words(each), of_ids]) for each, of_ids in zip(request.lengths, ids, strict=True)]
        weights = request.bags.weights.split(request.counts)
        given = zip(request.lengths, weights, ids, strict=True)
        return [torch.cat([_words(each), _words(of_weights), of_ids]) for each, of_weights, of_ids in given]

    def words_of(self, numbers: Sequence[int]) -> int:
        samples, weighted, ids = numbers
        return -(-samples * self._features // 2) + weighted * -(-ids // 2) + ids

    def serve(self, words: list[torch.Tensor], numbers: list[list[int]]) -> ServedBags:
        lengths, weights, ids = [], [], []
        for (samples, weighted, number), given in zip(numbers, words, strict=True):
            first = -(-samples * self._features // 2)
            lengths.append(_numbers(given[:first], torch.int32, samples * self._features).view(self._features, samples))
            ids.append(given[len(given) - number :])
            if weighted:
                weights.append(_numbers(given[first : len(given) - number], torch.float32, number))
        samples_alike = len({samples for samples, _, _ in numbers}) == 1 or bags.pooled(self.layout).owners == 1
        return bags.serve(
            torch.cat(ids),
            lengths,
            torch.cat(weights) if len(weights) == len(words) else None,
            self.layout,
            alike=samples_alike and len(weights) in (0, len(words)),
        )

    def asked_units(self, request: BagRequest) -> list[int]:
        return request.bags.distinct

    def served_units(self, served: ServedBags) -> list[int]:
        return served.bags.distinct

    def shared_units(self, served: ServedBags, shared: torch.Tensor) -> torch.Tensor:
        return served.shared_bags(shared)[served.bags.positions]

    def sent_ahead(self, served: ServedBags, shared: torch.Tensor) -> int:
        deferred = served.bags.first(~self.shared_units(served, shared))
        return of_others(served.bags.strips_per_peer(deferred), self.layout.rank)

    def sent_back(self, served: ServedBags, shared: torch.Tensor) -> int:
        return of_others(served.bags.strips_per_peer(~served.shared_bags(shared)), self.layout.rank)

    def ahead(
        self, request: BagRequest, served: ServedBags, shared: torch.Tensor, mine: torch.Tensor, largest: int
    ) -> RowsAhead:
        urgent = self.shared_units(served, shared)
        return RowsAhead(
            bags.merge(request, mine, largest, self.layout),
            bags.lookup(served, ~urgent, largest, self.layout),
            bags.lookup(served, urgent, None, self.layout),
        )

    def distinct_rows(self, served: ServedBags, shared: torch.Tensor, ahead: RowsAhead) -> tuple[int, int]:
        first = first_occurrences(served.keys, [len(served.keys)]).positions
        return len(first), int(shared[first].sum())

    def back(
        self, request: BagRequest, served: ServedBags, shared: torch.Tensor, mine: torch.Tensor, largest: int
    ) -> WayBack:
        urgent, rows = mine[request.bags.slots], self.layout.chunk_rows
        return WayBack(
            bags.send_gradients(request, urgent, None, rows),
            bags.apply(served, shared, largest, self.layout, collision=True),
            bags.send_gradients(request, ~urgent, largest, rows),
            bags.apply(served, shared, largest, self.layout, collision=False),
        )

    @property
    def _features(self) -> int:
        return self.layout.features_to[self.layout.rank]


def group_plan(layout: GroupLayout) -> GroupPlan:
    return RowPlan(layout) if layout.pooling is None else BagPlan(layout)


def _words(values: torch.Tensor) -> torch.Tensor:
    """Numbers of 4 bytes as int64, two in each."""
    flat = values.flatten()
    return torch.cat([flat, flat.new_zeros(len(flat) % 2)]).view(torch.int64)


def _numbers(words: torch.Tensor, dtype: torch.dtype, number: int) -> torch.Tensor:
    return words.clone().view(dtype)[:number]
