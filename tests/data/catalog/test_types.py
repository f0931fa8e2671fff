"""Sources: which types of columns can be read as what, files that differ, and times."""

import decimal

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, lists, loader_on, read, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence

ITEMS = Schema(sequences=(Sequence("uih", ("item",)),))
IDS, DENSE = Schema(context=("user",)), Schema(dense=("age",))
LABEL = Schema(context=("user",), labels=("click",))


@pytest.mark.parametrize(
    ("schema", "name", "array", "message"),
    [
        (
            IDS,
            "user",
            pa.array(["a"]),
            r"user: column 'user' is string: text is never .* columns=\{'user': fsdata\.text_key\('us",
        ),
        (IDS, "user", pa.array([b"a"]), "text is never"),
        (IDS, "user", pa.array(["a"]).dictionary_encode(), "text is never"),
        (IDS, "user", pa.array([1.0]), "is double: ids are integers"),
        (IDS, "user", lists(pa.int64(), [1]), "is list<.*>, a list, where one value per sample is needed"),
        (IDS, "user", pa.array([{"a": 1}]), r"struct.* cannot be read as int64"),
        (ITEMS, "item", pa.array([1]), "is int64, one value per sample, where a list is needed"),
        (ITEMS, "item", lists(pa.float32(), [1.0]), "ids are integers"),
        (
            ITEMS,
            "item",
            lists(pa.list_(pa.int64()), [[1]]),
            r"list of lists: several ids per event belong to Sequence\(",
        ),
        (ITEMS, "item", lists(pa.string(), ["a"]), r"text_key\('item', buckets=2\*\*20\)"),
        (DENSE, "age", pa.array([0], pa.timestamp("s")), "turn it into a number with an expression"),
        (LABEL, "click", lists(pa.float32(), [1.0]), r"a list label needs Schema\(candidates="),
    ],
)
def test_columns_that_do_not_serve_a_field(tmp_path, schema, name, array, message):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1])} | {name: array})
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path), schema)


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"user": 0.5}, "not an integer"),
        ({"age": 1e39}, "too large for float32"),
        ({"user": "x"}, "the default 'x' is text, which only passthrough fields take"),
        ({"contry": 1}, "defaults names contry"),
    ],
)
def test_defaults_that_do_not_fit(tmp_path, defaults, message):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1]), "age": pa.array([decimal.Decimal("1.25")])})
    schema = Schema(context=("user",), dense=("age",))
    assert read(ParquetSource(path), schema) == [{"user": 1, "age": 1.25}]
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path, defaults=defaults), schema)


def test_labels_made_of_defaults_take_either_form(tmp_path):
    """Beside a source that has lists, they are lists."""
    plain = ParquetSource(write(tmp_path / "a.parquet", {"c": lists(pa.int64(), [1, 2], [])}), defaults={"click": 1})
    other = ParquetSource(write(tmp_path / "b.parquet", {"c": [[3]], "click": lists(pa.float32(), [0.5])}))
    schema = Schema(candidates=Sequence("candidates", ("c",)), labels=("click",))
    assert column(read(plain, schema), "click") == [1.0, 1.0]
    assert column(read([plain, other], schema), "click") == [[1.0, 1.0], [], [0.5]]


def test_the_whole_mismatch_in_one_message(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1]), "item": pa.array([1]), "age": pa.array(["x"])})
    write(tmp_path / "b.parquet", {"user": pa.array([1]), "age": pa.array([1.0])})
    schema = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("user",), dense=("age",))
    path = write(tmp_path.with_name("right") / "c.parquet", {"user": [1], "item": [[1]], "action": [[1]], "age": [1.0]})
    with pytest.raises(SchemaError) as caught:
        loader_on([ParquetSource(path), ParquetSource(path), ParquetSource(tmp_path)], schema)
    said = [
        f"source 2 ({tmp_path}) cannot be read as this schema:",
        "item: column 'item' is int64, one value per sample, where a list is needed "
        "(columns={name: pl.concat_list(column)} makes lists of one; single values belong to Schema(context=...)) "
        "[1 of 2 files: a.parquet]",
        "item: column 'item' is missing; give columns={'item': ...} or defaults={'item': ...} [1 of 2 files: b.par",
        "action: column 'action' is missing; give columns={'action': ...} or defaults={'action': ...} [all files]",
        "age: column 'age' is string",
        "columns of a.parquet: user: int64, item: int64, age: string",
    ]
    assert [each for each in said if each not in str(caught.value)] == []


def test_a_column_with_a_similar_name_is_named(tmp_path):
    write(tmp_path / "a.parquet", {"user_ids": pa.array([1]), "country": pa.array([1])})
    with pytest.raises(SchemaError, match="'user_id' is missing, did you mean 'user_ids'\\?; give columns=") as caught:
        read(ParquetSource(tmp_path), Schema(context=("user_id", "age")))
    assert "age: column 'age' is missing; give columns=" in str(caught.value)


def test_files_whose_types_differ(tmp_path):
    users, item = pa.array([2], pa.int64()), pa.array([[2]], pa.large_list(pa.uint64()))
    write(tmp_path / "a.parquet", {"user": pa.array([1], pa.int8()), "item": lists(pa.int32(), [1])})
    write(tmp_path / "b.parquet", {"item": item, "user": users})
    write(tmp_path / "c.parquet", {"item": lists(pa.int64(), [3, 4])})
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("user",))
    samples = read(ParquetSource(tmp_path, defaults={"user": 0}), schema)
    assert samples == [{"user": 1, "item": [1]}, {"user": 2, "item": [2]}, {"user": 0, "item": [3, 4]}]


def test_drift_that_widening_cannot_mend(tmp_path):
    for name, unit, label in [("a", "ms", pa.array([1.0])), ("b", "us", lists(pa.float32(), [1.0]))]:
        at = pa.array([1], pa.timestamp(unit))
        write(tmp_path / f"{name}.parquet", {"at": at, "click": label, "c": lists(pa.int64(), [1])})
    schema = Schema(candidates=Sequence("candidates", ("c",)), context=("at",), labels=("click",))
    with pytest.raises(SchemaError) as caught:
        read(ParquetSource(tmp_path), schema)
    said = str(caught.value)
    assert (
        "at: is timestamp[us] in some files and timestamp[ms] in the first: timestamps in ms and timestamps in " in said
    )
    assert "click: is list<element: float> in some files and double in the first" in said


@pytest.mark.parametrize(
    ("array", "unit"),
    [
        (pa.array([1, 2, 5], pa.timestamp("ms")), 1_000_000),
        (pa.array([1, 2, 5], pa.timestamp("us")), 1000),
        (pa.array([0, 1, 5], pa.date32()), 86_400_000_000_000),
    ],
    ids=["ms", "us", "days"],
)
def test_times_are_compared_as_nanoseconds(tmp_path, array, unit):
    """Rows of the other source lie a nanosecond before and behind them."""
    write(tmp_path / "a.parquet", {"user": [1, 2, 3], "at": array})
    ends = [
        value * unit for value in array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist()
    ]
    around = pa.array([each for end in ends for each in (end - 1, end + 1)], pa.timestamp("ns"))
    write(tmp_path / "b.parquet", {"user": [10, 11, 20, 21, 30, 31], "at": around})
    sources = [ParquetSource(tmp_path / f"{name}.parquet") for name in "ab"]
    samples = read(sources, Schema(context=("user",), time="at"), mix="time")
    assert column(samples, "user") == [10, 1, 11, 20, 2, 21, 30, 3, 31]


def test_a_null_time_is_an_error_unless_filtered(tmp_path):
    schema = Schema(context=("user",), time="at")
    path = write(tmp_path / "a.parquet", {"user": range(4), "at": [None, 3, None, 9]})
    other = ParquetSource(write(tmp_path / "b.parquet", {"user": [9], "at": [5]}))
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 0: at is null"):
        read([ParquetSource(path), other], schema, mix="time")
    known = ParquetSource(path, filter=pl.col("at").is_not_null())
    assert column(read([known, other], schema, mix="time"), "user") == [1, 9, 3]


def test_int96_counts_microseconds_of_any_year(tmp_path):
    """9999-12-31 is no end of time to Spark, and nanoseconds would wrap."""
    far, near = 253_402_300_799_000_000, 1_700_000_000_000_000
    times = pa.array([far, near, None], pa.timestamp("us"))
    table = {"user": [1, 2, 3], "at": times, "item": pa.array([[far, near], [near], []], pa.list_(times.type))}
    old = write(tmp_path / "old.parquet", table, use_deprecated_int96_timestamps=True)
    write(tmp_path / "new.parquet", table)
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("at",))
    samples = read(ParquetSource(tmp_path, defaults={"at": 0}), schema)
    assert column(samples, "at") == 2 * [far, near, 0]
    assert column(samples, "item") == 2 * [[far, near], [near], []]
    later = pl.col("at") > pl.datetime(9000, 1, 1)
    assert column(read(ParquetSource(old, filter=later), Schema(context=("user",))), "user") == [1]
    timed = Schema(context=("user",), time="at")
    near_only = {"user": [2, 4], "at": pa.array([near, near + 2], times.type)}
    path = write(tmp_path / "near.parquet", near_only, use_deprecated_int96_timestamps=True)
    other = ParquetSource(write(tmp_path / "other.parquet", {"user": [3], "at": times[1:2].cast(pa.timestamp("ns"))}))
    with pytest.raises(DataError, match=f"row 0: at: {far} of timestamp.us. is outside the years 1678 to 2261"):
        read([ParquetSource(old, filter=pl.col("user") == 2), other], timed, mix="time")
    assert column(read([ParquetSource(path), other], timed, mix="time"), "user") == [2, 3, 4]
