"""Files of folders that a filter leaves out are not opened, and nothing else changes."""

import json
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, SchemaError
from fsdata.catalog import catalog as catalogs
from fsdata.catalog.catalog import open_catalog
from fsdata.catalog.catalog_file import write_catalog
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.decode import source_files
from fsdata.sources.expressions.expressions import parse

SCHEMA = Schema(context=("row",))
DAYS, PLACES = range(5), ("fr", "it", "__HIVE_DEFAULT_PARTITION__")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder, row = tmp_path_factory.mktemp("lake"), 0
    for day in DAYS:
        for place in PLACES:
            below = folder / f"day={day}" / f"place={place}"
            below.mkdir(parents=True)
            for part in range(2):
                rows = np.arange(row, row + 6)
                pl.DataFrame({"row": rows, "size": rows % 4}).write_parquet(below / f"{part}.parquet")
                row += 6
    catalog, _ = open_catalog(discover([str(folder)], None), threads=1, retry=Retrying(), label="")
    write_catalog(catalog, folder.parent / "lake.catalog")
    return folder


def read(source, batch_size=50):
    with FreeScaleDataLoader(source, SCHEMA, batch_size=batch_size, num_threads=1) as loader:
        (found,) = loader.describe()
        return [row for batch in loader for row in batch.features["row"].values().tolist()], found


DAY, PLACE, SIZE = pl.col("day"), pl.col("place"), pl.col("size")
CONDITIONS = st.sampled_from(
    [
        DAY == 2, DAY > 2, DAY != 3, DAY.is_in([0, 4]), PLACE == "fr", PLACE != "it", PLACE.is_null(), SIZE > 1,
        (DAY > 1) | (PLACE == "fr"), (DAY > 1) | (SIZE == 0), DAY + SIZE == 4, ~(DAY == 1), DAY > 99,
    ]
)  # fmt: skip


@given(conditions=st.lists(CONDITIONS, min_size=1, max_size=3), from_catalog=st.booleans())
def test_rows_are_those_of_a_filter_that_reads_all(lake, conditions, from_catalog):
    condition = conditions[0]
    for each in conditions[1:]:
        condition = condition & each
    given = {"catalog": lake.parent / "lake.catalog"} if from_catalog else {"paths": str(lake)}
    with mock.patch.object(source_files, "pruned", return_value=[]):
        everything, found = read(ParquetSource(**given, filter=condition))
        assert found["pruned_files"] == 0
    rows, found = read(ParquetSource(**given, filter=condition))
    assert rows == everything
    assert found["files"] + found["pruned_files"] == 30
    if not any("size" in each.meta.root_names() for each in conditions):
        assert found["files"] == max(len(rows) // 6, 1)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        (DAY == 2, 6),
        ((DAY == 2) & (SIZE > 0), 6),
        ((DAY == 2) & (PLACE == "it") & (SIZE > 0), 2),
        ((DAY == 2) | (SIZE > 0), 30),
        (parse("day >= 3 AND place = 'fr' AND size > 1", "filter"), 4),
        (DAY > 99, 1),
    ],
    ids=["key", "key and column", "two keys", "key or column", "SQL", "nothing"],
)
def test_files_of_other_folders_are_not_opened(lake, condition, files):
    with mock.patch.object(catalogs, "_entry", wraps=catalogs._entry) as entry:
        _, found = read(ParquetSource(lake, filter=condition))
    assert entry.call_count == found["files"] == files
    assert found["pruned_files"] == 30 - files


def test_keys_keep_the_type_that_all_folders_give_them(tmp_path):
    """`x` makes the key a text; without its folder it would be a number."""
    for number, key in enumerate(("1", "2", "x")):
        (tmp_path / f"key={key}").mkdir()
        pl.DataFrame({"row": [number]}).write_parquet(tmp_path / f"key={key}" / "a.parquet")
    assert read(ParquetSource(tmp_path, filter=pl.col("key") == "2"))[0] == [1]


def test_a_column_that_the_files_have_is_no_key(tmp_path):
    for number, key in enumerate((1, 2)):
        (tmp_path / f"key={key}").mkdir()
        pl.DataFrame({"row": [number], "key": [3 - key]}).write_parquet(tmp_path / f"key={key}" / "a.parquet")
    rows, found = read(
        ParquetSource(tmp_path, columns={"row": pl.col("row") + 0 * pl.col("key")}, filter=pl.col("key") == 2)
    )
    assert (rows, found["pruned_files"]) == ([0], 0)
    with pytest.raises(SchemaError, match="'key' is a column of the file and the folder"):
        read(ParquetSource(tmp_path, filter=pl.col("key") == 2))


def test_a_condition_that_does_not_fit_is_an_error_of_the_filter(lake):
    with pytest.raises(SchemaError, match="filter"):
        read(ParquetSource(lake, filter=pl.col("place") > 3))


def test_what_a_loader_says_of_its_sources(lake):
    rows, found = read(ParquetSource(lake))
    assert (found["files"], found["row_groups"], found["rows"], found["schemas"]) == (30, 30, 180, 1)
    assert set(found["seconds"]) == {"listing", "footers", "binding"}
    assert found["bytes"] == sum(path.stat().st_size for path in lake.rglob("*.parquet"))
    _, found = read(ParquetSource(catalog=lake.parent / "lake.catalog", limit=7))
    assert (found["row_groups"], found["rows"], set(found["seconds"])) == (2, 7, {"catalog", "binding"})
    assert len(rows) == 180
