"""Parts of the rows by a hash: the same rows everywhere and for ever, and no key in two parts."""

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, fingerprint, load, rows_of, write
from hypothesis import given
from hypothesis import strategies as st

from fsdata import ParquetSource, Schema, SchemaError
from fsdata.sources.hash_split import HashSplit, _fnv, _mixed

ROWS = 400
SCHEMA = Schema(context=("row",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    row = np.arange(ROWS)
    users = [None if n % 50 == 0 else n % 37 for n in range(ROWS)]
    for file, (kind, some) in enumerate(((pa.int32(), slice(0, 200)), (pa.int64(), slice(200, ROWS)))):
        columns = {
            "row": row[some],
            "user": pa.array(users[some], kind),
            "name": pa.array([None if user is None else f"user é{user}" for user in users[some]]),
            "score": row[some] / 7,
        }
        write(folder / f"{file}.parquet", columns, group=90)
    return folder


def part(folder, **options):
    return rows_of(load(ParquetSource(folder, **options), SCHEMA, batch_size=64)[0])


def test_the_hash_is_that_of_its_inventors():
    """Values of splitmix64 and FNV-1a that others have published."""
    assert _mixed(np.array([0, 1234567], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]
    texts = pa.array(["", "a", "foobar"], pa.large_string())
    assert _fnv(texts).tolist() == [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


def test_the_parts_of_all_times():
    """If these change, rows that somebody trained on become rows that are tested."""
    numbers, names = pa.array(range(12)), pa.array([f"user {n}" for n in range(12)])
    half, salted = HashSplit("user", 0.0, 0.5, ""), HashSplit("user", 0.0, 0.5, "7")
    assert np.flatnonzero(half.holds(numbers)).tolist() == [0, 1, 3, 4, 8, 9, 11]
    assert np.flatnonzero(half.holds(names)).tolist() == [0, 2, 3, 6, 7, 8, 9]
    assert np.flatnonzero(salted.holds(numbers)).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("column", ["user", "name"])
def test_parts_share_no_key_and_have_all_rows(folder, column, decoder):
    bounds = [0.0, 0.3, 0.55, 1.0]
    parts = [part(folder, split=column, keep=keep, decoder=decoder) for keep in itertools.pairwise(bounds)]
    assert sorted(row for rows in parts for row in rows) == [row for row in range(ROWS) if row % 50]
    users = [{row % 37 for row in rows} for rows in parts]
    assert all(users)
    assert sum(map(len, users)) == 37
    assert all(rows == sorted(rows) for rows in parts)


def test_another_salt_is_another_part(folder):
    found = [set(part(folder, split="user", keep=(0, 0.5), salt=salt)) for salt in (1, 2, "1")]
    assert found[0] == found[2] != found[1]


def test_beside_a_filter(folder):
    """With which both hold; a filter over bounds leaves row groups out as ever."""
    rows = set(part(folder, split="user", keep=(0, 0.5)))
    both = part(folder, split="user", keep=(0, 0.5), filter=pl.col("score") > 20)
    assert both == sorted(row for row in rows if row / 7 > 20)
    source = ParquetSource(folder, split="user", keep=(0, 0.5), filter=pl.col("row") >= 300)
    batches, loader = load(source, SCHEMA)
    assert loader.describe()[0]["pruned_row_groups"] > 0
    assert rows_of(batches) == sorted(row for row in rows if row >= 300)


def test_keys_of_folders(tmp_path):
    for day in range(8):
        write(tmp_path / f"day={day}" / "a.parquet", {"row": [day]})
    half = HashSplit("day", 0, 0.5, "")
    for types, values in (({}, pa.array(map(str, range(8)))), ({"day": "int64"}, pa.array(range(8)))):
        days = np.flatnonzero(half.holds(values)).tolist()
        source = ParquetSource(tmp_path, split="day", keep=(0, 0.5), types=types)
        batches, loader = load(source, SCHEMA)
        assert rows_of(batches) == days
        assert loader.describe()[0]["pruned_files"] == 8 - len(days)


def test_states_know_the_part(folder):
    some = ({}, {"keep": (0, 0.5)}, {"keep": (0, 0.5), "salt": 1})
    states = [fingerprint(ParquetSource(folder, split="user", **each), SCHEMA)["source 0 arguments"] for each in some]
    assert len(set(states)) == 3


@pytest.mark.parametrize(
    ("column", "message"),
    [("score", "needs a column of integers or text, and it is double"), ("nothing", "nothing")],
)
def test_columns_that_have_no_hash(folder, column, message):
    with pytest.raises(SchemaError, match=message):
        part(folder, split=column)


@given(st.lists(st.text(max_size=9) | st.none(), max_size=20), st.integers(0, 3))
def test_a_text_alone_is_in_the_part_that_it_is_in_among_others(texts, skip):
    split = HashSplit("name", 0.0, 0.5, "salt")
    column = pa.array(texts, pa.string())
    alone = [bool(split.holds(pa.array([text], pa.large_string()))[0]) for text in texts]
    assert split.holds(column).tolist() == alone
    assert split.holds(column[skip:]).tolist() == alone[skip:]
