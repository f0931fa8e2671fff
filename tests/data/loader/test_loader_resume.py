"""The loader on several ranks goes on where a state was saved, on as many ranks or on others."""

import json

import polars as pl
import pytest
from rank_loaders import ALL, COST, loader_on, rows_of
from sets import same
from worlds import shared_world

from fsdata import Balance, ParquetSource


def resume_balanced(rank, world_size, folder, methods, every=1):
    results = []
    for options in methods:
        states, batches = [], []
        with loader_on(folder, **options) as loader:
            states.append(loader.state_dict())
            for batch in loader:
                batches.append(batch)
                states.append(json.loads(json.dumps(loader.state_dict())))
        for at in range(0, len(batches), every):
            with loader_on(folder, **options) as again:
                again.load_state_dict(states[at])
                rest = list(again)
            assert len(rest) == len(batches) - at
            assert all(map(same, rest, batches[at:])), at
        results.append(states)
    return results


@pytest.mark.parametrize(
    ("world_size", "every"),
    [(3, 5), pytest.param(2, 1, marks=pytest.mark.long), pytest.param(3, 1, marks=pytest.mark.long)],
)
def test_resume_at_every_batch_under_shuffle_and_balance(folder, world_size, every):
    some = ParquetSource(str(folder / "own"), filter=pl.col("row") % 3 != 0)
    methods = [
        {"shuffle": True, "balance": Balance(cost=COST), "shuffle_window": 2},
        {"sources": some, "balance": Balance("vbs", cost=COST)},
        {"sources": some, "uneven": "empty", "shuffle": True},
    ]
    by_rank = shared_world(world_size).run(resume_balanced, folder, methods, every)
    assert all(states == by_rank[0] for states in by_rank)


def first_steps(rank, world_size, folder, options, steps):
    with loader_on(folder, **options) as loader:
        seen = []
        for batch in loader:
            seen += rows_of(batch)
            if batch.stats.step + 1 == steps:
                break
        return seen, loader.state_dict()


def steps_from(rank, world_size, folder, options, state):
    with loader_on(folder, **options) as loader:
        loader.load_state_dict(state)
        return [row for batch in loader for row in rows_of(batch)]


@pytest.mark.parametrize(("before", "after"), [(2, 3), pytest.param(3, 2, marks=pytest.mark.long)])
def test_resume_on_other_ranks(folder, before, after):
    options = {"shuffle": True, "balance": Balance(cost=COST)}
    first = shared_world(before).run(first_steps, folder, options, 2)
    rest = shared_world(after).run(steps_from, folder, options, first[0][1])
    seen = [row for rows, _ in first for row in rows] + [row for rows in rest for row in rows]
    assert sorted(seen) == ALL


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("mix", ["sequential", "weighted", "time"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_at_every_batch_sweep(folder, world_size, mix, shuffle):
    methods = [
        {"shuffle": shuffle, "mix": mix, "balance": Balance(method, cost=COST, **more), "prefetch": prefetch}
        for method, more, prefetch in (
            ("fbs", {}, 2),
            ("fbs+swap", {}, 1),
            ("vbs", {}, 3),
            ("vbs-contiguous", {}, 2),
            ("repair", {}, 0),
            ("hierarchical", {"ranks_per_node": 1 if world_size == 3 else 2}, 2),
        )
    ]
    by_rank = shared_world(world_size).run(resume_balanced, folder, methods)
    assert all(states == by_rank[0] for states in by_rank)


@pytest.mark.long
@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("mix", ["sequential", "weighted", "time"])
def test_resume_on_other_ranks_sweep(folder, before, after, mix):
    options = {"shuffle": True, "mix": mix, "shuffle_window": 3, "batch_size": 2}
    for steps in (1, 2, 5):
        first = shared_world(before).run(first_steps, folder, options, steps)
        rest = shared_world(after).run(steps_from, folder, options, first[0][1])
        seen = [row for rows, _ in first for row in rows] + [row for rows in rest for row in rows]
        assert sorted(seen) == ALL
