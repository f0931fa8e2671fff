"""What travels where of pooled tables, up to four ranks in one process: vectors reach the outputs, gradients the rows.

Numbers are small integers, so that sums are exact in any order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import exchange

from fscomm.plan import bags
from fscomm.plan.bags import BagPlan, BagRequest, ServedBags
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.ways import Back, ByClass, RowsAhead, Told

DIM = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    layouts: list[GroupLayout]
    tables: list[list[torch.Tensor]]  # [W][T] rows of each owner
    requests: list[BagRequest]
    served: list[ServedBags]
    lengths: list[torch.Tensor]  # [W] [features of all owners, B]
    ids: list[list[torch.Tensor]]  # [W][bag, feature by feature]
    weights: list[torch.Tensor | None]

    @property
    def plans(self) -> list[BagPlan]:
        return [BagPlan(layout) for layout in self.layouts]


def world(hosts: int, owners: int, weighted: bool, chunk: int, seed: int) -> World:
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
        requests.append(bags.request(values, of_rank, given_weights, layouts[rank]))
    served = []
    for owner, layout in enumerate(layouts):
        plan = BagPlan(layout)
        numbers, words = told(plan, requests, owner)
        assert plan.words_of(numbers).tolist() == [len(each) for each in words]
        served.append(plan.serve(np.concatenate(words), numbers))
        assert not served[-1].irregular
    return World(
        layouts=layouts, tables=tables, requests=requests, served=served, lengths=lengths, ids=ids, weights=weights
    )


def told(plan: BagPlan, requests: list[BagRequest], owner: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """[W, n] numbers and [W] words from every requester to `owner`."""
    numbers = [plan.numbers(request).reshape(len(plan.numbers_to), -1)[owner] for request in requests]
    words = [np.split(of_all, np.cumsum(sizes)[:-1])[owner] for of_all, sizes in map(plan.words, requests)]
    return np.stack(numbers), words


def planned(found: World, rows: list[np.ndarray], *, back: bool) -> list[Any]:
    """[W] `RowsAhead`, or `Back` by class; rows: [W] bool[R] by owner."""
    plans = found.plans
    shared = [plan.shared(*each) for plan, *each in zip(plans, found.served, rows, strict=True)]
    units = [
        np.split(of_owner.units, np.cumsum(served.units)[:-1])
        for of_owner, served in zip(shared, found.served, strict=True)
    ]
    mine = [np.concatenate([of_owner[rank] for of_owner in units]) for rank in range(len(plans))]
    strips = [
        (plan.strips_back if back else plan.strips_ahead)(*each)
        for plan, *each in zip(plans, found.served, shared, strict=True)
    ]
    largest = max(int(of_owner[1].sum() - of_owner[1, rank]) for rank, of_owner in enumerate(strips))
    most = ByClass(*(int(np.stack(strips)[:, of_class].max()) for of_class in (0, 1)))
    ways = [
        (plan.back if back else plan.ahead)(
            *each, Told(mine=units, asking=None, largest=largest, most=most, most_passed=most)
        )
        for plan, *each, units in zip(plans, found.requests, found.served, shared, mine, strict=True)
    ]
    for of_owner, way in zip(strips, ways, strict=True):
        here = [each.apply for each in way] if back else [each.lookup for each in way.fetch]
        assert [np.sum(each.splits, axis=0).tolist() for each in here] == of_owner.tolist()
    return ways


def samples_of(call: Any, features: int) -> int:
    """Of a call of a kernel."""
    return (len(call.offsets) - 1) // max(features, 1)


def tables_of(layout: GroupLayout) -> list[int]:
    """[F] the table of each feature of this owner."""
    return [t for t, features in enumerate(layout.runs[layout.rank]) for _ in range(features)]


def looked_up(found: World, rank: int, lookup: Any) -> torch.Tensor:
    """[n, DIM] as the fused kernels and `PooledTables` do."""
    tables = tables_of(found.layouts[rank])
    samples = samples_of(lookup, len(tables))
    columns = [
        torch.stack([pooled(found.tables[rank][t], lookup, f * samples + b) for b in range(samples)])
        for f, t in enumerate(tables)
        if samples
    ]
    vectors = torch.cat(columns, 1).view(-1, DIM) if columns else torch.empty(0, DIM)
    return vectors.index_select(0, lookup.index)


def pooled(table: torch.Tensor, lookup: Any, bag: int) -> torch.Tensor:
    here = slice(int(lookup.offsets[bag]), int(lookup.offsets[bag + 1]))
    rows = table[lookup.ids[here]]
    return (rows if lookup.weights is None else rows * lookup.weights[here, None]).sum(0)


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
    st.booleans(), st.sampled_from([1, 3, 1000]), st.integers(0, 10**6),
)  # fmt: skip


def drawn_shared(found: World, share: float) -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    return [draw.random(len(served.rows)) < share for served in found.served]


@given(found=CASES, share=st.sampled_from([0.0, 0.3, 1.0]))
def test_vectors_reach_the_outputs(found: World, share: float) -> None:
    ahead: list[RowsAhead] = planned(found, drawn_shared(found, share), back=False)
    buffers = [
        plan.merge.new_buffer(layout, torch.device("cpu")) for plan, layout in zip(ahead, found.layouts, strict=True)
    ]
    for kind, start in (("exclusive", 0), ("collision", 1)):
        fetch = [getattr(plan.fetch, kind) for plan in ahead]
        lookups = [each.lookup for each in fetch]
        sent = [looked_up(found, rank, lookup) for rank, lookup in enumerate(lookups)]
        received = exchange(sent, [each.splits for each in lookups], [each.received for each in fetch], None)
        for plan, buffer, rows in zip(ahead, buffers, received, strict=True):
            first = plan.merge.totals.exclusive * start
            buffer[first : first + len(rows)] = rows
    for rank, (plan, buffer) in enumerate(zip(ahead, buffers, strict=True)):
        assert torch.equal(plan.merge.output(buffer), expected(found, rank))


@given(found=CASES, share=st.sampled_from([0.0, 0.3, 1.0]))
def test_gradients_reach_the_rows(found: World, share: float) -> None:
    """As autograd has it; those of shared rows with the collision class."""
    shared = drawn_shared(found, share)
    ways: list[ByClass[Back]] = planned(found, shared, back=True)
    gradients = [
        torch.randint(-9, 10, (request.samples * bags.row_strips(layout), DIM)).float()
        for request, layout in zip(found.requests, found.layouts, strict=True)
    ]
    added = [[torch.zeros_like(table) for table in tables] for tables in found.tables]
    kept = None
    for kind in ("collision", "exclusive"):
        of_class = [getattr(way, kind) for way in ways]
        applies = [way.apply for way in of_class]
        sent = [gradient[way.index] for gradient, way in zip(gradients, of_class, strict=True)]
        received = exchange(sent, [way.sent for way in of_class], [each.splits for each in applies], None)
        for rank, (apply, came) in enumerate(zip(applies, received, strict=True)):
            before = kept[rank] if kept is not None else came[:0]
            updated = add(found.layouts[rank], apply, torch.cat([before, came]), added[rank])
            rows = found.served[rank].rows
            tables = np.searchsorted(rows.ends, np.arange(len(rows)), side="right")
            allowed = zip(tables.tolist(), rows.ids.tolist(), shared[rank] == (kind == "collision"), strict=True)
            assert updated <= {(table, row) for table, row, here in allowed if here}
        kept = received
    for rank, tables in enumerate(found.tables):
        for table, sums in zip(tables, added[rank], strict=True):
            table.requires_grad_()
            table.grad = torch.zeros_like(sums)
    for rank, (request, gradient) in enumerate(zip(found.requests, gradients, strict=True)):
        if request.samples:
            (expected(found, rank) * gradient.view(request.samples, -1)).sum().backward()
    for rank, tables in enumerate(found.tables):
        assert all(torch.equal(table.grad, sums) for table, sums in zip(tables, added[rank], strict=True))


def add(layout: GroupLayout, apply: Any, came: torch.Tensor, tables: list[torch.Tensor]) -> set[tuple[int, int]]:
    """Add gradients to the rows of `tables` as a kernel does; which (table, row) were reached."""
    widths = layout.pooling.strips[layout.rank]
    samples = samples_of(apply, len(widths))
    starts = torch.tensor([0, *widths]).cumsum(0) * DIM
    reached = set()
    for f, table in enumerate(tables_of(layout)):
        for b in range(samples):
            vector = came[apply.index].view(samples, -1)[b, starts[f] : starts[f + 1]]
            here = slice(int(apply.offsets[f * samples + b]), int(apply.offsets[f * samples + b + 1]))
            weights = torch.ones(here.stop - here.start) if apply.weights is None else apply.weights[here]
            tables[table].index_add_(0, apply.ids[here], weights[:, None] * vector)
            reached |= {(table, row) for row in apply.ids[here].tolist()}
    return reached


def test_equal_bags_of_one_id_travel_once() -> None:
    layout = GroupLayout(
        module="m", sharding="table_wise", rank=0, world_size=1, dim=DIM, dtype=torch.float32, runs=((2,),),
        rows=(9,), pooling=Pooling(strips=((1, 1),), owners=1, mean=False),
    )  # fmt: skip
    lengths = torch.tensor([[1, 1, 2, 2], [1, 0, 1, 1]])
    asking = bags.request(torch.tensor([5, 5, 5, 5, 5, 5, 5, 3, 5]), lengths, None, layout)
    assert asking.bags.distinct.tolist() == [5]  # 5; 5, 5; 5, 5; of the other feature 5; 3
    weighted = bags.request(torch.tensor([5, 5, 5, 5, 5, 5, 5, 3, 5]), lengths, torch.rand(9), layout)
    assert weighted.bags.distinct.tolist() == [7]


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
    one = bags.request(given_ids, torch.tensor([[1, 0], [0, 1]]), weights, layouts[0])
    other = bags.request(torch.tensor([2]), torch.tensor([[1] + [0] * (samples - 1), [0] * samples]), None, layouts[1])
    plan = BagPlan(layouts[0])
    numbers, words = told(plan, [one, other], 0)
    assert plan.serve(np.concatenate(words), numbers).irregular
