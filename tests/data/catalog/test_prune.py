"""Files of folders, and row groups by the bounds of their columns, that a filter leaves out are not read; nothing else
changes."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import load, rows_of, write
from hypothesis import example, given
from hypothesis import strategies as st

from fsdata import ParquetSource, Schema, SchemaError
from fsdata.catalog.bounds import UNKNOWN, as_columns, readers
from fsdata.catalog.catalog import open_catalog
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying

SCHEMA = Schema(context=("row",))


def catalog_of(folder, names=()):
    return open_catalog(discover([str(folder)], None), threads=1, retry=Retrying(), label="", bounds_of=names)[0]


def read(source):
    """(rows, what the loader says of its source)."""
    batches, loader = load(source, SCHEMA, batch_size=50)
    (found,) = loader.describe()
    return rows_of(batches), found


# Folders


def test_keys_keep_the_type_that_all_folders_give_them(tmp_path):
    """`x` makes the key a text; without its folder it would be a number."""
    for number, key in enumerate(("1", "2", "x")):
        write(tmp_path / f"key={key}" / "a.parquet", {"row": [number]})
    assert read(ParquetSource(tmp_path, filter=pl.col("key") == "2"))[0] == [1]
    with pytest.raises(SchemaError, match="filter"):
        read(ParquetSource(tmp_path, filter=pl.col("key") > 3))


def test_a_column_that_the_files_have_is_no_key(tmp_path):
    for number, key in enumerate((1, 2)):
        write(tmp_path / f"key={key}" / "a.parquet", {"row": [number], "key": [3 - key]})
    columns = {"row": pl.col("row") + 0 * pl.col("key")}
    rows, found = read(ParquetSource(tmp_path, columns=columns, filter=pl.col("key") == 2))
    assert (rows, found["pruned_files"]) == ([0], 0)
    with pytest.raises(SchemaError, match="'key' is a column of the file and the folder"):
        read(ParquetSource(tmp_path, filter=pl.col("key") == 2))


# Bounds

ROWS, GROUP, NAMES = 60, 6, ("a", "b", "t", "d")
begin = datetime(2026, 1, 1, tzinfo=UTC)


def write_numbers(folder):
    """Files whose columns are of other types: `a` ascends, `b` has nulls and negative numbers, `c` is no integer."""
    rng = np.random.default_rng(5)
    for number, (integer, unit) in enumerate([(pa.int64(), "us"), (pa.int32(), "ms"), (pa.uint8(), "ns")]):
        rows = np.arange(ROWS)
        signed = pa.int64() if number else pa.int16()
        columns = {
            "row": rows + number * ROWS,
            "a": pa.array(rows + 40 * number, integer),
            "b": pa.array(rng.integers(-9, 9, ROWS), signed, mask=(rows % 3 == 0) | (rows < GROUP)),
            "c": rows / 7,
            "t": pa.array([begin + timedelta(hours=int(row)) for row in rows], pa.timestamp(unit, tz="UTC")),
            "d": [date(2026, 1, 1) + timedelta(days=int(row)) for row in rows],
        }
        write(folder / f"{number}.parquet", columns, group=GROUP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounds")
    write_numbers(folder)
    return folder


def test_bounds_are_those_of_the_rows(folder):
    catalog = catalog_of(folder, NAMES)
    group = 0
    for file in map(pq.ParquetFile, (each.path for each in catalog.files)):
        for place in range(file.num_row_groups):
            table = file.read_row_group(place)
            for name in NAMES:
                low, high = as_columns(catalog.bounds[name][:, group : group + 1], table.schema.field(name).type)
                values = table[name].drop_null().to_pylist()
                assert [*low.to_pylist(), *high.to_pylist()] == ([min(values), max(values)] if values else [None, None])
            group += 1
    assert group == len(catalog.rows)


a, b, c, t, d = (pl.col(name) for name in "abctd")
ROW_GROUPS_LEFT = [
    (a > 50, 2 + 9 + 10),
    (a == 17, 1),
    (pl.lit(6) >= a, 2),  # 6 is the first value of a row group
    (pl.lit(99) <= a, 1 + 7),  # the last one
    (pl.lit(6) > a, 1),
    (pl.lit(99) < a, 7),
    (a.is_in([3, 77]), 1 + 1),
    (a.is_in(list(range(30, 130))), 5 + 10 + 9),
    (a.is_between(30, 42) & (c > 0), 3 + 1),
    ((a > 138) | (a < 1), 1 + 1),
    (t < begin + timedelta(minutes=90), 3),
    (d == date(2026, 2, 1), 3),
    (a > 1_000_000, 0),
    # Bounds tell nothing of these.
    (~(a > 138), 30),
    (c > 100, 30),
    ((a > 138) | (c < 1), 30),
    ((a > 138) | (b != 5), 30),
    (a.is_in([]), 30),
    (a.is_between(b, 10), 30),
    (pl.lit(3) > a + 1, 30),
    (b.is_null(), 30),
    (a.eq_missing(3), 30),
    (a != 17, 30),
]
"""Condition -> how many of 30 row groups are left by the bounds of columns."""


@pytest.mark.parametrize(("condition", "groups"), ROW_GROUPS_LEFT)
def test_row_groups_that_are_left(folder, condition, groups):
    """The rows are those that polars keeps."""
    rows, found = read(ParquetSource(folder, filter=condition))
    assert (found["row_groups"], found["row_groups"] + found["pruned_row_groups"]) == (groups, 30)
    casts = [a.cast(pl.Int64), b.cast(pl.Int64), t.cast(pl.Datetime("us", "UTC"))]
    frame = pl.concat([pl.read_parquet(folder / f"{number}.parquet").with_columns(casts) for number in range(3)])
    assert rows == frame.filter(getattr(condition, "polars", condition))["row"].to_list()


@pytest.mark.parametrize(("stored", "arrow"), [("ms", "s"), ("us", "s"), ("us", "ns"), ("ns", "us")])
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


# Filters of every form in which a null, NaN or -0.0 can be true

OF = {  # column -> its type, and constants
    "a": (pl.Int64, [-7, 0, 4, 5, 11, 40]),
    "f": (pl.Float64, [-3.5, -0.0, 0.0, 2.0, 9.5]),
    "s": (pl.String, ["", "b", "k", "z"]),
    "p": (pl.Int64, [1, 2, 3]),
    "q": (pl.String, ["x", "y"]),
}
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """(a folder of small row groups with nulls, keyed by `p` and `q`; all of its rows)."""
    folder, frames = tmp_path_factory.mktemp("gaps"), []
    nan = float("nan")
    integers = [0, 4, None, 5, 5, 5, None, None, None, -7, 11, 3, 40, None, 41]
    floats = [-0.0, 0.0, None, nan, 2.0, 9.5, None, None, None, 0.0, -3.5, 1.0, nan, nan, -0.0]
    texts = ["b", "k", None, "", "c", "z", None, None, None, "k", "k", "k", "y", None, "a"]
    for p, q in [(1, "x"), (2, None), (None, "y"), (2, "y")]:
        below = folder / f"p={p or NULL_FOLDER}" / f"q={q or NULL_FOLDER}"
        rows = np.arange(len(integers)) + len(integers) * len(frames)
        kinds = {"row": pl.Int64} | {name: OF[name][0] for name in "afs"}
        stored = pl.DataFrame({"row": rows, "a": integers, "f": floats, "s": texts}, schema=kinds)
        write(below / "a.parquet", stored.to_arrow(), group=3)
        keys = {"p": pl.lit(p, pl.Int64), "q": pl.lit(q, pl.String)}
        frames.append((below, stored.with_columns(**keys)))
    return folder, pl.concat([frame for _, frame in sorted(frames, key=lambda each: str(each[0]))])


@st.composite
def comparisons(draw, columns="afspq"):
    """A condition over one column, or over one and what takes the place of its nulls."""
    name = draw(st.sampled_from(columns))
    kind, values = OF[name]
    column, value = pl.col(name), st.sampled_from(values)
    form = draw(st.sampled_from(["compare", "null", "in", "between", "fill", "coalesce", "nan"]))
    if form == "null":
        return draw(st.sampled_from([column.is_null(), column.is_not_null()]))
    if form == "nan" and name == "f":
        return draw(st.sampled_from([column.is_nan(), column.is_not_nan()]))
    if form == "in":
        chosen = draw(st.lists(st.one_of(value, st.none()), max_size=3))
        chosen += [float("nan")] if name == "f" and draw(st.booleans()) else []
        return column.is_in(pl.Series([chosen], dtype=pl.List(kind)), nulls_equal=draw(st.booleans()))
    if form == "between":
        ends = pl.lit(draw(value)), pl.lit(draw(value))
        return column.is_between(*ends, closed=draw(st.sampled_from(["both", "left", "none"])))
    if form == "fill":
        column = column.fill_null(pl.lit(draw(value)))
    elif form == "coalesce":
        other = draw(st.sampled_from([each for each in OF if OF[each][0] == kind]))
        column = pl.coalesce(column, pl.col(other), pl.lit(draw(value)))
    ops = ["gt", "ge", "lt", "le", "eq", "ne", "eq_missing", "ne_missing"]
    sides = [column, pl.lit(draw(st.one_of(value, st.none())), dtype=kind)]
    # Polars 2.1 compares a constant with a coalesce of nulls once, not row by row, if the constant comes first.
    left, right = sides if form == "coalesce" or draw(st.booleans()) else sides[::-1]
    return getattr(left, draw(st.sampled_from(ops)))(right)


def combined(conditions):
    two = st.tuples(conditions, conditions)
    return st.one_of(
        two.map(lambda of: of[0] & of[1]),
        two.map(lambda of: of[0] | of[1]),
        conditions.map(lambda of: ~of),
        st.tuples(conditions, conditions, conditions).map(lambda of: pl.when(of[0]).then(of[1]).otherwise(of[2])),
    )


@given(condition=st.recursive(comparisons(), combined, max_leaves=4), skip=st.sampled_from([0, 0, 0, 20]))
@example(condition=pl.col("a").is_in([40, None], nulls_equal=True), skip=0)
@example(condition=pl.col("p").is_in([1, None], nulls_equal=True) & (pl.col("a") > 3), skip=0)
@example(condition=pl.col("a").is_in([40, None], nulls_equal=True) | (pl.col("a") == 11), skip=0)
@example(condition=~pl.col("a").is_in([40, None], nulls_equal=True), skip=0)
@example(condition=((pl.col("p") == 1) | (pl.col("p") == 2)) & (pl.col("a") > 3), skip=0)
def test_any_filter_keeps_the_rows_that_polars_keeps(gaps, condition, skip):
    folder, table = gaps
    rows, _ = read(ParquetSource(folder, filter=condition, skip=skip))
    assert rows == table.with_row_index("at").filter(condition & (pl.col("at") >= skip))["row"].to_list()


def test_constants_of_an_array_are_values_of_is_in(tmp_path):
    """One row group, and as many values as rows of bounds are compared."""
    write(tmp_path / "0.parquet", {"row": [0, 1, 2], "a": [5, 6, None]})
    values = pl.lit(pl.Series([[6, 7]], dtype=pl.Array(pl.Int64, 2)))
    assert read(ParquetSource(tmp_path, filter=a.is_in(values)))[0] == [1]


@pytest.mark.parametrize("many", [1, 70])
def test_is_in_of_nanoseconds(tmp_path, many):
    """Times of Python have none: a constant must not become an earlier time."""
    times = pa.array([1_500_000_000_123_456_789, 1_500_000_000_123_456_791, None], pa.timestamp("ns"))
    write(tmp_path / "0.parquet", {"row": [0, 1, 2], "t": times}, group=1)
    values = pl.Series([[times[1].value, *range(many)]], dtype=pl.List(pl.Datetime("ns")))
    assert read(ParquetSource(tmp_path, filter=t.is_in(values)))[0] == [1]


def test_files_without_statistics_are_read(tmp_path):
    write(tmp_path / "0.parquet", {"row": np.arange(9), "a": np.arange(9)}, write_statistics=False)
    rows, found = read(ParquetSource(tmp_path, filter=a > 100))
    assert (rows, found["pruned_row_groups"], found["row_groups"]) == ([], 0, 1)
    assert catalog_of(tmp_path, ("a",)).bounds["a"][:, 0].tolist() == UNKNOWN.tolist()
