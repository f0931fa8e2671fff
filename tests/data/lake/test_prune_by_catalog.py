"""A catalog in a file says which files and row groups a filter leaves out, as footers do."""

import functools
import json
import operator

import numpy as np
import polars as pl
import pytest
from data_kit import write
from hypothesis import example, given
from hypothesis import strategies as st
from test_prune import NAMES, ROW_GROUPS_LEFT, catalog_of, read, write_numbers

from fsdata import ParquetSource
from fsdata.catalog.catalog import updated
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.lake.catalog_file import read_catalog_file, write_catalog


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder, row = tmp_path_factory.mktemp("lake"), 0
    for day in range(5):
        for place in ("fr", "it", "__HIVE_DEFAULT_PARTITION__"):
            for part in range(2):
                rows = np.arange(row, row + 6)
                write(folder / f"day={day}" / f"place={place}" / f"{part}.parquet", {"row": rows, "size": rows % 4})
                row += 6
    write_catalog(catalog_of(folder), folder.parent / "lake.catalog")
    return folder


DAY, PLACE, SIZE = pl.col("day"), pl.col("place"), pl.col("size")

OF_FOLDERS = [
    DAY == 2, DAY > 2, DAY != 3, DAY.is_in([0, 4]), PLACE == "fr", PLACE != "it", PLACE.is_null(), SIZE > 1,
    (DAY > 1) | (PLACE == "fr"), (DAY > 1) | (SIZE == 0), DAY + SIZE == 4, ~(DAY == 1), DAY > 99,
]  # fmt: skip


@given(
    conditions=st.lists(st.sampled_from(OF_FOLDERS), min_size=1, max_size=3), from_catalog=st.booleans(),
    skip=st.sampled_from([0, 0, 40, 200]), limit=st.sampled_from([None, None, 1, 75]),
)  # fmt: skip
@example(conditions=[DAY == 3], from_catalog=False, skip=0, limit=75)  # nothing: the rows of day 3 begin with row 108
@example(conditions=[DAY == 3], from_catalog=True, skip=110, limit=75)
def test_files_of_folders_that_a_filter_leaves_out_are_not_read(lake, conditions, from_catalog, skip, limit):
    condition = functools.reduce(operator.and_, conditions)
    given = {"catalog": lake.parent / "lake.catalog"} if from_catalog else {"paths": str(lake)}
    rows, found = read(ParquetSource(**given, filter=condition, skip=skip, limit=limit))
    kept = pl.scan_parquet(lake, hive_partitioning=True).with_row_index("at").filter(condition).collect()
    part = (pl.col("at") >= skip) & (pl.col("at") < skip + (180 if limit is None else limit))
    assert rows == kept.filter(part)["row"].to_list()
    assert found["files"] + found["pruned_files"] == 30
    if "size" not in condition.meta.root_names():
        assert found["files"] == max(len(kept) // 6, 1)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ((DAY == 2) & (SIZE > 0), 6),
        ((DAY == 2) & (PLACE == "it") & (SIZE > 0), 2),
        ((DAY == 2) | (SIZE > 0), 30),
        ((DAY >= 3) & (PLACE == "fr") & (SIZE > 1), 4),
        (DAY > 99, 1),
    ],
    ids=["key and column", "two keys", "key or column", "three sides", "nothing"],
)
def test_files_that_are_left(lake, condition, files):
    found = read(ParquetSource(lake, filter=condition))[1]
    assert (found["files"], found["pruned_files"]) == (files, 30 - files)


def test_what_a_loader_says_of_its_sources(lake):
    _, found = read(ParquetSource(lake))
    assert (found["files"], found["row_groups"], found["rows"], found["schemas"]) == (30, 30, 180, 1)
    assert set(found["seconds"]) == {"listing", "footers", "binding"}
    assert found["bytes"] == sum(path.stat().st_size for path in lake.rglob("*.parquet"))
    _, found = read(ParquetSource(catalog=lake.parent / "lake.catalog", limit=7))
    assert (found["row_groups"], found["rows"], set(found["seconds"])) == (2, 7, {"catalog", "binding"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, and catalogs of them with bounds and without."""
    made = tmp_path_factory.mktemp("bounds") / "files"
    write_numbers(made)
    write_catalog(catalog_of(made, NAMES), made.parent / "with.catalog")
    write_catalog(catalog_of(made), made.parent / "without.catalog")
    return made


@pytest.mark.parametrize(("condition", "groups"), ROW_GROUPS_LEFT)
def test_row_groups_that_are_left_by_a_catalog(folder, condition, groups):
    """A catalog without bounds leaves out no row group."""
    rows, _ = read(ParquetSource(folder, filter=condition))
    for catalog, pruned in (("with", 30 - groups), ("without", 0)):
        again, found = read(ParquetSource(catalog=folder.parent / f"{catalog}.catalog", filter=condition))
        assert (again, found["pruned_row_groups"]) == (rows, pruned)


def test_an_update_has_the_bounds_of_a_new_catalog(folder):
    files, whole = discover([str(folder)], None), catalog_of(folder, NAMES)
    with_bounds = read_catalog_file(folder.parent / "with.catalog")
    for before, names in ((whole.without([1]), NAMES), (catalog_of(folder, ("a",)), NAMES), (with_bounds, ())):
        new = updated(before, files, threads=1, retry=Retrying(), bounds_of=names).catalog
        assert all(np.array_equal(new.bounds[name], whole.bounds[name]) for name in NAMES)
