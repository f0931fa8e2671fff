"""Rows in two levels: a row goes from its owner to another host once, to a rank there that passes it on to the others.

Only rows travel so, which no rank changes on the way. Gradients go straight to the owner: to add up those of one host
first would change the order of additions, and bits with it. The idea is that of DMT (arXiv 2403.00877).

The rank that passes a row on, its *carrier*, is one that asks for the row itself. The owner tells every requester which
ranks of its host ask for the row; owner and requesters then find the same carrier from this and the id. Rows that pass
between two ranks of a host stand by owner, then table, then id, as the two number their rows differently.

U distinct rows of pairs of ranks, W ranks, H ranks of a host.
"""

from dataclasses import replace

import numpy as np

from fscomm.plan import wire_kernels
from fscomm.plan.routes import Mapped, Request, RowPlan, Served, Wire
from fscomm.plan.ways import (
    Cut,
    Fetch,
    Lookup,
    Merge,
    PassOn,
    RowsAhead,
    Shared,
    Splits,
    Told,
    cut,
    sums,
    take,
)

MOST_RANKS_PER_HOST = 64  # one bit each
_BITS_OF_IDS = 40  # of a key of (owner, table, id); a table has fewer rows


class TwoLevelPlan(RowPlan):
    """Of a group whose rows go in two levels, in steps of one part: there are two pieces of rows, which are the classes
    of their units."""

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int, mapped: Mapped | None = None) -> Served:
        served = super().serve(words, numbers, parts, mapped)
        asking = np.empty((len(served.numbers), self.layout.ranks_per_host), np.bool_)
        wire_kernels.asking(served.numbers, served.units, np.zeros(len(served.rows), np.uint64), asking)
        return replace(served, asking=asking)

    def ahead(self, request: Request, served: Served, shared: Shared, told: Told) -> RowsAhead:
        merge, received, passed_on = self._coming(request, told)
        given = zip(self._going(served, shared, told.largest), received, told.most, passed_on, strict=True)
        fetch = [Fetch(lookup=lookup, received=came, most=most, passed_on=on) for lookup, came, most, on in given]
        return RowsAhead(merge=merge, fetch=fetch)

    def _going(self, served: Served, shared: Shared, largest: int) -> list[Lookup]:
        """Every row goes to this host's requesters, and to one of each other host."""
        assert served.asking is not None
        peers, carriers = self._by_unit(served.wire, served.asking)
        straight = self._goes_straight(peers, carriers)
        sent = cut(shared.units[straight], 1, sums(straight, served.units), largest, self.layout.chunk_rows)
        return self.lookups(served, served.numbers[straight], sent)

    def most_passed_on(self, served: Served, shared: Shared) -> list[int]:
        """[P + 1] Of the rows that this owner serves: the most that one rank of another host passes on to one other
        rank there."""
        assert served.asking is not None
        peers, carriers = self._by_unit(served.wire, served.asking)
        pairs, passed = peers * self.layout.ranks_per_host + carriers, ~self._goes_straight(peers, carriers)
        return [int(np.bincount(pairs[passed & (shared.units == of)], minlength=1).max()) for of in (0, 1)]

    def _coming(self, request: Request, told: Told) -> tuple[Merge, list[Splits], list[PassOn]]:
        """How all rows become the output, how many come from owners, and what is passed on."""
        assert told.asking is not None
        mine, asking, largest = told.mine, told.asking, told.largest
        peers, carriers = self._by_unit(request.wire, asking)
        per_host = self.layout.ranks_per_host
        place = self.layout.rank % per_host
        straight = self._in_host(peers) | (carriers == place)
        from_owners = cut(mine[straight], 1, sums(straight, request.units), largest, self.layout.chunk_rows)
        mates = [mate for mate in range(per_host) if mate != place]
        to_pass = _in_common_order(request.wire, ~self._in_host(peers) & (asking.sum(1) > 1))
        carrier, wanted = carriers[to_pass], asking[to_pass]
        received, coming = self._cut([to_pass[carrier == mate] for mate in mates], mine, largest)
        sent, going = self._cut([to_pass[(carrier == place) & wanted[:, mate]] for mate in mates], mine, largest)
        places = np.empty(len(straight), np.int32)
        places[straight] = from_owners.moved([0, 0])
        index = np.empty(len(sent), np.int64)
        index[going.places] = places[sent]
        starts = [mine + of_mates for mine, of_mates in zip(from_owners.starts, coming.starts, strict=True)]
        places[straight] = from_owners.moved(starts[:-1])
        ends = zip(from_owners.starts[1:], coming.starts, strict=False)
        places[received] = coming.moved([end + start for end, start in ends])
        given = zip(going.by_piece(index), going.splits, coming.splits, told.most_passed, strict=True)
        passed_on = [PassOn(index=which, sent=to, received=came, most=most) for which, to, came, most in given]
        return request.merge(places, starts), from_owners.splits, passed_on

    def _by_unit(self, wire: Wire, asking: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64[U] the peer of each distinct row, and int32[U] the place of its carrier in the requester's host."""
        carriers = np.empty(len(wire.positions), np.int32)
        wire_kernels.carriers(asking, take(wire.ids, wire.positions), carriers)
        return np.repeat(np.arange(self.layout.world_size), wire.rows), carriers

    def _in_host(self, peers: np.ndarray) -> np.ndarray:
        return (peers >= self.layout.host.start) & (peers < self.layout.host.stop)

    def _goes_straight(self, peers: np.ndarray, carriers: np.ndarray) -> np.ndarray:
        """bool[U] which of the distinct rows that this owner serves it sends to their requester itself."""
        return self._in_host(peers) | (carriers == peers % self.layout.ranks_per_host)

    def _cut(self, of_mates: list[np.ndarray], mine: np.ndarray, largest: int) -> tuple[np.ndarray, Cut]:
        """The distinct rows that pass between this rank and each of the others of its host, in one array, and their
        cut."""
        layout = self.layout
        lengths, units = np.zeros(layout.world_size, np.int64), np.concatenate([np.empty(0, np.int64), *of_mates])
        others = [rank for rank in range(layout.host.start, layout.host.stop) if rank != layout.rank]
        lengths[others] = [len(of_mate) for of_mate in of_mates]
        return units, cut(mine[units], 1, lengths, largest, layout.chunk_rows)


def _in_common_order(wire: Wire, chosen: np.ndarray) -> np.ndarray:
    """int64[n] the distinct rows that are `chosen`, bool[U], in an order in which all requesters have them."""
    tables = np.repeat(np.arange(len(wire.by_table)), wire.by_table)
    units = np.flatnonzero(chosen)
    keys = (tables[units] << _BITS_OF_IDS) + wire.ids[wire.positions[units]]
    return units[np.argsort(keys, kind="stable")]
