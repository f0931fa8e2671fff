"""Sources: renamed columns, expressions and filters."""

import math

import polars as pl
import pyarrow as pa
import pytest
from data_kit import found, lists, read, users, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence
from fsdata.sources import expressions
from fsdata.sources.expressions import Expression


def test_renames_expressions_and_filters(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {
            "uid": pa.array([1, 2, 3, 4], pa.int32()),
            "city": pa.array(["a", "b", None, "a"]),
            "tags": lists(pa.string(), ["x"], ["y", "x"], [], ["z"]),
            "score": pa.array([0.5, 1.5, 2.5, math.nan]),
        },
        group=3,
    )
    schema = Schema(sequences=(Sequence("tags", ("tag",)),), context=("user", "city_id"), dense=("double",))
    codes = {"x": 10, "y": 20, "z": 30}
    source = ParquetSource(
        path,
        columns={
            "user": "uid",
            "city_id": pl.col("city").replace_strict({"a": 1, "b": 2}, return_dtype=pl.Int8),
            "tag": pl.col("tags").list.eval(pl.element().replace_strict(codes, return_dtype=pl.Int32)),
            "double": pl.col("score") * 2,
        },
        defaults={"city_id": 99},
        filter=(pl.col("uid") != 2) & pl.col("score").is_not_nan(),
    )
    assert read(source, schema) == [
        {"user": 1, "city_id": 1, "tag": [10], "double": 1.0},
        {"user": 3, "city_id": 99, "tag": [], "double": 5.0},
    ]


def test_rows_that_the_filter_leaves_out_may_break_any_rule(tmp_path):
    path = write(
        tmp_path / "a.parquet", {"user": pa.array([1, None, 2**63], pa.uint64()), "ok": pa.array([1, 0, None])}
    )
    assert found(path, filter=pl.col("ok") == 1) == [1]
    assert found(path, filter=pl.col("ok") > 1) == []
    with pytest.raises(DataError, match="row 1: user is null"):
        found(path, filter=pl.col("user").fill_null(0) < 2**63)


@pytest.mark.parametrize("expression", [pl.col("user").mean(), pl.lit(3), "user + 1 is no column", 3], ids=str)
def test_what_is_no_expression_of_one_row_is_refused(tmp_path, expression):
    path = users(tmp_path, "a.parquet", 1, 2)
    with pytest.raises(SchemaError):
        found(path, columns={"user": expression})


def test_expressions_fail_before_training(tmp_path):
    path = write(tmp_path / "a.parquet", {"name": pa.array(["x"]), "n": pa.array([1])})
    schema = Schema(context=("a", "b", "c"))
    columns = {"a": pl.col("name").dt.year(), "b": pl.col("gone") + 1, "c": pl.col("n") / 2}
    with pytest.raises(SchemaError) as caught:
        read(ParquetSource(path, columns=columns, filter=pl.col("n") + 1), schema)
    message = str(caught.value)
    assert "a: expression failed" in message
    assert "b: the expression's column 'gone' is missing" in message
    assert "c: the expression's result is double: ids are integers" in message
    assert "filter: gives int64 where true or false is needed" in message


def test_an_expression_that_fails_on_data_names_the_rows(tmp_path):
    path = write(tmp_path / "a.parquet", {"name": pa.array(["1", "x"])})
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 0 or one of the 1 after it: expression failed"):
        found(path, columns={"user": pl.col("name").cast(pl.Int64)})


@pytest.mark.parametrize(
    ("expression", "count"),
    [(pl.col("user").first(), 1), (pl.col("user").filter(pl.col("user") > 1), 2), (pl.col("user").append(1), 4)],
    ids=["one value", "fewer", "more"],
)
@pytest.mark.parametrize("option", ["columns", "filter"])
def test_lengths_of_results_are_compared_with_the_rows(tmp_path, expression, count, option):
    """Expressions that pass the check cannot do this, as far as is known; the kernels trust lengths and types."""
    path = users(tmp_path, "a.parquet", 1, 2, 3)
    unchecked = Expression(expression if option == "columns" else expression > 0, "unchecked", ("user",))
    with pytest.raises(
        DataError, match=rf"row group 0, row 0 or one .*: the .* over user gave {count} values for 3 rows"
    ):
        found(path, **{option: {"user": unchecked} if option == "columns" else unchecked})


def test_types_of_results_are_compared_with_those_that_were_bound(tmp_path, monkeypatch):
    path = users(tmp_path, "a.parquet", 1, 2, 3)
    monkeypatch.setattr(expressions, "output_type", lambda expression, schema: pa.int32())
    with pytest.raises(DataError, match=r"row 0 or one of the 2 .*: .* over user gave int64 where it gives int32"):
        found(path, columns={"user": pl.col("user") + 1})


def test_dictionaries_are_hashed_by_what_they_stand_for(tmp_path):
    """Their numbers differ from file to file, and polars' from process to process."""
    plain = pa.array(["a", "b", "c", "b"])
    nested = pa.array([["a"], ["c", "b"], [], ["b"]], pa.list_(pa.string()))
    dictionaries = pa.array(["c", "b", "a"]).dictionary_encode().dictionary
    codes = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0, 1]), dictionaries)
    of_lists = pa.ListArray.from_arrays(nested.offsets, nested.values.dictionary_encode())
    schema = Schema(sequences=(Sequence("tags", ("tag",)),), context=("city",))
    columns = {"city": pl.col("city").hash() % 1000, "tag": pl.col("tags").list.eval(pl.element().hash() % 1000)}
    one = write(tmp_path / "one.parquet", {"city": plain, "tags": nested})
    other = write(tmp_path / "other.parquet", {"city": codes, "tags": of_lists})
    assert read(ParquetSource(one, columns=columns), schema) == read(ParquetSource(other, columns=columns), schema)
