"""One sharding group of W ranks inside one process, in plain Python, to hold `fscomm.plan.row_plan` against.

A row is named by `code`: owner, table and id in one number, so that a row that arrives says what it is. Gradients are
named by the requester and the local output they belong to.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from fscomm.compose import group_plan
from fscomm.exchange.handed_over import GroupAhead
from fscomm.plan.group_plan import Apply, AskedIds, Back, Leg, Request
from fscomm.plan.kernel_calls import KernelCall
from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout

Ids = list[list[list[list[int]]]]  # [W requesters][W owners][F of the owner][samples]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What all ranks ask in one step.

    orders: [W][k] where the wire order of a part is not the local one, a permutation. parts: the part of every id.
    """

    ids: Ids
    orders: list[list[torch.Tensor | None]]
    parts: Ids

    @property
    def number_of_parts(self) -> int:
        return len(self.orders[0])


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
    parts: tuple[int, ...] = (1,)  # of consecutive steps, over and over

    def parts_of(self, step: int) -> int:
        return self.parts[step % len(self.parts)]

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
        number = self.parts_of(step)
        parts = [
            [
                [sorted(random.integers(0, number, len(samples)).tolist()) for samples in of_owner]
                for of_owner in of_rank
            ]
            for of_rank in ids
        ]
        orders = [
            [
                torch.from_numpy(random.permutation(flat(of_rank).count(part))) if random.integers(2) else None
                for part in range(number)
            ]
            for of_rank in parts
        ]
        return Asked(ids=ids, orders=orders, parts=parts)


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
        parts=(1,) if ranks_per_host > 1 else draw(st.sampled_from([(1,), (2,), (3,), (4, 1, 3)])),
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


def used(shape: Shape, asked: Asked, part: int | None = None) -> set[int]:
    """By any rank; in one part, or in all."""
    return {
        row
        for requester in range(shape.world_size)
        for row, of in zip(codes_of(shape, asked, requester), flat(asked.parts[requester]), strict=True)
        if part in (None, of)
    }


def local_outputs(asked: Asked, requester: int) -> list[int]:
    """The place in the wire order of every local output, part after part."""
    of_each, places = flat(asked.parts[requester]), list[int]()
    for part, order in enumerate(asked.orders[requester]):
        here = [place for place, of in enumerate(of_each) if of == part]
        places += here if order is None else [here[i] for i in order.tolist()]
    return places


def local_order(asked: Asked, requester: int, wire: list[int]) -> list[int]:
    """`wire`, by occurrence, in the order of the local output."""
    return [wire[place] for place in local_outputs(asked, requester)]


def request(shape: Shape, asked: Asked, requester: int, layout: GroupLayout) -> Request:
    parts = []
    for part, order in enumerate(asked.orders[requester]):
        given = [
            [row for row, of in zip(samples, parts_of, strict=True) if of == part]
            for of_owner, of_parts in zip(asked.ids[requester], asked.parts[requester], strict=True)
            for samples, parts_of in zip(of_owner, of_parts, strict=True)
        ]
        # TorchRec's permutation has 32 bits
        ids = as_ids([row for samples in given for row in samples])
        counts = [len(samples) for samples in given]
        parts.append(AskedIds(ids, counts, None if order is None else order.int()))
    return group_plan(layout).request(parts)


def as_ids(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def torchrec_order(shape: Shape, asked: Asked, owner: int) -> list[list[tuple[int, int]]]:
    """[F] (row code, gradient name) in the order in which TorchRec's update of an owner sees them."""
    names = []
    for requester in range(shape.world_size):
        by_wire = np.argsort(local_outputs(asked, requester)).tolist()
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
    legs: list[Leg],
    limit: int | None,
    *,
    owners_send: bool = True,
    exact: bool = True,
) -> list[torch.Tensor]:
    """What each rank gets, chunk after chunk: [W] rows out.

    `limit`: about the most entries of one chunk between an owner and all others. The owner with the most of them sets
    the number of chunks of all; what it exchanges with itself does not count. Where rows are passed on, there may be
    more: `exact`.
    """
    splits = [list(leg.splits()) for leg in legs]
    sent, received = ([[both[i] for both in of_rank] for of_rank in splits] for i in range(2))
    (chunks,) = {leg.chunks for leg in legs}  # ranks do not differ in their number of exchanges
    if limit is not None:
        owners = [leg.send if owners_send else leg.receive for leg in legs]
        most = max(sum(of_owner) - of_owner[rank] for rank, of_owner in enumerate(owners))
        needed = max(-(-most // limit), 1)
        assert chunks == needed if exact else chunks >= needed
    assert [sum(leg.send) for leg in legs] == [len(rows) for rows in mine], "something was never sent"
    (bound,) = {leg.bound for leg in legs}  # all ranks know how much the pair with the most exchanges at a time
    found = max(max(of_chunk) for of_rank in sent for of_chunk in of_rank)
    assert found == bound if exact else found <= bound
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
    return [torch.cat(of_rank) for of_rank in got]


def by_table(shape: Shape, owner: int, call: KernelCall) -> list[tuple[int, torch.Tensor]]:
    """The ids of each table, as the bags of the only kernel say it."""
    tables = tables_of(shape.runs[owner])
    if not tables:
        assert not len(call.ids)
        return []
    (bags,) = call.bags
    starts = bags.offsets[:-1].view(len(tables), -1)[:, 0].tolist()
    first = [starts[tables.index(table)] for table in sorted(set(tables))]
    ids = call.ids.tensor_split(first[1:])
    assert (bags.first, bags.last, first[0]) == (0, len(call.ids), 0)
    assert len(bags.offsets) - 1 >= len(call.ids) / 64
    return list(enumerate(ids))


def look_up(shape: Shape, owner: int, call: KernelCall, index: torch.Tensor) -> torch.Tensor:
    """[n] the row codes that the kernel's look-up would put on the wire."""
    ids = by_table(shape, owner, call)
    found = [code(owner, table, row) for table, of_table in ids for row in of_table.tolist()]
    assert len(set(found)) == len(found), "a row is looked up twice"
    return as_ids(found)[index]


def check_rows(shape: Shape, asked: Asked, shared: set[int], groups: Sequence[GroupAhead]) -> None:
    """What is fetched gives every local output its row. Each row is sent once to a rank; to a host, in two levels. A
    shared row comes with the first part of its requester that asks for it."""
    two_levels = 1 < shape.ranks_per_host < shape.world_size
    parts = asked.number_of_parts
    buffers = [torch.full((group.merge.strips,), -1) for group in groups]
    pieces = []
    for piece in range(parts + 1):
        fetch = [group.fetch[piece] for group in groups]
        legs = [each.legs[0] for each in fetch]
        rows = [look_up(shape, owner, each.call, each.legs[0].index) for owner, each in enumerate(fetch)]
        limit = shape.chunk_rows if piece == parts else None
        pieces.append(exchange(rows, legs, limit, exact=not two_levels))
        fill(buffers, legs, pieces[-1])
    if two_levels:
        check_hosts(shape, *pieces)
        passed = [pass_on(shape, buffers, [group.fetch[piece].legs[1] for group in groups]) for piece in range(2)]
        pieces = [[torch.cat(each) for each in zip(*both, strict=True)] for both in zip(pieces, passed, strict=True)]
    for rank, group in enumerate(groups):
        came = [of_piece[rank] for of_piece in pieces]
        rows = torch.cat(came)
        assert rows.tolist() == buffers[rank].tolist()
        assert group.buffer.shape == (len(rows), 3)
        wanted = codes_of(shape, asked, rank)
        of_parts = dict(sorted(zip(wanted, flat(asked.parts[rank]), strict=True), key=lambda each: -each[1]))
        expected = [
            {row for row, part in of_parts.items() if row in shared and part == piece} for piece in range(parts)
        ]
        assert [set(of_piece.tolist()) for of_piece in came[:-1]] == expected
        assert shared.isdisjoint(came[-1].tolist())
        assert rows[group.merge.index].tolist() == local_order(asked, rank, wanted)
        assert group.merge.ends == np.cumsum([flat(asked.parts[rank]).count(part) for part in range(parts)]).tolist()
        assert sorted(rows.tolist()) == sorted(set(wanted)), "a row travels twice, or nobody asked for it"
        assert group.collisions.occurrences == len(codes_at(shape, asked, rank))
        assert group.collisions.colliding == sum(row in shared for row in codes_at(shape, asked, rank))
        assert group.collisions.unique == len(set(codes_at(shape, asked, rank)))
        assert group.collisions.unique_colliding == len(shared & set(codes_at(shape, asked, rank)))


def fill(buffers: list[torch.Tensor], legs: list[Leg], received: list[torch.Tensor]) -> None:
    """Into the buffers, which have nothing in these places yet."""
    for buffer, leg, rows in zip(buffers, legs, received, strict=True):
        assert (buffer[leg.start : leg.end] == -1).all()
        buffer[leg.start : leg.end] = rows


def check_hosts(shape: Shape, early: list[torch.Tensor], late: list[torch.Tensor]) -> None:
    """Of other hosts' rows each comes to one rank of a host."""
    per_host = shape.ranks_per_host
    for first in range(0, shape.world_size, per_host):
        of_host = torch.cat([*early[first : first + per_host], *late[first : first + per_host]]).tolist()
        far = [row for row in of_host if not first <= row // 1000 < first + per_host]
        assert len(set(far)) == len(far), "a row came to a host twice"


def pass_on(shape: Shape, buffers: list[torch.Tensor], legs: list[Leg]) -> list[torch.Tensor]:
    """[W] what ranks of the same host pass on."""
    for rank, leg in enumerate(legs):
        first = rank - rank % shape.ranks_per_host
        of_others = [*range(first), *range(first + shape.ranks_per_host, shape.world_size)]
        assert not any(leg.send[peer] or leg.receive[peer] for peer in of_others)
    sent = [buffer[leg.index] for buffer, leg in zip(buffers, legs, strict=True)]
    assert not any((rows == -1).any() for rows in sent), "a row is passed on that is not here yet"
    received = exchange(sent, legs, None, exact=False)
    fill(buffers, legs, received)
    return received


def check_gradients(shape: Shape, asked: Asked, urgent: set[int], later: set[int], backs: Sequence[Back]) -> None:
    """Gradients of all classes reach their rows in TorchRec's order: those of rows that are `urgent`, that are needed
    `later`, and of all others. They travel by class and part."""
    parts = asked.number_of_parts
    classes = [urgent, later] if parts > 1 else [urgent | later]
    pieces = [(rows, part) for rows in classes for part in range(parts)]
    received = [torch.full((back.legs[-1].end,), -1) for back in backs]
    for piece, (rows, part) in enumerate([*pieces, (used(shape, asked) - urgent - later, None)]):
        names = []
        for rank, back in enumerate(backs):
            of_part = np.diff(back.ends, prepend=0)[part] if part is not None else back.ends[-1]
            first = back.ends[part - 1] if part else 0
            local = as_ids([gradient_name(rank, first + i) for i in range(of_part)])
            names.append(local[back.legs[piece].index])
            at_wire = local_outputs(asked, rank)
            sent = {codes_of(shape, asked, rank)[at_wire[name % 1000]] for name in names[-1].tolist()}
            assert sent <= rows
        legs = [back.legs[piece] for back in backs]
        limit = shape.chunk_rows if part is None else None
        fill(received, legs, exchange(names, legs, limit, owners_send=False))
    for of_class, rows in enumerate([*classes, used(shape, asked) - urgent - later]):
        for owner, back in enumerate(backs):
            check_update(shape, asked, owner, rows, back.applies[of_class], received[owner])


def check_update(
    shape: Shape, asked: Asked, owner: int, chosen: set[int], apply: Apply, received: torch.Tensor
) -> None:
    """Of the occurrences on the rows `chosen`, and no others."""
    came = received[apply.index].tolist()
    rows = [code(owner, table, row) for table, ids in by_table(shape, owner, apply.call) for row in ids.tolist()]
    expected = [each for of_feature in torchrec_order(shape, asked, owner) for each in of_feature]
    assert list(zip(rows, came, strict=True)) == [(row, name) for row, name in expected if row in chosen]
