"""`drop_last`: the last global batch of an epoch is left out if it is not whole."""

import polars as pl
import pytest
from patience import PATIENCE_S
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
    """(rows of each batch, global samples of each, dropped rows, what `len` says, rows of the second epoch)"""
    source = ParquetSource(folder, filter=where)
    given = {"batch_size": 6, "num_threads": 1, "timeout_s": PATIENCE_S, **options}
    ranks = {} if "balance" in options or where is not None else {"rank": rank, "world_size": size}
    with FreeScaleDataLoader(source, SCHEMA, **given, **ranks) as loader:
        batches = list(loader)
        rows = [batch.features["row"].values().tolist() for batch in batches]
        whole, dropped = [batch.stats.global_samples for batch in batches], loader.dropped
        again = [batch.features["row"].values().tolist() for batch in loader]
        return rows, whole, dropped, len(loader), again


def check(answers, size, total):
    steps = total // (6 * size)
    seen = [row for rows, *_ in answers for batch in rows for row in batch]
    assert len(seen) == len(set(seen)) == steps * 6 * size
    for rows, whole, _, _, again in answers:
        assert [len(batch) for batch in rows] == [6] * steps
        assert whole == [6 * size] * steps
        assert again == rows
    assert sum(dropped for _, _, dropped, *_ in answers) == total - len(seen)
    return steps


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sizes_that_are_known_beforehand(folder, size):
    answers = [read(rank, size, folder, {"drop_last": True}) for rank in range(size)]
    steps = check(answers, size, ROWS)
    assert {length for *_, length, _ in answers} == {steps}
    kept = [read(rank, size, folder, {}) for rank in range(size)]
    assert {length for *_, length, _ in kept} == {steps + 1}
    assert sum(len(batch) for rows, *_ in kept for batch in rows) == ROWS


def test_nothing_is_left_out_of_whole_batches(folder):
    rows, _, dropped, length, _ = read(0, 1, folder, {"drop_last": True, "batch_size": ROWS})
    assert (len(rows), dropped, length) == (1, 0, 1)
    rows, _, dropped, length, _ = read(0, 1, folder, {"drop_last": True, "batch_size": ROWS + 1})
    assert (len(rows), dropped, length) == (0, ROWS, 0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("where", [None, pl.col("row") % 10 != 3], ids=["all rows", "some drop out"])
def test_balanced(folder, size, where):
    balance = Balance(timeout_s=PATIENCE_S)
    answers = shared_world(size).run(read, folder, {"drop_last": True, "balance": balance}, where)
    total = ROWS if where is None else 93
    seen = sum(len(batch) for rows, *_ in answers for batch in rows)
    assert total - 6 * size < seen <= total
    assert all(count == 6 * size for _, whole, *_ in answers for count in whole)
    assert sum(dropped for _, _, dropped, *_ in answers) == total - seen


@pytest.mark.parametrize("uneven", ["drop", "empty"])
def test_ranks_that_agree(folder, uneven):
    options = {"drop_last": True, "uneven": uneven}
    where = pl.col("row") % 10 != 3
    answers = shared_world(2).run(read, folder, options, where)
    without = shared_world(2).run(read, folder, {"uneven": uneven}, where)
    for (rows, *_), (all_rows, *_) in zip(answers, without, strict=True):
        assert rows == all_rows[:-1]
        assert len(rows) > 5


def test_a_saved_state_leaves_out_the_same(folder):
    source, options = ParquetSource(folder), {"batch_size": 6, "num_threads": 1, "drop_last": True}
    with FreeScaleDataLoader(source, SCHEMA, **options) as loader:
        whole = [batch.features["row"].values().tolist() for batch in loader]
        loader.set_epoch(0)
        first = [batch.features["row"].values().tolist() for _, batch in zip(range(4), loader, strict=False)]
        state = loader.state_dict()
    with FreeScaleDataLoader(source, SCHEMA, **options) as loader:
        loader.load_state_dict(state)
        assert first + [batch.features["row"].values().tolist() for batch in loader] == whole


def test_nonsense_is_refused(folder):
    with pytest.raises(ValueError, match="drop_last must be True or False"):
        FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=2, drop_last=1)
