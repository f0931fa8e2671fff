"""Sources: which types of columns can be read as what, files that differ, and times."""

import decimal

import polars as pl
import pyarrow as pa
import pytest
from parquet import column, lists, opened, read, read_all, write
from user_files import found, users

from fsdata import Schema, Sequence
from fsdata.decode.opened_source import open_source
from fsdata.decode.row_layout import layout_of
from fsdata.errors import DataError, SchemaError
from fsdata.sources import ParquetSource


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array(["a"]), r"user: column 'user' is string: text is never .* columns=\{'user': pl\.col\('user'\)\.hash"),
        (pa.array([b"a"]), "text is never"),
        (pa.array(["a"]).dictionary_encode(), "text is never"),
        (pa.array([1.0]), "is double: ids are integers"),
        (lists(pa.int64(), [1]), "is list<.*>, a list, where one value per sample is needed"),
        (pa.array([{"a": 1}]), "struct.* cannot be read as int64"),
    ],
    ids=["string", "binary", "dictionary", "float", "list", "struct"],
)
def test_columns_that_cannot_be_ids(tmp_path, array, message):
    path = write(tmp_path / "a.parquet", {"user": array})
    with pytest.raises(SchemaError, match=message):
        found(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1]), "is int64, one value per sample, where a list is needed"),
        (lists(pa.float32(), [1.0]), "ids are integers"),
        (lists(pa.list_(pa.int64()), [[1]]), r"a list of lists: several ids per event belong to Sequence\(nested="),
        (lists(pa.string(), ["a"]), r"pl\.col\('item'\)\.list\.eval\(pl\.element\(\)\.hash"),
    ],
    ids=["scalar", "floats", "nested", "strings"],
)
def test_columns_that_cannot_be_id_lists(tmp_path, array, message):
    path = write(tmp_path / "a.parquet", {"item": array})
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path), Schema(sequences=(Sequence("uih", ("item",)),)))


def test_decimals_are_values_and_times_are_not(tmp_path):
    path = write(
        tmp_path / "a.parquet", {"price": pa.array([decimal.Decimal("1.25")]), "at": pa.array([0], pa.timestamp("s"))}
    )
    assert read(ParquetSource(path), Schema(dense=("price",))) == [{"dense": [1.25]}]
    with pytest.raises(SchemaError, match="turn it into a number with an expression"):
        read(ParquetSource(path), Schema(dense=("at",)))


def test_a_list_label_needs_candidates(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1]), "click": lists(pa.float32(), [1.0])})
    with pytest.raises(SchemaError, match=r"a list label needs Schema\(candidates="):
        read(ParquetSource(path), Schema(context=("user",), labels=("click",)))


def test_labels_made_of_defaults_take_either_form(tmp_path):
    path = write(tmp_path / "a.parquet", {"c": lists(pa.int64(), [1, 2], [])})
    schema = Schema(candidates=Sequence("candidates", ("c",)), labels=("click",))
    handle, layout = opened(ParquetSource(path, defaults={"click": 1}), schema)
    assert handle.list_labels == frozenset()
    assert handle.default_labels == {"click"}
    assert column(read_all(handle, layout), "click") == [[1.0], [1.0]]
    as_lists = layout_of(schema, frozenset({"click"}))
    assert column(read_all(handle, as_lists), "click") == [[1.0, 1.0], []]


def test_the_whole_mismatch_in_one_message(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1]), "item": pa.array([1]), "age": pa.array(["x"])})
    write(tmp_path / "b.parquet", {"user": pa.array([1]), "age": pa.array([1.0])})
    schema = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("user",), dense=("age",))
    with pytest.raises(SchemaError) as caught:
        open_source(ParquetSource(tmp_path), schema, index=2)
    message = str(caught.value)
    assert f"source 2 ({tmp_path}) cannot be read as this schema:" in message
    assert (
        "item: column 'item' is int64, one value per sample, where a list is needed [1 of 2 files: a.parquet]"
        in message
    )
    assert (
        "item: column 'item' is missing; give columns={'item': ...} or defaults={'item': ...} [1 of 2 files: b.par"
        in message
    )
    assert (
        "action: column 'action' is missing; give columns={'action': ...} or defaults={'action': ...} [all files]"
        in message
    )
    assert "age: column 'age' is string" in message
    assert "[1 of 2 files: a.parquet]" in message
    assert "columns of a.parquet: user: int64, item: int64, age: string" in message


def test_drift_that_widening_mends(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1], pa.int8()), "item": lists(pa.int32(), [1])})
    write(
        tmp_path / "b.parquet", {"item": pa.array([[2]], pa.large_list(pa.uint64())), "user": pa.array([2], pa.int64())}
    )
    write(tmp_path / "c.parquet", {"item": lists(pa.int64(), [3, 4])})
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("user",))
    samples = read(ParquetSource(tmp_path, defaults={"user": 0}), schema)
    assert samples == [{"user": [1], "item": [1]}, {"user": [2], "item": [2]}, {"user": [0], "item": [3, 4]}]


def test_drift_that_widening_cannot_mend(tmp_path):
    for name, unit, label in [("a", "ms", pa.array([1.0])), ("b", "us", lists(pa.float32(), [1.0]))]:
        write(
            tmp_path / f"{name}.parquet",
            {"at": pa.array([1], pa.timestamp(unit)), "click": label, "c": lists(pa.int64(), [1])},
        )
    schema = Schema(candidates=Sequence("candidates", ("c",)), context=("at",), labels=("click",))
    with pytest.raises(SchemaError) as caught:
        open_source(ParquetSource(tmp_path), schema)
    assert "at: is timestamp[us] in some files and timestamp[ms] in the first: units would be mixed" in str(
        caught.value
    )
    assert "click: is list<element: float> in some files and double in the first" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "default", "message"),
    [("user", 0.5, "not an integer"), ("age", 1e39, "too large for float32")],
)
def test_defaults_that_do_not_fit(tmp_path, field, default, message):
    path = users(tmp_path, "a.parquet", 1)
    with pytest.raises(SchemaError, match=message):
        open_source(
            ParquetSource(path, defaults={"age": 0} | {field: default}), Schema(context=("user",), dense=("age",))
        )


def test_times_are_nanoseconds_or_integers(tmp_path):
    schema = Schema(context=("user",), time="at")
    cases = [
        (pa.array([1, 2], pa.timestamp("ms")), [1_000_000, 2_000_000], "ns"),
        (pa.array([1, 2], pa.timestamp("us", "UTC")), [1000, 2000], "ns"),
        (pa.array([0, 1], pa.date32()), [0, 86_400_000_000_000], "ns"),
        (pa.array([5, 6], pa.int32()), [5, 6], "integer"),
    ]
    for number, (array, expected, unit) in enumerate(cases):
        path = write(tmp_path / f"{number}.parquet", {"user": pa.array([1, 2]), "at": array})
        handle, _ = opened(ParquetSource(path), schema)
        assert handle.time_unit == unit
        assert handle.read_times(handle.groups[0]).tolist() == expected


def test_a_null_time_is_an_error_unless_filtered(tmp_path):
    schema = Schema(context=("user",), time="at")
    path = write(tmp_path / "a.parquet", {"user": pa.array(range(4)), "at": pa.array([None, 3, None, 9])})
    handle, _ = opened(ParquetSource(path), schema)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 0: at is null"):
        handle.read_times(handle.groups[0])
    handle, layout = opened(ParquetSource(path, filter=pl.col("at").is_not_null()), schema)
    assert handle.read_times(handle.groups[0]).tolist() == [0, 3, 3, 9]
    assert column(read_all(handle, layout), "user") == [[1], [3]]
