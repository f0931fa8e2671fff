"""Which rank of a host passes a row on to the others.

Only rows travel so, which no rank changes on the way. Gradients go straight to the owner: to add up those of one host
first would change the order of additions, and bits with it. The idea is that of DMT (arXiv 2403.00877).

The rank that passes a row on, its *carrier*, is one that asks for the row itself. The owner reports to every requester
which ranks of its host ask for the row; owner and requesters then find the same carrier from this and the id. Rows that
pass between two ranks of a host are ordered by owner, then table, then id, as the two number their rows differently.

U units, W ranks, H ranks of a host.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fscomm.plan.arrays import sums, take
from fscomm.plan.group_plan import Ahead, Buckets, Fetch, OwnerReply, Request, Shared, bucket
from fscomm.plan.peer_ids import Strips
from fscomm.plan.row_plan import Mapped, RowIds, RowPlan, ServedRows
from fscomm.two_levels import kernels

_BITS_OF_IDS = 40  # of a key of (owner, table, id); a table has fewer rows


class TwoLevelPlan(RowPlan):
    """Of steps in one part: classes of strips are those of their units."""

    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int, mapped: Mapped | None = None) -> ServedRows:
        served = super().serve(words, numbers, parts, mapped)
        hosts = np.empty((len(served.numbers), self.layout.ranks_per_host), np.bool_)
        kernels.asking(served.numbers, served.ids.units, np.zeros(len(served.rows), np.uint64), hosts)
        return replace(served, hosts=hosts)

    def num_masks(self, parts: int, *, back: bool) -> int:
        return super().num_masks(parts, back=back) + (0 if back else self.layout.ranks_per_host)

    def masks(self, served: Any, shared: Shared, *, back: bool) -> list[np.ndarray]:
        classes = super().masks(served, shared, back=back)
        return classes if back else [*classes, *np.ascontiguousarray(served.hosts.T)]

    def reply(self, masks: Sequence[np.ndarray], bounds: np.ndarray) -> OwnerReply:
        of_classes = bounds.shape[1] - 2
        reply = super().reply(masks[:of_classes], bounds)
        return reply if len(masks) == of_classes else reply._replace(hosts=np.stack(masks[of_classes:], axis=1))

    def ahead(self, request: Request, served: Any, shared: Shared, reply: OwnerReply) -> Ahead:
        calls, sent = self._sent(served, shared, reply)
        assert reply.hosts is not None
        peers, carriers = self._carriers(request.ids, reply.hosts)
        straight = self._in_host(peers) | (carriers == self.layout.rank - self.layout.host.start)
        received = self._bucket(reply.units[straight], sums(straight, request.ids.units), reply)
        several = _in_common_order(request.ids, ~self._in_host(peers) & (reply.hosts.sum(1) > 1))
        to_pass, passed = self._passed(several, carriers, reply, sending=True)
        passed_here, incoming = self._passed(several, carriers, reply, sending=False)
        # In the buffer, what owners send for a class is followed by what ranks of this host pass on.
        of_owners, of_mates = received.counts.sum(1), incoming.counts.sum(1)
        starts = np.cumsum(of_owners + of_mates) - of_owners - of_mates
        chunks = self.chunks(reply.bounds)
        first = self.legs([index for _, index in calls], sent, received, reply.bounds, chunks)
        places = np.empty(len(straight), np.int64)
        places[straight] = _shifted(received, reply.units[straight], starts)
        from_here = passed.in_place_order(places[to_pass])
        # One rank of a host asks for a row, of those of all owners elsewhere: it passes on no more to one other rank.
        elsewhere = self.layout.world_size - self.layout.ranks_per_host
        most = [bound * elsewhere for bound in reply.bounds]
        second = self.legs(passed.by_class(from_here), passed, incoming, most, chunks)
        places[passed_here] = _shifted(incoming, reply.units[passed_here], starts + of_owners)
        fetch = [
            Fetch(call=call, legs=[replace(one, start=start), replace(two, start=start + len_of_one)])
            for (call, _), one, two, start, len_of_one in zip(
                calls, first, second, starts.tolist(), of_owners.tolist(), strict=True
            )
        ]
        return Ahead(merge=self._merge(request, places, int(sum(of_owners + of_mates))), fetch=fetch)

    def _sent(self, served: ServedRows, shared: Shared, reply: OwnerReply) -> tuple[list[tuple[Any, Any]], Buckets]:
        """Every row goes to this host's requesters, and to one rank of each other host."""
        assert served.hosts is not None
        straight = self._goes_straight(*self._carriers(served.ids, served.hosts))
        sent = self._bucket(shared.units[straight], sums(straight, served.ids.units), reply)
        return self._read(served.rows, sent.in_place_order(served.numbers[straight]), sent), sent

    def _passed(
        self, several: np.ndarray, carriers: np.ndarray, reply: OwnerReply, *, sending: bool
    ) -> tuple[np.ndarray, Buckets]:
        """int64[n] the units that pass between this rank and others of its host, by rank, and their places.

        several: int64 the units of other hosts that more than one rank here asks for, in a common order.
        """
        assert reply.hosts is not None
        layout, here = self.layout, self.layout.rank - self.layout.host.start
        carrier, wanted = carriers[several], reply.hosts[several]
        by_peer, units = np.zeros(layout.world_size, np.int64), [np.empty(0, np.int64)]
        for mate in range(layout.ranks_per_host):
            if mate != here:
                chosen = (carrier == here) & wanted[:, mate] if sending else carrier == mate
                units.append(several[chosen])
                by_peer[layout.host.start + mate] = len(units[-1])
        of_mates = np.concatenate(units)
        return of_mates, self._bucket(reply.units[of_mates], by_peer, reply)

    def _bucket(self, classes: np.ndarray, by_peer: np.ndarray, reply: OwnerReply) -> Buckets:
        return bucket(Strips(classes, by_peer), len(reply.bounds) - 2, self.chunks(reply.bounds))

    def _carriers(self, ids: Any, hosts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64[U] the peer of each unit, and int32[U] the place of its carrier in the requester's host."""
        carriers = np.empty(len(ids.positions), np.int32)
        kernels.carriers(hosts, take(ids.ids, ids.positions), carriers)
        return np.repeat(np.arange(self.layout.world_size), ids.units), carriers

    def _in_host(self, peers: np.ndarray) -> np.ndarray:
        return (peers >= self.layout.host.start) & (peers < self.layout.host.stop)

    def _goes_straight(self, peers: np.ndarray, carriers: np.ndarray) -> np.ndarray:
        """bool[U] which of the units that this owner serves it sends to their requester itself."""
        return self._in_host(peers) | (carriers == peers % self.layout.ranks_per_host)


def _shifted(buckets: Buckets, classes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int64[n] the places, if classes begin at `starts`, int64[C + 1]."""
    return buckets.places + (starts - buckets.starts[:-1])[classes]


def _in_common_order(ids: Any, chosen: np.ndarray) -> np.ndarray:
    """int64[n] the units that are `chosen`, bool[U], in an order that is the same on all ranks of a host."""
    assert isinstance(ids, RowIds)
    tables = np.repeat(np.arange(len(ids.by_table)), ids.by_table)
    units = np.flatnonzero(chosen)
    keys = (tables[units] << _BITS_OF_IDS) + ids.ids[ids.positions[units]]
    return units[np.argsort(keys, kind="stable")]
