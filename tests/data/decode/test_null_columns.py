"""Columns that hold nothing but nulls, which writers give no type: they are read as nulls of the type that the column
has in other files, or that the field needs."""

import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, read, write

from fsdata import DataError, ParquetSource, Schema, Sequence

COLUMNS = {
    "user": pa.array([5, 6], pa.int32()),
    "at": pa.array([7, 8], pa.timestamp("us")),
    "age": pa.array([0.5, 0.25]),
    "click": pa.array([1.0, 0.0]),
    "name": pa.array(["one", "four"]),
    "item": pa.array([[1, 2], []], pa.list_(pa.int32())),
    "price": pa.array([[0.5, 0.75], []]),
    "tags": pa.array([[[1], [2, 3]], []]),
    "words": pa.array([["a", "bc"], []]),
}
DEFAULTS = {"user": -1, "at": -2, "age": -3.5, "click": 0, "name": "none", "item": -4, "price": -5.5, "tags": -6}
SCHEMA = Schema(
    sequences=(Sequence("uih", ("item",), nested=("tags",), floats=("price",)),),
    context=("user", "at"),
    dense=("age",),
    labels=("click",),
    passthrough=("name",),
)
MADE = {"size": pl.col("name").str.len_bytes(), "sizes": pl.col("words").list.eval(pl.element().str.len_bytes())}
KEPT = (pl.col("name").is_null() | pl.col("name").str.starts_with("o")) & pl.col("age").fill_null(1).gt(0.3)


def gaps(kind, form, typed):
    """Two rows without a value: nulls, or lists that are empty and null; of their type, or of none."""
    if form == "nulls" or not pa.types.is_list(kind):
        return pa.nulls(2, kind if typed else pa.null())
    return pa.array([[], None], kind if typed else pa.list_(pa.null()))


def written(folder, form, names, *, typed):
    for name in names:
        columns = (
            COLUMNS if name == "values" else {name: gaps(each.type, form, typed) for name, each in COLUMNS.items()}
        )
        write(folder / f"{names.index(name)}.parquet", {**columns, "row": [0, 1]})
    return folder


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("form", ["nulls", "empty lists"])
@pytest.mark.parametrize("names", [("gaps", "values"), ("values", "gaps"), ("gaps",)], ids="-".join)
@pytest.mark.parametrize("policy", ["default", "drop"])
def test_they_are_read_as_nulls_with_a_type_are(tmp_path, decoder, form, names, policy):
    policies = {"defaults": DEFAULTS} if policy == "default" else {"nulls": dict.fromkeys(DEFAULTS, "drop")}
    typed, untyped = (
        read(ParquetSource(written(tmp_path / place, form, names, typed=typed), decoder=decoder, **policies), SCHEMA)
        for place, typed in (("typed", True), ("untyped", False))
    )
    assert untyped == typed
    assert len(untyped) == 2 * (len(names) if policy == "default" else names.count("values"))


@pytest.mark.parametrize("form", ["nulls", "empty lists"])
@pytest.mark.parametrize("names", [("gaps", "values"), ("values", "gaps")], ids="-".join)
def test_expressions_and_filters_see_the_type_of_other_files(tmp_path, form, names):
    made = {"columns": MADE, "defaults": {"size": -7, "sizes": -8}, "filter": KEPT, "split": "row"}
    schema = Schema(sequences=(Sequence("s", ("sizes",)),), context=("row", "size"))
    typed, untyped = (
        read(ParquetSource(written(tmp_path / str(typed), form, names, typed=typed), **made), schema)
        for typed in (True, False)
    )
    assert untyped == typed
    assert len(untyped) == 3


def test_without_a_policy_the_first_null_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", {"name": pa.nulls(2), "item": pa.nulls(2)})
    for schema in (Schema(passthrough=("name",)), Schema(sequences=(Sequence("uih", ("item",)),))):
        with pytest.raises(
            DataError, match=r"a.parquet, row group 0, row 0: (name|item) is null. Give ParquetSource\(def"
        ):
            read(ParquetSource(path), schema)
