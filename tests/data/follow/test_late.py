"""Side tables that come later than the rows: what is read is what complete data would have given."""

import itertools
import logging
import os
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from data_kit import assert_same, load, loader_on
from growing import ENDLESS, WithoutTimes, age, before_listings, failing, nothing, put
from worlds import shared_world

from fsdata import Balance, DataError, Follow, Join, ParquetSource, Schema, Sequence
from fsdata.growing import late, watcher

FAST = {"every": "10ms", "idle": "60ms", "at_most": 1}
SCHEMA = Schema(
    candidates=Sequence("candidates", ("item",), floats=("weight",)), context=("row",), labels=("score", "each")
)


def write_rows(folder, number, count=8):
    rows = np.arange(count) + 100 * number
    lists = [[row] * (row % 3 + 1) for row in rows.tolist()]
    frame = pl.DataFrame({"row": rows, "request": rows * 7, "item": lists})
    put(frame, folder / "rows" / f"{number:03}.parquet", group=3)


def write_side(folder, name, rows):
    rows = np.asarray(rows, np.int64)
    lists = [[float(row) + place for place in range(row % 3 + 1)] for row in rows.tolist()]
    frame = pl.DataFrame(
        {"request": rows * 7, "score": rows / 4, "each": lists, "weight": lists},
        schema_overrides={"each": pl.List(pl.Float64), "weight": pl.List(pl.Float64)},
    )
    put(frame, folder / "side" / f"{name}.parquet", group=3)


def rows_with(folder, *, missing="mask", wait=ENDLESS["idle"], follow=None, filesystem=None, **options):
    side = ParquetSource(folder / "side", follow=Follow(**FAST), filesystem=filesystem, **options)
    join = Join(side, on="request", fields=("score", "each", "weight"), missing=missing, wait=wait)
    return ParquetSource(folder / "rows", follow=follow or Follow(**FAST), join=[join], filesystem=filesystem)


def loader_of(folder, *, batch_size=3, shuffle=False, balance=None, **options):
    return loader_on(rows_with(folder, **options), SCHEMA, batch_size=batch_size, shuffle=shuffle, balance=balance)


def only_batch(folder, **options):
    """Of 8 rows at most."""
    (batch,), _ = load(rows_with(folder, **options), SCHEMA, batch_size=8)
    return batch


@pytest.mark.parametrize(("shuffle", "balance"), [(True, None), (False, Balance(max_tokens=9))])
def test_late_data_gives_what_complete_data_gives(tmp_path, shuffle, balance):
    """Predictions come in pieces, after the rows, in another order than these."""
    complete, late = tmp_path / "complete", tmp_path / "late"
    options = {"shuffle": shuffle, "balance": balance, "batch_size": 4}
    for folder in (complete, late):
        folder.mkdir()
        for number in range(4):
            write_rows(folder, number)
        write_side(folder, "0", [0, 1, 2])
    pieces = {"a": [5, 100, 101, 3, 4], "c": [6, 7, 300, 301, 302], "b": list(range(102, 108))}
    pieces |= {"d": list(range(200, 208)), "e": list(range(303, 308))}
    for name, rows in pieces.items():
        write_side(complete, name, rows)
    expected, _ = load(rows_with(complete), SCHEMA, **options)
    found = []
    with loader_of(late, **options) as loader:
        batches = iter(loader)
        for count, (name, rows) in zip([0, 0, 2, 0, 2], pieces.items(), strict=True):
            found += itertools.islice(batches, count)
            write_side(late, name, rows)
        found += batches
    assert_same(found, expected)
    assert all(mask.all() for batch in expected for mask in batch.mask.values())
    scores = torch.cat([batch.labels["score"] * 4 for batch in expected])
    assert sorted(scores.tolist()) == [100.0 * number + row for number in range(4) for row in range(8)]


def test_a_row_waits_no_longer_than_it_has_to(tmp_path):
    for number in range(2):
        write_rows(tmp_path, number)
    write_side(tmp_path, "a", [0, 2, 104])
    (first, second), _ = load(rows_with(tmp_path, wait="100ms"), SCHEMA, batch_size=8)
    assert first.mask["score"].tolist() == [True, False, True, *[False] * 5]
    assert first.labels["score"].tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0]
    assert second.mask["each"].tolist() == [False] * 4 + [True] + [False] * 3
    lengths = [row % 3 + 1 for row in range(8)]
    assert first.labels["each"].offsets.diff().tolist() == lengths
    assert first.jagged["weight"].values.tolist() == [0, 0, 0, 2, 3, 4, *[0] * sum(lengths[3:])]


@pytest.mark.parametrize("missing", ["drop", "default", "error"])
def test_what_becomes_of_rows_without_a_match(tmp_path, missing):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [0, 2, 5])
    options = {"missing": missing, "wait": "50ms", "defaults": {"score": -1, "each": -2, "weight": -3}}
    if missing == "error":
        with pytest.raises(DataError, match=r"row 1: request 7 is not in the"):
            only_batch(tmp_path, **options)
        return
    batch = only_batch(tmp_path, **options)
    assert batch.mask == {}
    scores = batch.labels["score"].tolist()
    assert scores == ([0, 0.5, 1.25] if missing == "drop" else [0, -1, 0.5, -1, -1, 1.25, -1, -1])


def test_a_job_goes_on_where_it_was(tmp_path):
    """Also what had no match when its turn came stays so, whatever has come since."""
    for number in range(3):
        write_rows(tmp_path, number)
    write_side(tmp_path, "a", [0, 2, 104, 105, 200])
    with loader_of(tmp_path, wait="50ms", shuffle=True) as loader:
        found = [(batch, loader.state_dict()) for batch in loader]
    write_side(tmp_path, "b", [1, 3, 4, 106, 201])
    expected = [batch for batch, _ in found]
    for number, (_, state) in enumerate(found, 1):
        with loader_of(tmp_path, wait="50ms", shuffle=True) as loader:
            loader.load_state_dict(state)
            segment = state["follow"]["number"]
            rest = list(loader)
            still = [batch for batch, its in found[number:] if its["follow"]["number"] == segment]
            assert_same(rest[: len(still)], still)
            assert [len(batch) for batch in rest] == [len(batch) for batch in expected[number:]]


def all_rows(rank, world_size, folder, state, batches):
    with loader_of(folder, wait="50ms", shuffle=True, balance=Balance()) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for number, batch in enumerate(loader, 1):
            rows, masks = batch.features["row"].values().tolist(), batch.mask["score"].tolist()
            found += zip(rows, batch.labels["score"].tolist(), masks, strict=True)
            if number == batches:
                break
        return found, loader.state_dict()


def test_several_ranks_and_another_number_of_them(tmp_path):
    for number in range(5):
        write_rows(tmp_path, number)
    write_side(tmp_path, "a", [0, 2, 104, 105, 200])
    write_side(tmp_path, "b", [300, 303, 404])
    first = shared_world(2).run(all_rows, tmp_path, None, 3)
    second = shared_world(3).run(all_rows, tmp_path, first[0][1], None)
    found = sorted(row for of_rank, _ in (*first, *second) for row in of_rank)
    there = {0, 2, 104, 105, 200, 300, 303, 404}
    rows = [100 * number + row for number in range(5) for row in range(8)]
    assert found == [(row, row / 4 if row in there else 0.0, row in there) for row in rows]


def test_old_side_files_are_forgotten(tmp_path):
    """What is older by more than the wait than all rows is not even opened."""
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [0, 1])
    (tmp_path / "side" / "b.parquet").write_bytes((tmp_path / "side" / "a.parquet").read_bytes())
    os.utime(tmp_path / "side" / "a.parquet", ns=(1, 1))
    with loader_of(tmp_path, wait="50ms", batch_size=8) as loader:
        (batch,) = loader
        (files,) = {segment[2][0][1] for segment in loader.state_dict()["follow"]["files"]}
    assert files == "b.parquet"
    assert batch.mask["score"].tolist() == [True, True, *[False] * 6]


def test_without_times_of_modification_rows_wait_from_when_they_were_found(tmp_path, monkeypatch):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [0])
    before_listings(monkeypatch, late, nothing, nothing, partial(write_side, tmp_path, "b", range(1, 8)))
    batch = only_batch(tmp_path, filesystem=WithoutTimes(use_listings_cache=False))
    assert batch.mask["score"].all()


def test_a_table_that_is_read_once_has_masks_too(tmp_path):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [1, 5])
    join = Join(ParquetSource(tmp_path / "side"), on="request", fields=("score", "each", "weight"), missing="mask")
    sources = [
        ParquetSource(tmp_path / "rows", join=[join]),
        ParquetSource(tmp_path / "rows", defaults={"score": 5, "each": 6, "weight": 7}),
    ]
    (with_table, without), _ = load(sources, SCHEMA, batch_size=8)
    assert with_table.mask["score"].tolist() == [row in (1, 5) for row in range(8)]
    assert without.mask["score"].tolist() == [True] * 8
    assert with_table.to("cpu").mask["each"].dtype == torch.bool


def test_a_file_of_rows_that_is_written_again_waits_for_its_new_keys(tmp_path, monkeypatch):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [0])

    def again():
        frame = pl.DataFrame({"row": [100], "request": [700], "item": [[1, 1]]})
        put(frame, tmp_path / "rows" / "000.parquet", group=3)
        write_side(tmp_path, "b", range(1, 8))  # those of its old keys

    before_listings(monkeypatch, watcher, nothing, again, partial(write_side, tmp_path, "c", [100]))
    with loader_of(tmp_path, batch_size=8) as loader:
        (batch,) = loader
        (files,) = {segment[2][0][1] for segment in loader.state_dict()["follow"]["files"]}
    assert files == "c.parquet"
    assert batch.labels["score"].tolist() == [25]
    assert batch.mask["score"].all()


def test_what_came_too_late_for_a_file_does_not_count_for_its_rest(tmp_path):
    """The match of row 6 comes with those of the next file, when the wait of row 6 is over."""
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", [0])
    with loader_of(tmp_path, wait="50ms", batch_size=5, follow=Follow(**ENDLESS, at_most=1)) as loader:
        batches = iter(loader)
        masks = next(batches).mask["score"].tolist()
        write_side(tmp_path, "b", [6, *range(100, 108)])
        write_rows(tmp_path, 1)
        masks += [value for _ in range(2) for value in next(batches).mask["score"].tolist()]
    assert masks == [True, *[False] * 7, *[True] * 7]


def test_a_side_table_out_of_reach_for_a_moment_is_asked_again(tmp_path, monkeypatch):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", range(8))
    errors = ConnectionResetError("reset"), FileNotFoundError("gone"), TimeoutError("slow")
    left = before_listings(monkeypatch, late, *map(failing, errors))
    batch = only_batch(tmp_path)
    assert left == []
    assert batch.mask["score"].all()


def test_a_side_file_that_is_not_whole_is_named_once(tmp_path, caplog):
    write_rows(tmp_path, 0)
    write_side(tmp_path, "a", range(4))
    (tmp_path / "side" / "b.parquet").write_bytes(b"PAR1")
    for name in ("side/b.parquet", "rows/000.parquet"):
        age(tmp_path, name, 1000)
    with caplog.at_level(logging.WARNING, "fsdata"):
        batch = only_batch(tmp_path, wait="300s")
    assert batch.mask["score"].tolist() == [True] * 4 + [False] * 4
    assert caplog.text.count("rows wait for its matches in vain") == 1
    assert caplog.text.count("b.parquet") == 1


def test_keys_that_are_dates(tmp_path):
    days = pl.Series([0, 1, 2]).cast(pl.Date)
    put(pl.DataFrame({"row": [0, 1, 2], "day": days}), tmp_path / "rows" / "0.parquet", group=3)
    put(pl.DataFrame({"day": days[1:], "score": [0.5, 1.5]}), tmp_path / "side" / "0.parquet", group=3)
    side = ParquetSource(tmp_path / "side", follow=Follow(**FAST))
    join = Join(side, on="day", fields=("score",), missing="mask", wait="0s")
    rows = ParquetSource(tmp_path / "rows", follow=Follow(**FAST), join=[join])
    (batch,), _ = load(rows, Schema(context=("row",), labels=("score",)), batch_size=3)
    assert batch.mask["score"].tolist() == [False, True, True]
    assert batch.labels["score"].tolist() == [0.0, 0.5, 1.5]
