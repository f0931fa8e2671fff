"""Row groups that a filter leaves out by the bounds of its columns are not read, and nothing else changes."""

from datetime import UTC, date, datetime, timedelta
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata import FreeScaleDataLoader, ParquetSource, Schema
from fsdata.catalog.bounds import UNKNOWN, as_columns, readers
from fsdata.catalog.catalog import open_catalog, updated
from fsdata.catalog.catalog_file import read_catalog_file, write_catalog
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.decode import source_files
from fsdata.sources.expressions.expressions import checked, parse

SCHEMA = Schema(context=("row",))
ROWS, GROUP = 60, 6
begin = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("a", "b", "t", "d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files whose columns are of other types: `a` ascends, `b` has nulls and negative numbers, `c` is no integer."""
    made = tmp_path_factory.mktemp("bounds")
    rng = np.random.default_rng(5)
    for number, (integer, unit) in enumerate([(pa.int64(), "us"), (pa.int32(), "ms"), (pa.uint8(), "ns")]):
        rows = np.arange(ROWS)
        signed = pa.int64() if number else pa.int16()
        table = pa.table(
            {
                "row": rows + number * ROWS,
                "a": pa.array(rows + 40 * number, integer),
                "b": pa.array(rng.integers(-9, 9, ROWS), signed, mask=(rows % 3 == 0) | (rows < GROUP)),
                "c": rows / 7,
                "t": pa.array([begin + timedelta(hours=int(row)) for row in rows], pa.timestamp(unit, tz="UTC")),
                "d": [date(2026, 1, 1) + timedelta(days=int(row)) for row in rows],
            }
        )
        written = {"row_group_size": GROUP, "write_statistics": ["a", "b", "t", "d", "c"]}
        pq.write_table(table, made / f"{number}.parquet", **written)
    return made


def catalog_of(folder, names=NAMES):
    return open_catalog(discover([str(folder)], None), threads=1, retry=Retrying(), label="", bounds_of=names)[0]


def read(source):
    with FreeScaleDataLoader(source, SCHEMA, batch_size=50, num_threads=1) as loader:
        (found,) = loader.describe()
        return [row for batch in loader for row in batch.features["row"].values().tolist()], found


def test_bounds_are_those_of_the_rows(folder):
    catalog = catalog_of(folder)
    group = 0
    for number in range(len(catalog)):
        file = pq.ParquetFile(catalog.files[number].path)
        for place in range(file.num_row_groups):
            table = file.read_row_group(place)
            for name in NAMES:
                low, high = as_columns(catalog.bounds[name][:, group : group + 1], table.schema.field(name).type)
                values = table[name].drop_null().to_pylist()
                expected = [min(values), max(values)] if values else [None, None]
                assert [*low.to_pylist(), *high.to_pylist()] == expected
            group += 1
    assert group == len(catalog.rows)


@pytest.mark.parametrize(
    ("stored", "arrow"),
    [("ms", "s"), ("us", "s"), ("us", "ns"), ("ns", "us")],
)
def test_bounds_count_in_the_units_of_the_arrow_type(tmp_path, stored, arrow):
    """The footer counts in the units in which the column is stored; the Arrow schema in the file may say others."""
    times = pa.array([1_500_000_001, 7_000_000_999], pa.timestamp("ns")).cast(pa.timestamp(stored), safe=False)
    said = pa.schema([("t", pa.timestamp(arrow))])
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet", store_schema=False, version="2.6")
    reader = readers(pq.read_metadata(tmp_path / "a.parquet"), said, ["t"])["t"]
    size = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    least, greatest = (value * size[stored] for value in times.cast(pa.int64()).to_pylist())
    raw = b"".join(value.to_bytes(8, "little") for value in times.cast(pa.int64()).to_pylist())
    low, high = reader.read(raw, np.array([[0, 0, 0, 0, 0, 0, 8]]), 1)[:, 0].tolist()
    assert low * size[arrow] <= least < (low + 1) * size[arrow]
    assert (high - 1) * size[arrow] < greatest <= high * size[arrow]


a, b, c, t, d = (pl.col(name) for name in "abctd")
CONDITIONS = [
    a > 50, pl.lit(20) > a, a.is_in([3, 77]), a.is_in([1, None]), ~(a > 20), (a > 90) | (c < 1), (a > 30) & (b > 5),
    b.is_null(), t.is_between(begin, begin), d == date(2026, 2, 1), pl.lit(3) > 2 * a, a.eq_missing(3),
]  # fmt: skip
MORE = [
    a >= 99, a < 3, a <= 0, a == 17, a != 17, pl.lit(20) == a, a > 50.5, a.is_between(30, 42), a.is_in([]),
    a.is_in(list(range(30, 130))), (a > 90) | (a < 4), b < -7, b.is_not_null(), a + b > 100, a > b, c > 8,
    (a > 30) & (c < 7), t >= begin + timedelta(hours=40), t < begin + timedelta(minutes=90), d > date(2026, 2, 20),
    a.is_between(b, 10), (a > 120) | (a == 5), a > 1_000_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def catalogs(folder, tmp_path_factory):
    """Catalog files of the folder, with bounds and without."""
    made = tmp_path_factory.mktemp("catalogs")
    write_catalog(catalog_of(folder), made / "with.catalog")
    write_catalog(catalog_of(folder, ()), made / "without.catalog")
    return made


@pytest.mark.parametrize(
    "condition", [*CONDITIONS, *(pytest.param(each, marks=pytest.mark.long) for each in MORE)], ids=str
)
def test_rows_are_those_of_a_filter_that_reads_all(folder, catalogs, condition):
    with mock.patch.object(source_files, "may_have_rows", side_effect=lambda of, _: np.ones(len(of.rows), bool)):
        everything, found = read(ParquetSource(folder, filter=condition))
        assert (found["pruned_row_groups"], found["row_groups"]) == (0, 30)
    rows, found = read(ParquetSource(folder, filter=condition))
    assert rows == everything
    assert found["row_groups"] + found["pruned_row_groups"] == 30
    assert read(ParquetSource(catalog=catalogs / "with.catalog", filter=condition)) == (rows, mock.ANY)
    rows, found = read(ParquetSource(catalog=catalogs / "without.catalog", filter=condition))
    assert (rows, found["pruned_row_groups"]) == (everything, 0)


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        (a > 50, 2 + 9 + 10),
        (a == 17, 1),
        (a.is_in([3, 77]), 1 + 1),
        (a.is_between(30, 42) & (c > 0), 3 + 1),
        ((a > 138) | (a < 1), 1 + 1),
        (t < begin + timedelta(minutes=90), 3),
        (d == date(2026, 2, 1), 3),
        (parse("a > 138", ""), 1),
        (a > 1_000_000, 0),
        (~(a > 138), 30),
        (c > 100, 30),
    ],
)
def test_row_groups_that_are_left(folder, condition, groups):
    assert read(ParquetSource(folder, filter=condition))[1]["row_groups"] == groups


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([a, b]), st.sampled_from(["gt", "lt", "ge", "le", "eq", "ne"]), st.integers(-12, 190)
        ),
        min_size=1,
        max_size=4,
    ),
    ands=st.lists(st.booleans(), min_size=3, max_size=3),
    skip=st.integers(0, 100),
)
def test_random_conditions(folder, parts, ands, skip):
    conditions = [getattr(column, op)(value) for column, op, value in parts]
    condition = conditions[0]
    for other, both in zip(conditions[1:], ands, strict=False):
        condition = condition & other if both else condition | other
    catalog = catalog_of(folder)
    may = source_files.may_have_rows(catalog, ParquetSource(folder, filter=checked(condition, "")))
    numbers = np.concatenate([np.repeat(np.arange(len(catalog.rows)), catalog.rows)])
    frame = pl.concat([pl.read_parquet(each.path).select(a.cast(pl.Int64), b.cast(pl.Int64)) for each in catalog.files])
    there = frame.select(condition.fill_null(False)).to_series().to_numpy()
    assert set(numbers[there]) <= set(np.flatnonzero(may))
    rows, _ = read(ParquetSource(folder, filter=condition, skip=skip))
    assert rows == [row for row in np.flatnonzero(there).tolist() if row >= skip]


def test_files_without_statistics_are_read(tmp_path):
    pq.write_table(pa.table({"row": np.arange(9), "a": np.arange(9)}), tmp_path / "0.parquet", write_statistics=False)
    rows, found = read(ParquetSource(tmp_path, filter=a > 100))
    assert (rows, found["pruned_row_groups"], found["row_groups"]) == ([], 0, 1)
    assert catalog_of(tmp_path, ("a",)).bounds["a"][:, 0].tolist() == UNKNOWN.tolist()


def test_an_update_has_the_bounds_of_a_new_catalog(folder, tmp_path):
    write_catalog(catalog_of(folder), tmp_path / "all.catalog")
    files = discover([str(folder)], None)
    old = catalog_of(folder).without([1])
    for before, names in (
        (old, NAMES),
        (catalog_of(folder, ("a",)), NAMES),
        (read_catalog_file(tmp_path / "all.catalog"), ()),
    ):
        new = updated(before, files, threads=1, retry=Retrying(), bounds_of=names).catalog
        for name in NAMES:
            assert np.array_equal(new.bounds[name], catalog_of(folder).bounds[name])
