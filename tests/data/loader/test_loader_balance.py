"""The loader on several ranks with `balance`: what moves, what autotune learns, and how long a step may take."""

import sys

import polars as pl
import pytest
from patience import PATIENCE_S
from rank_loaders import ALL, COST, loader_on, rows_of, threads_left
from sets import expected, samples_of
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, PeerError, Schema, Sequence, rebalance
from fsdata.balance.exchange import StepExchange

ONE_HOT = Schema(context=("row", "country"), dense=("age",))
CANDIDATES = Schema(candidates=Sequence("candidates", ("candidate",)), context=("row",))


def read_balanced(rank, world_size, folder, options):
    want = expected(folder)
    seen, shares = [], []
    with loader_on(folder, balance=Balance("fbs+swap", cost=COST, timeout_s=PATIENCE_S), **options) as loader:
        for batch in loader:
            samples = samples_of(batch)
            assert all(sample == want[sample["row"]] for sample in samples)
            assert batch.stats.straggler_after <= batch.stats.straggler_before
            seen.append(([sample["row"] for sample in samples], batch.origin.tolist()))
            shares.append(batch.stats.samples)
    assert threads_left() == [], threads_left()
    return seen, shares


def read_plain(rank, world_size, folder, options):
    with loader_on(folder, **options) as loader:
        return [rows_of(batch) for batch in loader]


WAYS = [{}, {"shuffle": True, "mix": "weighted"}, {"mix": "time", "prefetch": 0}]


@pytest.mark.parametrize(
    ("options", "world_size"),
    [
        *zip(WAYS, (2, 3, 2), strict=True),
        *(pytest.param(*case, marks=pytest.mark.long) for case in zip(WAYS, (3, 2, 3), strict=True)),
    ],
)
def test_balance_moves_samples_inside_a_global_batch_and_nowhere_else(folder, world_size, options):
    world = shared_world(world_size)
    plain = world.run(read_plain, folder, options)
    balanced = world.run(read_balanced, folder, options)
    steps = len(plain[0])
    for step in range(steps):
        before = {
            (rank, row): plain[rank][step][row] for rank in range(world_size) for row in range(len(plain[rank][step]))
        }
        after = {}
        for rank in range(world_size):
            rows, origin = balanced[rank][0][step]
            after.update({tuple(context): row for context, row in zip(origin, rows, strict=True)})
        assert after == before
        counts = [balanced[rank][1][step] for rank in range(world_size)]
        assert max(counts) - min(counts) <= 1
    assert sorted(row for rank in plain for step in rank for row in step) == ALL


def read_one_hot(rank, world_size, folder, method, schema):
    source = ParquetSource(str(folder / "own"))
    with FreeScaleDataLoader(source, schema, batch_size=4, balance=Balance(method, timeout_s=PATIENCE_S)) as loader:
        return [(batch.stats.samples, batch.features["row"].values().tolist()) for batch in loader]


@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "repair"])
@pytest.mark.parametrize("schema", [ONE_HOT, CANDIDATES], ids=["scalars", "candidates"])
def test_without_sequences_ranks_get_equal_numbers(folder, method, schema):
    by_rank = shared_world(2).run(read_one_hot, folder, method, schema)
    assert sorted(row for steps in by_rank for _, rows in steps for row in rows) == list(range(40))
    if schema is ONE_HOT:
        assert [counts for steps in by_rank for counts, _ in steps] == [4] * 10


def tune(rank, world_size, folder):
    balance = Balance("fbs+swap", cost=COST, autotune=True)
    with loader_on(folder, balance=balance, batch_size=2) as loader:
        tunings = []
        for _ in range(3):
            for batch in loader:
                cost = sum(len(sample["item"]) for sample in samples_of(batch)) + 1
                loader.report_step(cost * (1.5 if rank == 0 else 1.0) / 1000)
                tunings.append(loader.state_dict()["tuning"]["speed"])
    return tunings


def test_autotune_learns_the_same_speeds_on_every_rank(folder):
    one, two = shared_world(2).run(tune, folder)
    assert one == two
    assert one[-1][0] < one[-1][1]


def silent(rank, world_size, folder):
    with loader_on(folder, balance=Balance(autotune=True), batch_size=1) as loader:
        epochs = (batch for _ in range(3) for batch in loader)
        with pytest.raises((ValueError, PeerError), match="report_step"):
            list(epochs)
    return True


def test_autotune_without_reports_is_an_error(folder):
    assert shared_world(2).run(silent, folder) == [True, True]


def limits_of_steps(rank, world_size, folder):
    """The time limits with which loaders, whose own is 601 s, and `rebalance` make their exchanges."""
    limits = []

    def noted(context, *, timeout_s):
        limits.append(timeout_s)
        return StepExchange(context, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("loader", "balance.rebalance.rebalance"):
            patch.setattr(sys.modules[f"fsdata.{module}"], "StepExchange", noted)
        for balance in (Balance(), Balance(timeout_s=602)):
            loader_on(folder, balance=balance, timeout_s=601).close()
            rebalance([], lengths="x", balance=balance, timeout_s=603).close()
        dropping = ParquetSource(str(folder / "own"), filter=pl.col("row") > 3)
        loader_on(folder, sources=dropping, timeout_s=601).close()
    return limits


def test_the_limit_of_a_step_is_balances_else_the_loaders(folder):
    assert shared_world(2).run(limits_of_steps, folder) == [[601, 603, 602, 602, 601]] * 2
