"""The loader on several gloo ranks: balance, rows that drop out, resume, and what can go wrong between ranks."""

import json
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.distributed as dist
from sets import SCHEMA, expected, same, samples_of, two_sources, write
from worlds import shared_world

from fsdata import (
    Balance,
    CorruptFileError,
    FreeScaleDataLoader,
    MismatchError,
    ParquetSource,
    PeerError,
    Polynomial,
    Schema,
    Sequence,
)
from fsdata.balance.exchange import StepExchange
from fsdata.balance.rebalance.rebalance import rebalance
from fsranks.rank_context import resolve

ONE_HOT = Schema(context=("row", "country"), dense=("age",))
CANDIDATES = Schema(candidates=Sequence("candidates", ("candidate",)), context=("row",))
COST = Polynomial(linear=1, quadratic=1, candidate=1)
ALL = [*range(40), *range(100, 123)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    two_sources(folder)
    return folder


def loader_on(folder, sources=None, **options):
    if sources is None:
        sources = [
            ParquetSource(str(folder / "own")),
            ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}),
        ]
    return FreeScaleDataLoader(sources, SCHEMA, **{"batch_size": 4, "timeout_s": 20, **options})


def rows_of(batch):
    return [sample["row"] for sample in samples_of(batch)]


def threads_left():
    """Threads of the loader; those of torch's store client and of test tools stay."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("fsdata", "Thread-"))]


def read_balanced(rank, world_size, folder, options):
    want = expected(folder)
    seen, shares = [], []
    with loader_on(folder, balance=Balance("fbs+swap", cost=COST, timeout_s=20), **options) as loader:
        for batch in loader:
            samples = samples_of(batch)
            assert all(sample == want[sample["row"]] for sample in samples)
            assert batch.stats.straggler_after <= batch.stats.straggler_before
            seen.append(([sample["row"] for sample in samples], batch.origin.tolist()))
            shares.append(batch.stats.samples)
    assert threads_left() == []
    return seen, shares


def read_plain(rank, world_size, folder, options):
    with loader_on(folder, **options) as loader:
        return [rows_of(batch) for batch in loader]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "mix": "weighted"}, {"mix": "time", "prefetch": 0}])
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
    with FreeScaleDataLoader(source, schema, batch_size=4, balance=Balance(method, timeout_s=20)) as loader:
        return [(batch.stats.samples, batch.features["row"].values().tolist()) for batch in loader]


@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "repair"])
@pytest.mark.parametrize("schema", [ONE_HOT, CANDIDATES], ids=["scalars", "candidates"])
def test_without_sequences_ranks_get_equal_numbers(folder, method, schema):
    by_rank = shared_world(2).run(read_one_hot, folder, method, schema)
    assert sorted(row for steps in by_rank for _, rows in steps for row in rows) == list(range(40))
    if schema is ONE_HOT:
        assert [counts for steps in by_rank for counts, _ in steps] == [4] * 10


def resume_balanced(rank, world_size, folder, methods):
    results = []
    for options in methods:
        states, batches = [], []
        with loader_on(folder, **options) as loader:
            states.append(loader.state_dict())
            for batch in loader:
                batches.append(batch)
                states.append(json.loads(json.dumps(loader.state_dict())))
        for at in range(len(batches)):
            with loader_on(folder, **options) as again:
                again.load_state_dict(states[at])
                rest = list(again)
            assert len(rest) == len(batches) - at
            assert all(map(same, rest, batches[at:])), at
        results.append(states)
    return results


@pytest.mark.parametrize("world_size", [2, 3])
def test_resume_at_every_batch_under_shuffle_and_balance(folder, world_size):
    some = ParquetSource(str(folder / "own"), filter=pl.col("row") % 3 != 0)
    methods = [
        {"shuffle": True, "balance": Balance(cost=COST), "shuffle_window": 2},
        {"sources": some, "balance": Balance("vbs", cost=COST)},
        {"sources": some, "uneven": "empty", "shuffle": True},
    ]
    by_rank = shared_world(world_size).run(resume_balanced, folder, methods, timeout_s=60)
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


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_resume_on_other_ranks(folder, before, after):
    options = {"shuffle": True, "balance": Balance(cost=COST)}
    first = shared_world(before).run(first_steps, folder, options, 2)
    rest = shared_world(after).run(steps_from, folder, options, first[0][1])
    seen = [row for rows, _ in first for row in rows] + [row for rows in rest for row in rows]
    assert sorted(seen) == ALL


def read_uneven(rank, world_size, folder, options):
    # All rows of the second half drop out: the ranks' units differ, so does what is left of them.
    source = ParquetSource(str(folder / "own"), filter=(pl.col("row") < 22) | (pl.col("row") % 5 == 0))
    with loader_on(folder, sources=source, **options) as loader:
        sizes, rows = [], []
        for batch in loader:
            rows += rows_of(batch)
            sizes.append(batch.stats.samples)
            assert batch.stats.global_samples >= batch.stats.samples
        return sizes, rows, loader.dropped


@pytest.mark.parametrize("world_size", [2, 3])
def test_rows_that_drop_out(folder, world_size):
    world = shared_world(world_size)
    want = [row for row in range(40) if row < 22 or row % 5 == 0]

    drained = world.run(read_uneven, folder, {"balance": Balance(cost=COST)})
    assert sorted(row for _, rows, _ in drained for row in rows) == want
    assert all(dropped == 0 for _, _, dropped in drained)
    assert len({len(sizes) for sizes, _, _ in drained}) == 1

    empty = world.run(read_uneven, folder, {"uneven": "empty"})
    assert sorted(row for _, rows, _ in empty for row in rows) == want
    assert len({len(sizes) for sizes, _, _ in empty}) == 1
    assert any(0 in sizes for sizes, _, _ in empty)

    dropped = world.run(read_uneven, folder, {"uneven": "drop"})
    seen = [row for _, rows, _ in dropped for row in rows]
    assert len({len(sizes) for sizes, _, _ in dropped}) == 1
    assert len(set(seen)) == len(seen) < len(want)
    lost = sum(count for _, _, count in dropped)
    assert len(want) - len(seen) <= lost <= 40 - len(seen)
    assert all(size for sizes, _, _ in dropped for size in sizes)


def make_and_fail(rank, world_size, folder, mine, kind):
    with pytest.raises(kind) as caught:
        loader_on(folder, **mine[rank]).close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "two", "item"),
    [
        ({"seed": 1, "shuffle": True}, {"seed": 2, "shuffle": True}, "seed=2"),
        ({"batch_size": 4}, {"batch_size": 5}, "batch_size"),
        ({"balance": Balance()}, {}, "balance"),
        ({"balance": Balance("vbs")}, {"balance": Balance()}, "vbs"),
        ({"mix": "time"}, {"mix": "weighted"}, "mix"),
    ],
)
def test_ranks_with_other_arguments_are_named_before_the_first_batch(folder, one, two, item):
    texts = shared_world(2).run(make_and_fail, folder, [one, two], MismatchError)
    assert all("rank 0" in text and "rank 1" in text and item in text for text in texts), texts


def test_ranks_with_other_files_are_named(folder, tmp_path):
    write(tmp_path / "a", 20)
    write(tmp_path / "b", 20, group=5)
    mine = [{"sources": ParquetSource(str(tmp_path / name))} for name in "ab"]
    texts = shared_world(2).run(make_and_fail, folder, mine, MismatchError)
    assert all("source 0" in text for text in texts), texts


def fail_on_one(rank, world_size, folder):
    path = folder / ("own" if rank == 0 else "nowhere")
    kind = PeerError if rank == 0 else FileNotFoundError
    with pytest.raises(kind) as caught:
        loader_on(folder, sources=ParquetSource(str(path)))
    return str(caught.value)


def test_a_rank_that_misses_a_file_does_not_make_the_others_wait(folder):
    texts = shared_world(2).run(fail_on_one, folder)
    assert "rank 1" in texts[0]
    assert "nowhere" in texts[0]


def leave_early(rank, world_size, folder):
    with loader_on(folder, balance=Balance(cost=COST), shuffle=True) as loader:
        orders = []
        for steps in (2, 3, 100):
            seen = []
            for batch in loader:
                seen.append(rows_of(batch))
                if len(seen) == steps:
                    break
            orders.append(seen)
            loader.set_epoch(0)
    assert threads_left() == []
    return orders


def test_leaving_the_loop_early_and_starting_again(folder):
    for orders in shared_world(2).run(leave_early, folder):
        assert orders[0] == orders[2][:2]
        assert orders[1] == orders[2][:3]
        assert len(orders[2]) == 8


def two_iterators(rank, world_size, folder):
    with loader_on(folder, balance=Balance(cost=COST)) as loader:
        first, second = iter(loader), iter(loader)
        seen = [rows_of(next(second))]
        with pytest.raises(RuntimeError, match="another iter"):
            next(first)
        seen += [rows_of(batch) for batch in second]
    assert threads_left() == []
    batches = [{"n": torch.full((4,), rank)}] * 3
    with rebalance(batches, lengths=lambda batch: batch["n"], timeout_s=20) as balanced:
        first = iter(balanced)
        next(first)
        second = iter(balanced)
        next(second)
        with pytest.raises(RuntimeError, match="another iter"):
            next(first)
        assert len(list(second)) == 2
    assert threads_left() == []
    return seen


def test_a_second_iterator_ends_the_first_on_all_ranks(folder):
    by_rank = shared_world(2).run(two_iterators, folder)
    assert sorted(row for rank in by_rank for step in rank for row in step) == ALL


def one_leaves(rank, world_size, folder):
    loader = loader_on(folder, balance=Balance(cost=COST, timeout_s=20), prefetch=1)
    with loader:
        iterator = iter(loader)
        next(iterator)
        if rank == 1:
            loader.close()
            return "left"
        with pytest.raises(PeerError, match="rank 1") as caught:
            list(iterator)
    assert threads_left() == []
    return str(caught.value)


def test_a_rank_that_leaves_alone_is_named(folder):
    texts = shared_world(2).run(one_leaves, folder)
    assert texts[1] == "left"
    assert "left" in texts[0]


def corrupt_on_one(rank, world_size, path):
    source = ParquetSource(str(path))
    loader = FreeScaleDataLoader(source, SCHEMA, batch_size=4, balance=Balance(cost=COST, timeout_s=20))
    seen = []
    with loader, pytest.raises((PeerError, CorruptFileError), match="row group") as caught:
        seen.extend(batch.stats.global_samples for batch in loader)
    return type(caught.value).__name__, str(caught.value), sum(seen)


def test_an_error_in_reading_reaches_all_ranks(tmp_path):
    import pyarrow.parquet as pq

    write(tmp_path / "set", 40, group=10)
    path = Path(tmp_path / "set" / "part-0.parquet")
    context = pq.read_metadata(path).row_group(3).column(0)
    with path.open("r+b") as file:
        file.seek(context.dictionary_page_offset or context.data_page_offset)
        file.write(b"\xff" * 30)
    (kind_0, text_0, seen_0), (kind_1, text_1, seen_1) = shared_world(2).run(corrupt_on_one, path)
    assert (kind_0, kind_1) == ("PeerError", "CorruptFileError")
    assert "rank 1" in text_0
    assert "part-0.parquet" in text_0
    assert "part-0.parquet" in text_1
    assert seen_0 == seen_1 > 0


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
    """The time limits with which loaders and `rebalance` make their exchanges."""
    limits = []

    def noted(context, *, timeout_s):
        limits.append(timeout_s)
        return StepExchange(context, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("loader", "rebalance"):
            patch.setattr(sys.modules[f"fsdata.{module}"], "StepExchange", noted)
        for balance in (Balance(), Balance(timeout_s=21)):
            loader_on(folder, balance=balance).close()
            rebalance([], lengths="x", balance=balance, timeout_s=22).close()
        loader_on(folder, sources=ParquetSource(str(folder / "own"), filter=pl.col("row") > 3)).close()
    return limits


def test_the_limit_of_a_step_is_balances_else_the_loaders(folder):
    assert shared_world(2).run(limits_of_steps, folder) == [[20, 22, 21, 21, 20]] * 2


def data_parallel(rank, world_size, folder):
    """Ranks 0, 2 and 1, 3 share the data; neighbours compute on the same samples."""
    groups = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    mine = groups[rank % 2]
    source = ParquetSource(str(folder / "own"), filter=(pl.col("row") < 22) | (pl.col("row") % 5 == 0))
    read = []
    for options in ({"process_group": mine}, {"balance": Balance(cost=COST), "process_group": mine}):
        with loader_on(folder, sources=source, **options) as loader:
            read.append([rows_of(batch) for batch in loader])
    with pytest.raises(ValueError, match="give process_group="):
        loader_on(folder, sources=source, rank=rank // 2, world_size=2)
    with pytest.raises(ValueError, match="are two groups"):
        loader_on(folder, process_group=mine, balance=Balance(process_group=dist.group.WORLD))
    dist.destroy_process_group(mine)
    return read


def test_a_group_of_the_ranks_that_share_the_data(folder):
    by_rank = shared_world(4).run(data_parallel, folder)
    assert by_rank[0] == by_rank[1]
    assert by_rank[2] == by_rank[3]
    want = [row for row in range(40) if row < 22 or row % 5 == 0]
    balanced = [row for rank in (0, 2) for batch in by_rank[rank][1] for row in batch]
    dropped = [row for rank in (0, 2) for batch in by_rank[rank][0] for row in batch]
    assert sorted(balanced) == want
    assert set(dropped) <= set(want)
    assert len(dropped) == len(set(dropped)) > 0


def explicit_ranks(rank, world_size, folder):
    with loader_on(folder, rank=rank, world_size=world_size) as loader:
        rows = [row for batch in loader for row in rows_of(batch)]
    return rows, resolve().rank


def test_explicit_ranks_that_are_those_of_the_group(folder):
    (one, rank_0), (two, rank_1) = shared_world(2).run(explicit_ranks, folder)
    assert sorted(one + two) == ALL
    assert (rank_0, rank_1) == (0, 1)


@pytest.mark.full
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
    by_rank = shared_world(world_size).run(resume_balanced, folder, methods, timeout_s=170)
    assert all(states == by_rank[0] for states in by_rank)


@pytest.mark.full
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
