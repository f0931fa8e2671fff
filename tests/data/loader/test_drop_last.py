"""`drop_last`: the last global batch of an epoch is left out if it is not whole."""

import polars as pl
import pytest
from patience import PATIENCE_S
from rank_loaders import read_and_go_on
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Schema

SCHEMA = Schema(context=("row",))
ROWS = 103


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drop_last")
    pl.DataFrame({"row": range(ROWS)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def read(rank, size, folder, options, where=None):
    """(rows of each batch, global samples of each, dropped rows, what `len` says)"""
    given = {"batch_size": 6, "num_threads": 1, "timeout_s": PATIENCE_S, **options}
    ranks = {} if "balance" in options or where is not None else {"rank": rank, "world_size": size}
    with FreeScaleDataLoader(ParquetSource(folder, filter=where), SCHEMA, **given, **ranks) as loader:
        batches = list(loader)
        whole = [batch.stats.global_samples for batch in batches]
        rows = [batch.features["row"].values().tolist() for batch in batches]
        return rows, whole, loader.dropped, len(loader)


@pytest.mark.parametrize("size", [1, 3])
def test_sizes_that_are_known_beforehand(folder, size):
    answers = [read(rank, size, folder, {"drop_last": True}) for rank in range(size)]
    steps = ROWS // (6 * size)
    seen = [row for rows, *_ in answers for batch in rows for row in batch]
    assert len(set(seen)) == len(seen) == steps * 6 * size
    for rows, whole, _, length in answers:
        assert [len(batch) for batch in rows] == [6] * steps
        assert whole == [6 * size] * steps
        assert length == steps
    assert sum(dropped for _, _, dropped, _ in answers) == ROWS - len(seen)
    kept = [read(rank, size, folder, {}) for rank in range(size)]
    assert {length for *_, length in kept} == {steps + 1}
    assert sum(len(batch) for rows, *_ in kept for batch in rows) == ROWS


@pytest.mark.parametrize(("size", "batches", "dropped"), [(ROWS, 1, 0), (ROWS + 1, 0, ROWS)])
def test_only_a_batch_that_is_not_whole_is_left_out(folder, size, batches, dropped):
    rows, _, lost, length = read(0, 1, folder, {"drop_last": True, "batch_size": size})
    assert (len(rows), lost, length) == (batches, dropped, batches)


@pytest.mark.parametrize("where", [None, pl.col("row") % 10 != 3], ids=["all rows", "some drop out"])
def test_balanced(folder, where):
    answers = shared_world(2).run(read, folder, {"drop_last": True, "balance": Balance()}, where)
    total = ROWS if where is None else 93
    seen = sum(len(batch) for rows, *_ in answers for batch in rows)
    assert total - 12 < seen <= total
    assert all(count == 12 for _, whole, *_ in answers for count in whole)
    assert sum(dropped for _, _, dropped, _ in answers) == total - seen


@pytest.mark.parametrize("uneven", ["drop", "empty"])
def test_ranks_that_agree(folder, uneven):
    where, world = pl.col("row") % 10 != 3, shared_world(2)
    answers = world.run(read, folder, {"drop_last": True, "uneven": uneven}, where)
    without = world.run(read, folder, {"uneven": uneven}, where)
    for (rows, *_), (all_rows, *_) in zip(answers, without, strict=True):
        assert rows == all_rows[:-1]
        assert len(rows) > 5


def test_a_saved_state_leaves_out_the_same(folder):
    source, options = ParquetSource(folder), {"batch_size": 6, "num_threads": 1, "drop_last": True}
    batches, _ = read_and_go_on(lambda: FreeScaleDataLoader(source, SCHEMA, **options), every=4)
    assert len(batches) == ROWS // 6
