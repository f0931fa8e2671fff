"""One sharding group of W ranks inside one process, in plain Python, to hold `fscomm.plan.routes` against.

A row is named by `code`: owner, table and id in one number, so that a row that arrives says what it is. Gradients are
named by the requester and the local output they belong to.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from fscomm.exchange.handed_over import GroupAhead
from fscomm.plan import routes
from fscomm.plan.routes import Request
from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout
from fscomm.plan.ways import Back, ByClass, Lookup, PassOn

Ids = list[list[list[list[int]]]]  # [W requesters][W owners][F of the owner][samples]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What all ranks ask in one step; `orders`: [W] where the wire order is not the local one, a permutation."""

    ids: Ids
    orders: list[torch.Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The layouts of all ranks, and how ids are drawn."""

    world_size: int
    runs: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    longest: int
    silent: int
    seed: int
    ranks_per_host: int = 1
    chunk_rows: int | None = None

    def layouts(self, module: str = "m") -> list[GroupLayout]:
        return [
            GroupLayout(
                module=module,
                sharding="table_wise",
                rank=rank,
                world_size=self.world_size,
                dim=3,
                dtype=torch.float32,
                runs=self.runs,
                rows=self.rows[rank],
                ranks_per_host=self.ranks_per_host,
                chunk_bytes=CHUNK_BYTES["cpu"] if self.chunk_rows is None else self.chunk_rows * 3 * 4,
            )
            for rank in range(self.world_size)
        ]

    def asked(self, step: int) -> Asked:
        """The same for the same step; rank `silent` has no ids in odd steps, features of any rank may have none."""
        random = np.random.default_rng([self.seed, step])
        ids: Ids = []
        for requester in range(self.world_size):
            longest = 0 if requester == self.silent and step % 2 else self.longest
            ids.append([])
            for owner in range(self.world_size):
                tables = tables_of(self.runs[owner])
                lengths = random.integers(0, longest + 1, len(tables))
                given = [
                    random.integers(0, self.rows[owner][t], n).tolist() for t, n in zip(tables, lengths, strict=True)
                ]
                ids[-1].append(given)
        orders = [
            torch.from_numpy(random.permutation(len(flat(of_rank)))) if random.integers(2) else None for of_rank in ids
        ]
        return Asked(ids=ids, orders=orders)


@st.composite
def shapes(draw: st.DrawFn, hosts: Sequence[tuple[int, int]]) -> Shape:
    """hosts: (ranks, ranks per host) to choose from."""
    world_size, ranks_per_host = draw(st.sampled_from(hosts))
    runs = tuple(tuple(draw(st.lists(st.integers(1, 3), max_size=3))) for _ in range(world_size))
    return Shape(
        world_size=world_size,
        runs=runs,
        rows=tuple(tuple(draw(st.integers(1, 9)) for _ in tables) for tables in runs),
        longest=draw(st.integers(0, 8)),
        silent=draw(st.integers(0, world_size)),
        seed=draw(st.integers(0, 2**32)),
        ranks_per_host=ranks_per_host,
        chunk_rows=draw(st.sampled_from([None, 1, 3])),
    )


def tables_of(runs: Sequence[int]) -> list[int]:
    """[F] the table of each feature."""
    return [table for table, number in enumerate(runs) for _ in range(number)]


def flat(of_rank: list[list[list[int]]]) -> list[int]:
    return [row for of_owner in of_rank for samples in of_owner for row in samples]


def code(owner: int, table: int, row: int) -> int:
    return (owner * 10 + table) * 100 + row


def codes_to(shape: Shape, asked: Asked, requester: int, owner: int) -> list[int]:
    """The rows that one rank asks of another, by feature, then sample: their part of the wire order of both."""
    return [
        code(owner, table, row)
        for table, samples in zip(tables_of(shape.runs[owner]), asked.ids[requester][owner], strict=True)
        for row in samples
    ]


def codes_of(shape: Shape, asked: Asked, requester: int) -> list[int]:
    """All rows that a rank asks for, in wire order."""
    return list(itertools.chain(*(codes_to(shape, asked, requester, owner) for owner in range(shape.world_size))))


def codes_at(shape: Shape, asked: Asked, owner: int) -> list[int]:
    """All rows that an owner is asked for, in wire order."""
    return list(itertools.chain(*(codes_to(shape, asked, requester, owner) for requester in range(shape.world_size))))


def used(shape: Shape, asked: Asked) -> set[int]:
    return {row for requester in range(shape.world_size) for row in codes_of(shape, asked, requester)}


def local_order(asked: Asked, requester: int, wire: list[int]) -> list[int]:
    """`wire`, by occurrence, in the order of the local output."""
    order = asked.orders[requester]
    return wire if order is None else [wire[place] for place in order.tolist()]


def request(shape: Shape, asked: Asked, requester: int, layout: GroupLayout) -> Request:
    of_rank = asked.ids[requester]
    counts = [len(samples) for of_owner in of_rank for samples in of_owner]
    order = asked.orders[requester]
    # TorchRec's permutation has 32 bits
    return routes.request(as_ids(flat(of_rank)), counts, order if order is None else order.int(), layout)


def as_ids(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def torchrec_order(shape: Shape, asked: Asked, owner: int) -> list[list[tuple[int, int]]]:
    """[F] (row code, gradient name) in the order in which TorchRec's update of an owner sees them."""
    names = []
    for requester in range(shape.world_size):
        number = len(flat(asked.ids[requester]))
        order = asked.orders[requester]
        by_wire = list(range(number)) if order is None else torch.argsort(order).tolist()
        names.append([gradient_name(requester, output) for output in by_wire])
    of_features: list[list[tuple[int, int]]] = []
    for f, table in enumerate(tables_of(shape.runs[owner])):
        of_features.append([])
        for requester, of_rank in enumerate(asked.ids):
            start = len(flat(of_rank[:owner])) + sum(map(len, of_rank[owner][:f]))
            for sample, row in enumerate(of_rank[owner][f]):
                of_features[-1].append((code(owner, table, row), names[requester][start + sample]))
    return of_features


def gradient_name(requester: int, output: int) -> int:
    return requester * 1000 + output


def exchange(
    mine: list[torch.Tensor],
    sent: list[list[list[int]]],
    received: list[list[list[int]]],
    limit: int | None,
    *,
    owners_send: bool = True,
) -> list[torch.Tensor]:
    """What each rank gets, chunk after chunk: [W] rows out, and splits [W][chunks][W] of senders and receivers.

    `limit`: about the most entries of one chunk between an owner and all others.
    """
    assert len({len(of_rank) for of_rank in (*sent, *received)}) == 1, "ranks differ in their number of exchanges"
    starts = [0] * len(mine)
    got: list[list[torch.Tensor]] = [[] for _ in mine]
    for k in range(len(sent[0])):
        pieces = []
        for rank, rows in enumerate(mine):
            end = starts[rank] + sum(sent[rank][k])
            pieces.append(rows[starts[rank] : end].split(sent[rank][k]))
            starts[rank] = end
        for rank in range(len(mine)):
            for peer, of_peer in enumerate(pieces):
                assert len(of_peer[rank]) == received[rank][k][peer], f"{peer} to {rank} in chunk {k}"
                got[rank].append(of_peer[rank])
            of_owner = (sent if owners_send else received)[rank][k]
            assert limit is None or sum(of_owner) - of_owner[rank] < limit + len(mine)
    assert starts == [len(rows) for rows in mine], "something was never sent"
    return [torch.cat(of_rank) for of_rank in got]


def look_up(shape: Shape, owner: int, lookup: Lookup) -> torch.Tensor:
    """[n] the row codes that the kernel's look-up would put on the wire."""
    tables = tables_of(shape.runs[owner])
    ends = lookup.offsets.tolist()
    assert len(ends) == len(tables) + 1
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (0, len(lookup.ids))
    found = []
    for table, start, end in zip(tables, ends, ends[1:], strict=False):
        found += [code(owner, table, row) for row in lookup.ids[start:end].tolist()]
    assert len(set(found)) == len(found), "a row is looked up twice"
    return as_ids(found)[lookup.index]


def check_rows(shape: Shape, asked: Asked, shared: set[int], groups: Sequence[GroupAhead]) -> None:
    """What is fetched gives every local output its row. Each row is sent once to a rank; to a host, in two levels."""
    two_levels = 1 < shape.ranks_per_host < shape.world_size
    both = []
    for kind, limit in (("exclusive", shape.chunk_rows), ("collision", None)):
        fetch = [getattr(group.fetch, kind) for group in groups]
        lookups = [each.lookup for each in fetch]
        rows = [look_up(shape, owner, lookup) for owner, lookup in enumerate(lookups)]
        check_most([lookup.splits for lookup in lookups], {each.most for each in fetch}, two_levels)
        both.append(exchange(rows, [lookup.splits for lookup in lookups], [each.received for each in fetch], limit))
    if two_levels:
        check_hosts(shape, *both)
        passed = [[getattr(group.fetch, kind).passed_on for group in groups] for kind in ("exclusive", "collision")]
        for of_class in passed:
            check_most_passed(shape, of_class)
        both = [pass_on(shape, *of_class) for of_class in zip(both, passed, strict=True)]
    for rank, (group, early, late) in enumerate(zip(groups, *both, strict=True)):
        assert (len(late), len(early)) == group.merge.totals
        assert group.buffer.shape == (len(early) + len(late), 3)
        assert set(late.tolist()) <= shared
        assert shared.isdisjoint(early.tolist())
        rows = torch.cat([early, late])
        wanted = codes_of(shape, asked, rank)
        assert rows[group.merge.index].tolist() == local_order(asked, rank, wanted)
        assert sorted(rows.tolist()) == sorted(set(wanted)), "a row travels twice, or nobody asked for it"
        assert group.colliding == sum(row in shared for row in codes_at(shape, asked, rank))


def check_most(splits: list[list[list[int]]], most: set[int], at_most: bool) -> None:
    """All ranks know how much the pair with the most exchanges at a time. splits: [W][chunks][W]."""
    (known,) = most
    found = max(max(of_chunk) for of_rank in splits for of_chunk in of_rank)
    assert found <= known if at_most else found == known


def check_most_passed(shape: Shape, passed: Sequence[PassOn]) -> None:
    """All ranks know alike how much is passed on at most. Every owner of another host told the most of its own rows."""
    (known,) = {on.most for on in passed}
    found = max(max(of_chunk) for on in passed for of_chunk in on.sent)
    assert found <= known <= (shape.world_size - shape.ranks_per_host) * found


def check_hosts(shape: Shape, early: list[torch.Tensor], late: list[torch.Tensor]) -> None:
    """Of other hosts' rows each comes to one rank of a host."""
    per_host = shape.ranks_per_host
    for first in range(0, shape.world_size, per_host):
        of_host = torch.cat([*early[first : first + per_host], *late[first : first + per_host]]).tolist()
        far = [row for row in of_host if not first <= row // 1000 < first + per_host]
        assert len(set(far)) == len(far), "a row came to a host twice"


def pass_on(shape: Shape, rows: list[torch.Tensor], passed: list[PassOn]) -> list[torch.Tensor]:
    """[W] what came from owners, and behind it what ranks of the same host passed on."""
    for rank, on in enumerate(passed):
        first = rank - rank % shape.ranks_per_host
        of_others = [*range(first), *range(first + shape.ranks_per_host, shape.world_size)]
        assert not any(sizes[peer] for peer in of_others for sizes in (*on.sent, *on.received))
    sent = [of_rank[on.index] for of_rank, on in zip(rows, passed, strict=True)]
    came = exchange(sent, [on.sent for on in passed], [on.received for on in passed], None)
    return [torch.cat(both) for both in zip(rows, came, strict=True)]


def check_gradients(shape: Shape, asked: Asked, shared: set[int], backs: Sequence[ByClass[Back]]) -> None:
    """Gradients of both classes reach their rows in TorchRec's order."""
    both = {"collision": (shared, None), "exclusive": (used(shape, asked) - shared, shape.chunk_rows)}
    for kind, (rows, limit) in both.items():
        of_class = [getattr(back, kind) for back in backs]
        check_updates(shape, asked, rows, of_class, limit)
        check_most([back.apply.splits for back in of_class], {back.most for back in of_class}, False)


def check_updates(shape: Shape, asked: Asked, chosen: set[int], backs: list[Back], limit: int | None) -> None:
    """Those of the occurrences on the rows `chosen`, and no others."""
    names = []
    for rank, back in enumerate(backs):
        local = as_ids([gradient_name(rank, i) for i in range(len(flat(asked.ids[rank])))])
        names.append(local[back.index])
    received = exchange(
        names, [back.sent for back in backs], [back.apply.splits for back in backs], limit, owners_send=False
    )
    for owner, apply in enumerate(back.apply for back in backs):
        assert len(received[owner]) == apply.total == len(apply.index)
        came = received[owner][apply.index].tolist()
        ids, ends = apply.ids.tolist(), apply.offsets.tolist()
        assert ends[0] == 0
        assert ends[-1] == len(ids)
        expected = torchrec_order(shape, asked, owner)
        assert len(ends) == len(expected) + 1
        for f, (table, of_feature) in enumerate(zip(tables_of(shape.runs[owner]), expected, strict=True)):
            rows = [code(owner, table, row) for row in ids[ends[f] : ends[f + 1]]]
            given = list(zip(rows, came[ends[f] : ends[f + 1]], strict=True))
            assert given == [(row, name) for row, name in of_feature if row in chosen]
