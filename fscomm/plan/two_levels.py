"""Rows in two levels: a row goes from its owner to another host once, to a rank there that passes it on to the others.

Only rows travel so, which no rank changes on the way. Gradients go straight to the owner: to add up those of one host
first would change the order of additions, and bits with it. The idea is that of DMT (arXiv 2403.00877).

The rank that passes a row on, its *carrier*, is one that asks for the row itself. The owner tells every requester which
ranks of its host ask for the row; owner and requesters then find the same carrier from this and the id. Rows that pass
between two ranks of a host stand by owner, then table, then id, as the two number their rows differently.

U distinct rows of pairs of ranks, W ranks, H ranks of a host.
"""

import numpy as np

from fscomm.plan import routes, wire_kernels
from fscomm.plan.routes import Request, Served, Wire
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import Cut, Lookup, Merge, PassOn, count, cut, of_classes, take

MOST_RANKS_PER_HOST = 64  # one bit each
_BITS_OF_IDS = 40  # of a key of (owner, table, id); a table has fewer rows


def asking(served: Served, layout: GroupLayout) -> np.ndarray:
    """bool[U, H] which ranks of the requester's host ask for a row that this owner serves."""
    out = np.empty((len(served.rows.numbers), layout.ranks_per_host), np.bool_)
    wire_kernels.asking(served.rows.numbers, served.wire.rows, np.zeros(len(served.rows), np.uint64), out)
    return out


def lookup(
    served: Served, units: np.ndarray, shared: np.ndarray, largest: int, layout: GroupLayout
) -> tuple[Lookup, Lookup]:
    """Collision class, exclusive class: every row goes to this host's requesters, and to one of each other host.

    units: bool[U], shared: bool[R] what is in the collision class; largest: as in `cut`.
    """
    assert served.asking is not None
    peers, carriers = _by_unit(served.wire, served.asking, layout)
    straight = _goes_straight(peers, carriers, layout)
    of_rows = cut(units[straight], count(straight, served.wire.rows), largest, layout.chunk_rows)
    return routes.lookup(served, served.rows.numbers[straight], of_rows, shared, layout)


def most_passed_on(served: Served, units: np.ndarray, layout: GroupLayout) -> tuple[int, int]:
    """Of the rows that this owner serves: the most that one rank of another host passes on to one other rank there, in
    the collision class, which is `units`, bool[U], and in the exclusive class."""
    assert served.asking is not None
    peers, carriers = _by_unit(served.wire, served.asking, layout)
    pairs, passed = peers * layout.ranks_per_host + carriers, ~_goes_straight(peers, carriers, layout)
    collision, exclusive = (np.bincount(pairs[passed & of_class], minlength=1).max() for of_class in (units, ~units))
    return int(collision), int(exclusive)


def merge(
    request: Request, told: np.ndarray, mine: np.ndarray, largest: int, layout: GroupLayout
) -> tuple[Merge, PassOn, PassOn]:
    """And what is passed on of the collision class and of the exclusive class.

    told: bool[U, H] as the owners told it; mine: bool[U] what is in the collision class.
    """
    peers, carriers = _by_unit(request.wire, told, layout)
    rank, per_host = layout.rank, layout.ranks_per_host
    straight = _in_host(peers, layout) | (carriers == rank % per_host)
    from_owners = cut(mine[straight], count(straight, request.wire.rows), largest, layout.chunk_rows)
    mates = [mate for mate in range(per_host) if mate != rank % per_host]
    to_pass = _in_common_order(request.wire, ~_in_host(peers, layout) & (told.sum(1) > 1))
    carrier, wanted = carriers[to_pass], told[to_pass]
    received, coming = _cut([to_pass[carrier == mate] for mate in mates], mine, largest, layout)
    here = carrier == rank % per_host
    sent, going = _cut([to_pass[here & wanted[:, mate]] for mate in mates], mine, largest, layout)
    places = np.empty(len(straight), np.int32)
    places[straight] = from_owners.places
    index = np.empty(len(sent), np.int64)
    index[going.places] = _in_class(places[sent], from_owners.total)
    collision_sent, exclusive_sent = of_classes(index, going.total)
    total = from_owners.total + coming.total
    exclusive = len(from_owners.places) - from_owners.total
    places[straight] = _moved(from_owners, 0, total)
    places[received] = _moved(coming, from_owners.total, total + exclusive)
    return (
        Merge(
            exclusive=from_owners.exclusive,
            collision=from_owners.collision,
            index=routes.merged(request, places, total),
            passed_on=(len(received) - coming.total, coming.total),
        ),
        PassOn(index=collision_sent, sent=going.collision, received=coming.collision),
        PassOn(index=exclusive_sent, sent=going.exclusive, received=coming.exclusive),
    )


def _by_unit(wire: Wire, told: np.ndarray, layout: GroupLayout) -> tuple[np.ndarray, np.ndarray]:
    """int64[U] the peer of each distinct row, and int32[U] the place of its carrier in the requester's host."""
    carriers = np.empty(len(wire.positions), np.int32)
    wire_kernels.carriers(told, take(wire.ids, wire.positions), carriers)
    return np.repeat(np.arange(layout.world_size), wire.rows), carriers


def _in_host(peers: np.ndarray, layout: GroupLayout) -> np.ndarray:
    return (peers >= layout.host.start) & (peers < layout.host.stop)


def _goes_straight(peers: np.ndarray, carriers: np.ndarray, layout: GroupLayout) -> np.ndarray:
    """bool[U] which of the distinct rows that this owner serves it sends to their requester itself."""
    return _in_host(peers, layout) | (carriers == peers % layout.ranks_per_host)


def _in_common_order(wire: Wire, chosen: np.ndarray) -> np.ndarray:
    """int64[n] the distinct rows that are `chosen`, bool[U], in an order in which all requesters have them."""
    tables = np.repeat(np.arange(len(wire.by_table)), wire.by_table)
    units = np.flatnonzero(chosen)
    keys = (tables[units] << _BITS_OF_IDS) + wire.ids[wire.positions[units]]
    return units[np.argsort(keys, kind="stable")]


def _cut(of_mates: list[np.ndarray], mine: np.ndarray, largest: int, layout: GroupLayout) -> tuple[np.ndarray, Cut]:
    """The distinct rows that pass between this rank and each of the others of its host, in one array, and their cut."""
    lengths, units = np.zeros(layout.world_size, np.int64), np.concatenate(of_mates)
    others = [rank for rank in range(layout.host.start, layout.host.stop) if rank != layout.rank]
    lengths[others] = [len(of_mate) for of_mate in of_mates]
    return units, cut(mine[units], lengths, largest, layout.chunk_rows)


def _in_class(places: np.ndarray, total: int) -> np.ndarray:
    """Of places of both classes, the collision class first, those inside the class."""
    return np.where(places < total, places, places - total)


def _moved(of_rows: Cut, collision: int, exclusive: int) -> np.ndarray:
    """Its places, where the rows of its classes begin at `collision` and `exclusive`."""
    places, total = of_rows.places, of_rows.total
    return np.where(places < total, places + collision, places - total + exclusive)
