"""`ParquetSource(skip=, limit=)`: a part of the rows, as if the files had no others."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata import FreeScaleDataLoader, Join, ParquetSource, Schema, SchemaError, Sequence, sources_from_toml

SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("row",), time="ts")
SIZES = (7, 0, 12, 1, 20)
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("part")
    first = 0
    for number, size in enumerate(SIZES):
        rows = np.arange(first, first + size)
        table = {
            "row": rows,
            "ts": 10 * rows,
            "item": pl.Series([[row] * (row % 4) for row in rows.tolist()], dtype=pl.List(pl.Int64)),
        }
        pl.DataFrame(table).write_parquet(folder / f"{number}.parquet", row_group_size=5)
        first += size
    return folder


def read(sources, **options):
    found = []
    with FreeScaleDataLoader(sources, SCHEMA, batch_size=4, num_threads=1, **options) as loader:
        for batch in loader:
            rows, lists = batch.features["row"].values().tolist(), batch.features["item"]
            assert lists.values().tolist() == [row for row in rows for _ in range(row % 4)]
            found += rows
    return found


@given(
    skip=st.integers(0, TOTAL + 3),
    limit=st.none() | st.integers(1, TOTAL + 3),
    shuffle=st.booleans(),
    filtered=st.booleans(),
)
def test_the_rows_are_those_of_the_part(folder, skip, limit, shuffle, filtered):
    condition = pl.col("row") % 3 != 1 if filtered else None
    source = ParquetSource(folder, skip=skip, limit=limit, filter=condition)
    wanted = [
        row for row in range(TOTAL)[skip : None if limit is None else skip + limit] if not filtered or row % 3 != 1
    ]
    found = read(source, shuffle=shuffle)
    assert (sorted(found) if shuffle else found) == wanted
    assert (read(source, shuffle=shuffle) == found) is True


@pytest.mark.parametrize("filtered", [False, True])
def test_parts_are_mixed_by_time(folder, filtered):
    condition = pl.col("row") != 11 if filtered else None
    parts = [ParquetSource(folder, skip=skip, limit=9, filter=condition) for skip in (3, 8, 25)]
    wanted = sorted(row for skip in (3, 8, 25) for row in range(skip, skip + 9) if not filtered or row != 11)
    assert read(parts, mix="time") == wanted


def test_a_state_belongs_to_its_part(folder):
    with FreeScaleDataLoader(ParquetSource(folder, limit=30), SCHEMA, batch_size=4) as loader:
        state = loader.state_dict()
    with (
        FreeScaleDataLoader(ParquetSource(folder, limit=31), SCHEMA, batch_size=4) as loader,
        pytest.raises(ValueError, match="arguments"),
    ):
        loader.load_state_dict(state)


def test_a_null_time_is_named_by_its_row_in_the_file(folder, tmp_path):
    pl.DataFrame({"row": [1, 2, 3], "ts": [1, 2, None], "item": [[1], [1], [1]]}).write_parquet(tmp_path / "a.parquet")
    sources = [ParquetSource(tmp_path, skip=1), ParquetSource(folder)]
    with pytest.raises(ValueError, match="row group 0, row 2: ts is null"):
        read(sources, mix="time")


def test_files_of_settings_have_them(folder, tmp_path):
    (tmp_path / "data.toml").write_text(f'[[sources]]\npaths = "{folder}"\nskip = 2\nlimit = 5\n')
    assert read(sources_from_toml(tmp_path / "data.toml")) == list(range(2, 7))


@pytest.mark.parametrize("options", [{"skip": -1}, {"limit": 0}, {"skip": 1.5}, {"limit": "all"}, {"skip": None}])
def test_nonsense_is_refused(options):
    with pytest.raises(SchemaError, match=f"{next(iter(options))} must be an integer"):
        ParquetSource("a", **options)


def test_side_tables_are_read_whole():
    with pytest.raises(SchemaError, match="the source of a Join is read whole"):
        Join(ParquetSource("a", limit=3), on="row", fields=("x",))
