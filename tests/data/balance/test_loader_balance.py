"""The loader on several ranks with `balance`: what it does without histories, with `max_tokens`, and for how long."""

import numpy as np
import polars as pl
import pytest
from data_kit import load, rows_of
from global_batches import COST, global_batch
from rank_loaders import loader_on, orders_of
from worlds import shared_world

from fsdata import Balance, ParquetSource, Schema, Sequence
from fsdata.balance.options import StepPlanner
from fsdata.balance.packing import OverCapError, pack

ONE_HOT = Schema(context=("row", "country"), dense=("age",))
CANDIDATES = Schema(candidates=Sequence("candidates", ("candidate",)), context=("row",))


def read_one_hot(rank, world_size, folder, method, schema):
    batches, _ = load(folder / "own", schema, batch_size=4, balance=Balance(method))
    return [(batch.stats.samples, rows_of(batch)) for batch in batches]


@pytest.mark.parametrize(
    ("method", "schema"), [("vbs", ONE_HOT), ("repair", CANDIDATES)], ids=["scalars", "candidates"]
)
def test_without_sequences_ranks_get_equal_numbers(folder, method, schema):
    by_rank = shared_world(2).run(read_one_hot, folder, method, schema)
    assert sorted(row for steps in by_rank for _, rows in steps for row in rows) == list(range(40))
    if schema is ONE_HOT:
        assert [counts for steps in by_rank for counts, _ in steps] == [4] * 10


SOME = [row for row in range(40) if row < 22 or row % 5 == 0]


def some_of(folder):
    return ParquetSource(folder / "own", filter=pl.col("row").is_in(SOME))


@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "repair", "hierarchical"])
def test_as_many_rows_as_fit_take_part(method):
    rng = np.random.default_rng(0)
    tokens, home = rng.integers(1, 40, 50), np.sort(rng.integers(0, 4, 50))
    options = {"method": method, "ranks_per_node": 2 if method == "hierarchical" else None}
    balance = Balance(max_tokens=int(tokens.sum() * 0.2), **options)
    found = StepPlanner(balance, 4, carry=True)(global_batch(tokens, home))
    row = np.concatenate([np.arange(count) for count in np.bincount(home)])
    assert np.bincount(found.rank, tokens[row < found.rows]).max() <= balance.max_tokens
    more = row <= found.rows
    options |= {"tokens": tokens[more], "max_tokens": balance.max_tokens, "home": home[more]}
    with pytest.raises(OverCapError):
        pack(balance.cost({"uih": tokens[more]}), 4, **options)


def test_what_cannot_be_carried_is_an_error_that_says_so():
    batch = global_batch([5, 5, 5, 5], [0, 0, 1, 1])
    carries = r"raise max_tokens.*Only FreeScaleDataLoader\(balance=...\) can carry rows over"
    with pytest.raises(ValueError, match=carries):
        StepPlanner(Balance(max_tokens=9), 2)(batch)
    assert StepPlanner(Balance(max_tokens=9), 2, carry=True)(batch).rows == 1
    with pytest.raises(ValueError, match="max_tokens=4 is below the longest sample of this step: 5 elements, row 0 of"):
        StepPlanner(Balance(max_tokens=4), 2, carry=True)(batch)


def tuned(rank, world_size, folder):
    balance = Balance("fbs+swap", cost=COST, max_tokens=19, autotune=True)
    states, carried = [], 0
    with loader_on(folder, balance=balance, sources=some_of(folder), prefetch=0) as loader:
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
    options = {"balance": Balance("fbs+swap", cost=COST, max_tokens=12), "shuffle": True, "prefetch": 0}
    with loader_on(folder, some_of(folder), **options) as loader:
        return orders_of(loader, (100, *places))


def test_leaving_the_loop_while_rows_are_carried(folder):
    """Also after the steps that end the reading."""
    places = range(1, 14, 4)
    by_rank = shared_world(2).run(leave_while_carrying, folder, places)
    assert len(by_rank[0][0]) > 5
    for whole, *parts in by_rank:
        assert parts == [whole[:steps] for steps in places]
    assert sorted(row for orders in by_rank for rows in orders[0] for row in rows) == SOME
