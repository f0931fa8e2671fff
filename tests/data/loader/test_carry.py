"""`max_tokens`: rows that do not fit into a step are read again in the next one, every row once, resumable anywhere."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from patience import PATIENCE_S
from sets import SCHEMA, expected, same, samples_of, two_sources
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, PeerError, Polynomial
from fsdata.balance.exchange import GlobalBatch, StatusWord
from fsdata.balance.options import StepPlanner
from fsdata.balance.packing import OverCapError, pack
from fsdata.balance.rebalance.rebalance import rebalance

COST = Polynomial(linear=1, quadratic=1, candidate=1)
ALL = [*range(40), *range(100, 123)]
CAP = 19  # events: the longest sample has 12, four samples about 22
KEPT = (pl.col("row") < 22) | (pl.col("row") % 5 == 0)
SOME = [row for row in range(40) if row < 22 or row % 5 == 0]
WAYS = [
    {"balance": Balance("fbs+swap", cost=COST, max_tokens=CAP)},
    {"balance": Balance("vbs", cost=COST, max_tokens=CAP), "shuffle": True, "shuffle_window": 2, "mix": "weighted"},
    {"balance": Balance("repair", cost=COST, max_tokens=CAP), "some": True, "prefetch": 0},
    {"balance": Balance("fbs+swap", cost=COST, max_tokens=12), "some": True, "shuffle": True},
]
"""Without and with shuffling, rows that drop out, ranks that end at other steps, a cap that only single samples fit."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    two_sources(folder)
    return folder


def loader_on(folder, *, some=False, **options):
    sources = [
        ParquetSource(str(folder / "own"), filter=KEPT if some else None),
        ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}),
    ]
    return FreeScaleDataLoader(sources[: 1 if some else 2], SCHEMA, batch_size=4, timeout_s=PATIENCE_S, **options)


def read(rank, world_size, folder, options, every=None):
    """Per step: (rows, where they were read, carried), and the states. Each `every`-th of them goes on bit for bit."""
    want, cap = expected(folder), options["balance"].max_tokens
    batches, steps = [], []
    with loader_on(folder, **options) as loader:
        states = [loader.state_dict()]
        for batch in loader:
            batches.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
            samples = samples_of(batch)
            assert all(sample == want[sample["row"]] for sample in samples)
            assert sum(len(sample["item"]) + len(sample["candidate"]) for sample in samples) <= cap
            steps.append(([sample["row"] for sample in samples], batch.origin.tolist(), batch.stats.carried))
    if every:
        with loader_on(folder, **options) as again:
            for at in range(0, len(batches), every):
                again.load_state_dict(states[at])
                rest = list(again)
                assert len(rest) == len(batches) - at
                assert all(map(same, rest, batches[at:])), at
    return steps, states


def read_plain(rank, world_size, folder, options):
    with loader_on(folder, **{**options, "balance": None}, uneven="empty") as loader:
        return [sample["row"] for batch in loader for sample in samples_of(batch)]


@pytest.mark.parametrize(
    ("world_size", "every"), [(2, 6), *(pytest.param(size, 1, marks=pytest.mark.long) for size in (1, 2, 3))]
)
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_rows_over_the_cap_come_in_the_next_step(folder, world_size, every, way):
    world = shared_world(world_size)
    by_rank = world.run(read, folder, WAYS[way], every)
    steps = list(zip(*(steps for steps, _ in by_rank), strict=True))
    assert all(states == by_rank[0][1] for _, states in by_rank)
    assert all(len({carried for _, _, carried in step}) == 1 for step in steps)
    carried = [step[0][2] for step in steps]
    assert max(carried) > 0 == carried[-1]

    # Each rank's rows come in the order in which they were read, none twice, none late but for the cap.
    read_by = {rank: [] for rank in range(world_size)}
    for step in steps:
        places = {tuple(place): row for rows, origin, _ in step for place, row in zip(origin, rows, strict=True)}
        for rank, row in sorted(places):
            read_by[rank].append(places[rank, row])
    assert [read_by[rank] for rank in range(world_size)] == world.run(read_plain, folder, WAYS[way])


def rest_of(rank, world_size, folder, options, states):
    out = []
    with loader_on(folder, **options) as loader:
        for state in states:
            loader.load_state_dict(state)
            out.append([sample["row"] for batch in loader for sample in samples_of(batch)])
    return out


@pytest.mark.parametrize(
    ("way", "before", "after", "every"),
    [
        (1, 3, 1, 4),
        (3, 2, 3, 4),
        *(pytest.param(1, *ranks, 1, marks=pytest.mark.long) for ranks in ((1, 2), (2, 3), (3, 1))),
        *(pytest.param(3, *ranks, 1, marks=pytest.mark.long) for ranks in ((1, 2), (2, 3), (3, 1))),
    ],
)
def test_what_is_left_is_read_once_on_other_ranks(folder, way, before, after, every):
    options, want = WAYS[way], SOME if "some" in WAYS[way] else ALL
    first = shared_world(before).run(read, folder, options)
    places = range(0, len(first[0][1]) - 1, every)  # after the last state the next epoch begins
    rest = shared_world(after).run(rest_of, folder, options, [first[0][1][at] for at in places])
    for number, at in enumerate(places):
        seen = [row for steps, _ in first for rows, _, _ in steps[:at] for row in rows]
        seen += [row for rank in rest for row in rank[number]]
        assert sorted(seen) == want, at


def global_batch(tokens, home):
    statuses = (StatusWord(epoch=0, step=3),) * (max(home) + 1)
    return GlobalBatch(number=0, lengths={"uih": np.array(tokens)}, home=np.array(home), statuses=statuses)


@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "repair", "hierarchical"])
@pytest.mark.parametrize("seed", range(5))
def test_as_many_rows_as_fit_take_part(method, seed):
    rng = np.random.default_rng(seed)
    tokens, home = rng.integers(1, 40, 50), np.sort(rng.integers(0, 4, 50))
    balance = Balance(
        method, max_tokens=int(tokens.sum() * 0.2), ranks_per_node=2 if method == "hierarchical" else None
    )
    found = StepPlanner(balance, 4, carry=True)(global_batch(tokens, home))
    row = np.concatenate([np.arange(count) for count in np.bincount(home)])
    assert np.bincount(found.rank, tokens[row < found.rows]).max() <= balance.max_tokens
    options = {"method": method, "max_tokens": balance.max_tokens, "ranks_per_node": balance.ranks_per_node}
    more = row <= found.rows
    with pytest.raises(OverCapError):
        pack(balance.cost({"uih": tokens[more]}), 4, home=home[more], tokens=tokens[more], **options)


def test_what_cannot_be_carried_is_an_error_that_says_so():
    batch = global_batch([5, 5, 5, 5], [0, 0, 1, 1])
    with pytest.raises(
        ValueError, match=r"raise max_tokens.*Only FreeScaleDataLoader\(balance=...\) can carry rows over"
    ):
        StepPlanner(Balance(max_tokens=9), 2)(batch)
    assert StepPlanner(Balance(max_tokens=9), 2, carry=True)(batch).rows == 1
    with pytest.raises(ValueError, match="max_tokens=4 is below the longest sample of this step: 5 elements, row 0 of"):
        StepPlanner(Balance(max_tokens=4), 2, carry=True)(batch)


def one_too_long(rank, world_size, folder):
    with (
        loader_on(folder, balance=Balance(cost=COST, max_tokens=11)) as loader,
        pytest.raises(ValueError, match="max_tokens=11 is below the longest sample"),
    ):
        list(loader)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_single_sample_above_the_cap_is_an_error(folder, world_size):
    shared_world(world_size).run(one_too_long, folder)


def tuned(rank, world_size, folder):
    balance = Balance("fbs+swap", cost=COST, max_tokens=CAP, autotune=True)
    states, carried = [], 0
    with loader_on(folder, balance=balance, some=True, prefetch=0) as loader:
        for _ in range(3):
            for batch in loader:
                loader.report_step(1.5 if rank == 0 else 1.0)
                states.append(loader.state_dict())
                carried += batch.stats.carried
    return states, carried


def test_speeds_are_learned_where_rows_are_carried(folder):
    (one, carried), (two, _) = shared_world(2).run(tuned, folder)
    assert one == two
    assert carried
    assert one[-1]["tuning"]["speed"][0] < one[-1]["tuning"]["speed"][1]


def leave_while_carrying(rank, world_size, folder, places):
    """The rows of all steps, then of as many as `places` say, after which the loop is left."""
    orders = []
    with loader_on(folder, **{**WAYS[3], "prefetch": 0}) as loader:
        for steps in (100, *places):
            loader.set_epoch(0)
            seen = []
            for batch in loader:
                seen.append([sample["row"] for sample in samples_of(batch)])
                if len(seen) == steps:
                    break
            orders.append(seen)
    return orders


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_leaving_the_loop_while_rows_are_carried(folder, every):
    """Also after the steps that end the reading."""
    places = range(1, 14, every)
    by_rank = shared_world(2).run(leave_while_carrying, folder, places)
    assert len(by_rank[0][0]) > 5
    for whole, *parts in by_rank:
        assert parts == [whole[:steps] for steps in places]
    assert sorted(row for orders in by_rank for rows in orders[0] for row in rows) == SOME


def fail_while_carrying(rank, world_size, folder):
    """Rank 1 fails after an exchange in which rows were carried."""
    with loader_on(folder, **WAYS[0]) as loader:
        iterator = iter(loader)
        next(iterator)
        if rank == 1:
            loader.close()
            return
        with pytest.raises(PeerError, match="rank 1"):
            list(iterator)


def test_a_rank_that_leaves_while_rows_are_carried_is_named(folder):
    shared_world(2).run(fail_while_carrying, folder)


def too_much(rank, world_size):
    batches = [{"n": torch.full((4,), 5)}] * 2
    balance = Balance(max_tokens=19)
    with (
        rebalance(batches, lengths=lambda batch: batch["n"], balance=balance, timeout_s=PATIENCE_S) as loader,
        pytest.raises(ValueError, match="Only FreeScaleDataLoader"),
    ):
        list(loader)


def test_rebalance_cannot_carry():
    shared_world(2).run(too_much)
