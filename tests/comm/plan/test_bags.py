"""What travels where of pooled tables, up to four ranks in one process: vectors reach the outputs, gradients the rows.

Numbers are small integers, so that sums are exact in any order.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import exchange, fill

from fscomm.bags.bag_plan import BagPlan, BagRequest, strips_of_sample
from fscomm.plan.group_plan import Ahead, AskedIds, Back, Served
from fscomm.plan.kernel_calls import KernelCall
from fscomm.plan.peer_ids import unit_classes_back
from fscomm.plan.sharding_group import GroupLayout, Pooling

DIM = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    layouts: list[GroupLayout]
    tables: list[list[torch.Tensor]]  # [W][T] rows of each owner
    requests: list[BagRequest]
    served: list[Served]
    lengths: list[torch.Tensor]  # [W] [features of all owners, B]
    ids: list[list[torch.Tensor]]  # [W][bag, feature by feature]
    weights: list[torch.Tensor | None]

    limit: int

    @property
    def plans(self) -> list[BagPlan]:
        return [BagPlan(layout) for layout in self.layouts]


def world(hosts: int, owners: int, weighted: bool, chunk: int, parts: int, seed: int) -> World:
    """Owners with tables of one to three strips; in parts, all `owners` of a host have the same ones."""
    size = hosts * owners
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    shapes = [[(number(1, 2), number(1, 3), number(2, 9)) for _ in range(number(1, 2))] for _ in range(size)]
    shapes = [[] if number(0, 4) == 0 else shape for shape in shapes[:hosts]]
    if not any(shapes):
        shapes[0] = [(1, 1, 4)]
    shapes = [shape for shape in shapes for _ in range(owners)]
    pieces = tuple(tuple(width for features, width, _ in shape for _ in range(features)) for shape in shapes)
    layouts = [
        GroupLayout(
            module="m", sharding="table_row_wise", rank=rank, world_size=size, dim=DIM,
            dtype=torch.float32, runs=tuple(tuple(features for features, _, _ in shape) for shape in shapes),
            rows=tuple(rows for _, _, rows in shapes[rank]), chunk_bytes=chunk * 4 * DIM,
            pooling=Pooling(strips=pieces, owners=owners, mean=True),
        )
        for rank in range(size)
    ]  # fmt: skip
    tables = [
        [torch.randint(-9, 10, (rows, width * DIM), generator=draw).float() for _, width, rows in shape]
        for shape in shapes
    ]
    rows_of = [rows for shape in shapes for features, _, rows in shape for _ in range(features)]
    samples = number(1, 4)
    lengths, ids, weights, requests = [], [], [], []
    for rank in range(size):
        mine = samples if owners > 1 else number(0, 4)
        of_rank = torch.randint(0, 4, (len(rows_of), mine), generator=draw)
        drawn = [
            torch.randint(0, rows, (int(length),), generator=draw)
            for rows, row in zip(rows_of, of_rank, strict=True)
            for length in row
        ]
        values = torch.cat([*drawn, torch.empty(0, dtype=torch.int64)])
        given_weights = torch.randint(1, 4, (len(values),), generator=draw).float() if weighted else None
        lengths.append(of_rank)
        ids.append(drawn)
        weights.append(given_weights)
        ends = sorted(number(0, mine) for _ in range(parts - 1))
        asked = cut_samples(of_rank, values, given_weights, [0, *ends, mine])
        requests.append(BagPlan(layouts[rank]).request(asked))
    served = []
    for owner, layout in enumerate(layouts):
        plan = BagPlan(layout)
        numbers, words = sent_to(plan, requests, owner)
        assert plan.words_from(numbers, parts).tolist() == [len(each) for each in words]
        served.append(plan.serve(np.concatenate(words), numbers, parts))
        assert not served[-1].irregular
    return World(
        layouts=layouts,
        tables=tables,
        requests=requests,
        served=served,
        lengths=lengths,
        ids=ids,
        weights=weights,
        limit=chunk,
    )


def cut_samples(
    lengths: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, ends: list[int]
) -> list[AskedIds]:
    """The same ids, cut into parts of consecutive samples."""
    sample = torch.arange(lengths.shape[1]).repeat(len(lengths)).repeat_interleave(lengths.flatten())
    parts = []
    for start, end in itertools.pairwise(ends):
        here = (sample >= start) & (sample < end)
        of_part = lengths[:, start:end]
        of_weights = None if weights is None else weights[here]
        parts.append(AskedIds(ids[here], of_part.sum(1).tolist(), None, of_part, of_weights))
    return parts


def sent_to(plan: BagPlan, requests: list[BagRequest], owner: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """[W, n] numbers and [W] words from every requester to `owner`."""
    numbers = [plan.numbers(request).reshape(plan.layout.world_size, -1)[owner] for request in requests]
    words = [np.split(of_all, np.cumsum(sizes)[:-1])[owner] for of_all, sizes in map(plan.words, requests)]
    return np.stack(numbers), words


def planned(found: World, rows: list[np.ndarray], *, back: bool) -> list[Any]:
    """[W] `Ahead`, or `Back`; rows: [W] uint8[R] classes by owner."""
    plans = found.plans
    shared = [plan.shared(*each, back=back) for plan, *each in zip(plans, found.served, rows, strict=True)]
    masks = [
        [np.split(mask, np.cumsum(served.ids.units)[:-1]) for mask in plan.masks(served, of_owner, back=back)]
        for plan, served, of_owner in zip(plans, found.served, shared, strict=True)
    ]
    bounds = np.array([each.bounds for each in shared])
    made = []
    for rank, (plan, request, served, of_owner) in enumerate(
        zip(plans, found.requests, found.served, shared, strict=True)
    ):
        mine = [np.concatenate([mask[rank] for mask in of_class]) for of_class in zip(*masks, strict=True)]
        made.append((plan.back if back else plan.ahead)(request, served, of_owner, plan.reply(mine, bounds)))
    return made


def samples_of(call: KernelCall, features: int) -> int:
    """Of a call of a kernel."""
    return (len(call.bags[0].offsets) - 1) // features if call.bags else 0


def tables_of(layout: GroupLayout) -> list[int]:
    """[F] the table of each feature of this owner."""
    return [t for t, features in enumerate(layout.runs[layout.rank]) for _ in range(features)]


def looked_up(found: World, rank: int, call: KernelCall, index: torch.Tensor) -> torch.Tensor:
    """[n, DIM] as the fused kernels and `PooledTables` do."""
    tables = tables_of(found.layouts[rank])
    samples = samples_of(call, len(tables))
    columns = [
        torch.stack([pooled(found.tables[rank][t], call, f * samples + b) for b in range(samples)])
        for f, t in enumerate(tables)
        if samples
    ]
    vectors = torch.cat(columns, 1).view(-1, DIM) if columns else torch.empty(0, DIM)
    return vectors.index_select(0, index)


def pooled(table: torch.Tensor, call: KernelCall, bag: int) -> torch.Tensor:
    here = slice(*call.bags[0].offsets[bag : bag + 2].tolist())
    rows = table[call.ids[here]]
    return (rows if call.weights is None else rows * call.weights[here, None]).sum(0)


def expected(found: World, rank: int) -> torch.Tensor:
    """[B, all columns] straight from the tables: feature by feature of one owner after another."""
    layout, lengths = found.layouts[rank], found.lengths[rank]
    weights = None if found.weights[rank] is None else list(found.weights[rank].split(lengths.flatten().tolist()))
    vectors: dict[int, list[torch.Tensor]] = {}
    bag = feature = 0
    for owner, runs in enumerate(layout.runs):
        for table, features in enumerate(runs):
            for _ in range(features):
                column = []
                for _ in range(lengths.shape[1]):
                    rows = found.tables[owner][table][found.ids[rank][bag]]
                    column.append((rows if weights is None else rows * weights[bag][:, None]).sum(0))
                    bag += 1
                width = found.tables[owner][table].shape[1]
                vectors.setdefault(owner, []).append(torch.stack(column) if column else torch.empty(0, width))
                feature += 1
    of_owners = {owner: torch.cat(each, 1) for owner, each in vectors.items()}
    count = layout.pooling.owners
    hosts = [range(first, first + count) for first in range(0, layout.world_size, count) if first in of_owners]
    return torch.cat([torch.stack([of_owners[owner] for owner in host]).sum(0) for host in hosts], 1)


CASES = st.builds(
    lambda shape, *others: world(*shape, *others),
    st.sampled_from([(hosts, owners) for hosts in range(1, 5) for owners in range(1, 5) if hosts * owners <= 6]),
    st.booleans(), st.sampled_from([1, 3, 1000]), st.sampled_from([1, 1, 2, 3]), st.integers(0, 10**6),
)  # fmt: skip


def drawn_classes(found: World, share: float, classes: int) -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    drawn = [(draw.random(len(served.rows)), draw.integers(0, classes, len(served.rows))) for served in found.served]
    return [np.where(number < share, of, classes).astype(np.uint8) for number, of in drawn]


@given(found=CASES, share=st.sampled_from([0.0, 0.3, 1.0]))
def test_vectors_reach_the_outputs(found: World, share: float) -> None:
    """Those of bags with a shared row with the first part that asks for them, so before any part needs them."""
    shared = drawn_classes(found, share, 1)
    ahead: list[Ahead] = planned(found, shared, back=False)
    buffers = [
        plan.merge.new_buffer(layout, torch.device("cpu")).fill_(-1)
        for plan, layout in zip(ahead, found.layouts, strict=True)
    ]
    for plan, buffer in zip(ahead, buffers, strict=True):
        buffer[plan.merge.strips :] = 0
    parts = found.served[0].ids.parts
    outputs: list[list[torch.Tensor]] = [[] for _ in ahead]
    for piece in [parts, *range(parts)]:
        fetch = [plan.fetch[piece] for plan in ahead]
        legs = [leg for each in fetch for leg in each.legs]
        sent = [looked_up(found, rank, each.call, each.legs[0].index) for rank, each in enumerate(fetch)]
        fill(buffers, legs, exchange(sent, legs, found.limit if piece == parts else None))
        for plan, buffer, of_rank in zip(ahead, buffers, outputs, strict=True):
            if piece < parts:
                of_rank.append(plan.merge.output(buffer, piece))
    for rank, of_rank in enumerate(outputs):
        assert torch.equal(torch.cat(of_rank), expected(found, rank))


@given(found=CASES, share=st.sampled_from([0.0, 0.3, 1.0]))
def test_gradients_reach_the_rows(found: World, share: float) -> None:
    """As autograd has it; rows of a class when the pieces of this class and of more urgent ones have come."""
    parts = found.served[0].ids.parts
    number = unit_classes_back(parts)
    classes = drawn_classes(found, share, number)
    ways: list[Back] = planned(found, classes, back=True)
    gradients = [
        torch.randint(-9, 10, (request.samples[-1] * strips_of_sample(layout), DIM)).float()
        for request, layout in zip(found.requests, found.layouts, strict=True)
    ]
    added = [[torch.zeros_like(table) for table in tables] for tables in found.tables]
    buffers = [torch.full((way.legs[-1].end, DIM), -1000.0) for way in ways]
    for piece in range(number * parts + 1):
        legs = [way.legs[piece] for way in ways]
        sent = []
        for gradient, way, leg in zip(gradients, ways, legs, strict=True):
            of_parts = gradient.split(np.diff(way.ends, prepend=0).tolist())
            given_part = gradient if piece == number * parts else of_parts[piece % parts]
            sent.append(given_part[leg.index])
        limit = found.limit if piece == number * parts else None
        received = exchange(sent, legs, limit, owners_send=False)
        for buffer, leg, rows in zip(buffers, legs, received, strict=True):
            buffer[leg.start : leg.end] = rows
        if (piece + 1) % parts and piece < number * parts:
            continue
        of_class = piece // parts
        for rank, (way, buffer) in enumerate(zip(ways, buffers, strict=True)):
            updated = add(found.layouts[rank], way.applies[of_class], buffer, added[rank])
            rows = found.served[rank].rows
            tables = np.searchsorted(rows.ends, np.arange(len(rows)), side="right")
            allowed = zip(tables.tolist(), rows.ids.tolist(), classes[rank] == of_class, strict=True)
            assert updated <= {(table, row) for table, row, here in allowed if here}
    for rank, tables in enumerate(found.tables):
        for table, sums in zip(tables, added[rank], strict=True):
            table.requires_grad_()
            table.grad = torch.zeros_like(sums)
    for rank, (request, gradient) in enumerate(zip(found.requests, gradients, strict=True)):
        if request.samples[-1]:
            (expected(found, rank) * gradient.view(request.samples[-1], -1)).sum().backward()
    for rank, tables in enumerate(found.tables):
        assert all(torch.equal(table.grad, sums) for table, sums in zip(tables, added[rank], strict=True))


def add(layout: GroupLayout, apply: Any, came: torch.Tensor, tables: list[torch.Tensor]) -> set[tuple[int, int]]:
    """Add gradients to the rows of `tables` as a kernel does; which (table, row) were reached."""
    widths = layout.pooling.strips[layout.rank]
    samples = samples_of(apply.call, len(widths))
    starts = torch.tensor([0, *widths]).cumsum(0) * DIM
    reached = set()
    for f, table in enumerate(tables_of(layout)):
        for b in range(samples):
            here = slice(*apply.call.bags[0].offsets[f * samples + b :][:2].tolist())
            if here.start == here.stop:
                continue  # such a bag gets some gradient, which reaches no row
            vector = came[apply.index].view(samples, -1)[b, starts[f] : starts[f + 1]]
            weights = torch.ones(here.stop - here.start) if apply.call.weights is None else apply.call.weights[here]
            tables[table].index_add_(0, apply.call.ids[here], weights[:, None] * vector)
            reached |= {(table, row) for row in apply.call.ids[here].tolist()}
    return reached


def test_equal_bags_of_one_id_travel_once() -> None:
    layout = GroupLayout(
        module="m", sharding="table_wise", rank=0, world_size=1, dim=DIM, dtype=torch.float32, runs=((2,),),
        rows=(9,), pooling=Pooling(strips=((1, 1),), owners=1, mean=False),
    )  # fmt: skip
    lengths = torch.tensor([[1, 1, 2, 2], [1, 0, 1, 1]])
    ids = torch.tensor([5, 5, 5, 5, 5, 5, 5, 3, 5])
    for ends in ([0, 4], [0, 1, 3, 4]):
        asking = BagPlan(layout).request(cut_samples(lengths, ids, None, ends))
        assert asking.ids.units.tolist() == [5]  # 5; 5, 5; 5, 5; of the other feature 5; 3
    weighted = BagPlan(layout).request(cut_samples(lengths, ids, torch.rand(9), [0, 4]))
    assert weighted.ids.units.tolist() == [7]


@pytest.mark.parametrize("problem", ["weights of one rank only", "other batch sizes", "an id outside"])
def test_what_does_not_fit_is_irregular(problem: str) -> None:
    layouts = [
        GroupLayout(
            module="m", sharding="row_wise", rank=rank, world_size=2, dim=DIM, dtype=torch.float32, runs=((1,), (1,)),
            rows=(4,), pooling=Pooling(strips=((1,), (1,)), owners=2, mean=False),
        )
        for rank in range(2)
    ]  # fmt: skip
    samples = 3 if problem == "other batch sizes" else 2
    given_ids = torch.tensor([7 if problem == "an id outside" else 3, 1])
    weights = torch.rand(2) if problem == "weights of one rank only" else None
    one = BagPlan(layouts[0]).request(cut_samples(torch.tensor([[1, 0], [0, 1]]), given_ids, weights, [0, 2]))
    lengths = torch.tensor([[1] + [0] * (samples - 1), [0] * samples])
    other = BagPlan(layouts[1]).request(cut_samples(lengths, torch.tensor([2]), None, [0, samples]))
    plan = BagPlan(layouts[0])
    numbers, words = sent_to(plan, [one, other], 0)
    assert plan.serve(np.concatenate(words), numbers, 1).irregular
