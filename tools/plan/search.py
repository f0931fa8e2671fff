"""Searches the plan of least rate by climbing: it changes one table after the other while that makes the plan better.

Sharding groups make tables depend on each other: the first table that is cut by rows pays for exchanges that others
then share. So the search starts from several plans, each with tables in some of the ways to shard only. A change is
another way for a table, with its parts on the least busy ranks; when none helps, other ranks for its parts. Pure.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from freescale_tools.plan.costs import SHARDINGS, Load, Parts, Placed, Setting, load, parts, together

Rate = Callable[[Parts], float]
_MOVABLE = ("table_wise", "column_wise")  # TorchRec gives part r of the others to rank r
_BETTER = 1 - 1e-9  # of the rate: a smaller difference is rounding
_CLIMBS = 5  # from the best of the plans to start from
_MOST_RATINGS = 50_000  # of one climb, some seconds; then the best plan so far counts


class _Part(NamedTuple):
    placed: Placed
    load: Load


_Plan = tuple[_Part, ...]


def searched(
    ways: Sequence[Sequence[Placed]], start: Sequence[Placed], setting: Setting, rate: Rate
) -> tuple[Placed, ...]:
    """The best plan that was found; `start`, if none is better.

    Args:
        ways: of every table, in the order of `start`: how it can be sharded. The ranks of its parts do not count.
        start: a plan that fits.
    """
    search = _Search(ways, setting, rate)
    given = tuple(search.part(placed) for placed in start)
    sets = itertools.chain.from_iterable(itertools.combinations(SHARDINGS, size) for size in range(1, 5))
    plans = sorted((search.cut_by(shardings) for shardings in sets), key=search.rating)
    best = min((search.climbed(plan) for plan in (given, *plans[:_CLIMBS])), key=search.rating)
    return tuple(part.placed for part in best)


class _Search:
    def __init__(self, ways: Sequence[Sequence[Placed]], setting: Setting, rate: Rate) -> None:
        self._ways = ways
        self._setting = setting
        self._rate = rate

    def part(self, placed: Placed) -> _Part:
        return _Part(placed, load(placed, self._setting))

    def rating(self, plan: Sequence[_Part]) -> float:
        """Infinite where a rank has no room."""
        whole = together([part.load for part in plan])
        if whole.held.max() > self._setting.room_bytes:
            return math.inf
        return self._rate(parts([part.placed for part in plan], self._setting, whole))

    def cut_by(self, shardings: Sequence[str]) -> _Plan:
        """Every table in that of these ways which is best for it alone, if it has one of them; heavy tables first."""
        allowed = [[way for way in ways if way.sharding in shardings] or ways for ways in self._ways]
        best = [min(ways, key=lambda way: self.rating([self.part(way)])) for ways in allowed]
        heavy = np.argsort([-self.part(way).load.looked_up.sum() for way in best], kind="stable")
        found: dict[int, _Part] = {}
        for place in heavy.tolist():
            found[place] = self._beside(best[place], tuple(found.values()))
        return tuple(found[place] for place in range(len(best)))

    def climbed(self, plan: _Plan) -> _Plan:
        """The plan after the best of the changes of each table, again and again until none helps."""
        best, changes = self.rating(plan), [self._other_ways, self._other_ranks]
        ratings = unhelpful = 0
        while unhelpful < len(changes) and ratings < _MOST_RATINGS:
            before = best
            for place in range(len(plan)):
                for changed in changes[0](plan, place):
                    ratings += 1
                    if (found := self.rating(changed)) < best * _BETTER:
                        plan, best = changed, found
            unhelpful = 0 if best < before else unhelpful + 1
            if unhelpful:
                changes.reverse()
        return plan

    def _other_ways(self, plan: _Plan, place: int) -> Iterator[_Plan]:
        before, after = plan[:place], plan[place + 1 :]
        for way in self._ways[place]:
            yield (*before, self._beside(way, before + after), *after)

    def _other_ranks(self, plan: _Plan, place: int) -> Iterator[_Plan]:
        """One part of the table goes to another rank, or changes ranks with a part of a later table."""
        one = plan[place].placed
        for at in range(len(one.shards) if one.sharding in _MOVABLE else 0):
            for rank in range(self._setting.ranks):
                if moved := self._moved(one, at, rank):
                    yield (*plan[:place], moved, *plan[place + 1 :])
            for later in range(place + 1, len(plan)):
                other = plan[later].placed
                for its in range(len(other.shards) if other.sharding in _MOVABLE else 0):
                    first = self._moved(one, at, other.shards[its].rank)
                    second = self._moved(other, its, one.shards[at].rank)
                    if first and second:
                        yield (*plan[:place], first, *plan[place + 1 : later], second, *plan[later + 1 :])

    def _beside(self, way: Placed, rest: _Plan) -> _Part:
        """The parts of a table on the least busy ranks, those with room for them first."""
        if way.sharding not in _MOVABLE or not rest:
            return self.part(way)
        others = together([part.load for part in rest])
        full = others.held + max(shard.held_bytes for shard in way.shards) > self._setting.room_bytes
        ranks = np.lexsort((others.busy_ms(self._setting), full)).tolist()
        shards = tuple(replace(shard, rank=rank) for shard, rank in zip(way.shards, ranks, strict=False))
        return self.part(replace(way, shards=shards))

    def _moved(self, placed: Placed, at: int, rank: int) -> _Part | None:
        """With one part on another rank; None where a part of the table lies there already."""
        if any(shard.rank == rank for shard in placed.shards):
            return None
        shards = (*placed.shards[:at], replace(placed.shards[at], rank=rank), *placed.shards[at + 1 :])
        return self.part(replace(placed, shards=shards))
