"""A schema guessed from a file, and the code that it prints."""

from datetime import datetime

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, read, write

from fsdata import ParquetSource, Schema, SchemaError, Sequence, Split

EVENTS = [[1, 2, 3], [], None, [4]]
CODE = """Schema(
    sequences=(
        Sequence('uih', fields=('item', 'at'), floats=('price',), nested=('tags',)),
        Sequence('seen list', fields=('seen',)),
    ),
    context=('row', 'user'),
    dense=('age',),
    labels=('click',),
    time='requested',
    passthrough=('request',),
)"""


COLUMNS = {
    "row": [0, 1, 2, 3],
    "item": EVENTS,
    "seen": [[7], [8, 9], None, []],
    "price": [each and [0.5] * len(each) for each in EVENTS],
    "at": pa.array([[0] * len(each or []) for each in EVENTS], pa.list_(pa.timestamp("ms"))),
    "tags": [[[1]] * len(each or []) for each in EVENTS],
    "age": [1.5, 2.5, None, 3.5],
    "click": [True, False, True, None],
    "request": pa.array(["a", "b", "c", None]).dictionary_encode(),
    "requested": [datetime(2026, 11, 26)] * 4,
    "user": pa.array([1, 2, 3, 4], pa.uint16()),
    "words": pa.array([["a"]] * 4),
}


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (pa.array([1.0, 2.0, None, 3.5], pa.float16()), "dense"),
        (pa.array([1, 2, None, 3], pa.timestamp("ns")), None),
        (pa.array([2**60, 1, 2, 3], pa.timestamp("us")), "time"),
        (pa.array([1, 2, 3, 4], pa.timestamp("us", tz="Mars/Crater")), "time"),
        (pa.array([None] * 4, pa.timestamp("us")), None),
        (pa.array([1, 2, 3, 4], pa.date64()), "time"),
    ],
    ids=["float16", "nanoseconds", "after the year 9999", "an unknown zone", "no time at all", "days in milliseconds"],
)
def test_values_that_python_has_not(tmp_path, values, role):
    write(tmp_path / "a.parquet", {"item": EVENTS, "x": values})
    schema = Schema.infer(tmp_path)
    assert {"dense": schema.dense == ("x",), "time": schema.time == "x", None: "x" not in schema.field_names}[role]


def test_every_column_has_a_place(tmp_path, caplog):
    """And the schema reads the file that it was made of, where nulls have defaults."""
    pl.DataFrame({"row": []}).write_parquet(tmp_path / "a.parquet")
    path = write(tmp_path / "b.parquet", COLUMNS)
    schema = Schema.infer(tmp_path)
    assert str(schema) == CODE
    assert eval(CODE) == schema
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Schema.infer leaves out words: is list<element: string>: text is never turned"
    )
    defaults = {name: 0 for name in schema.field_names if name not in schema.passthrough} | {"request": ""}
    assert column(read(ParquetSource(path, defaults=defaults), schema), "item") == [[1, 2, 3], [], [], [4]]


def test_lists_of_lists_alone_are_left_out(tmp_path, caplog):
    """The longest of the others is `uih`."""
    write(tmp_path / "a.parquet", {"row": [1], "tags": [[[1], []]], "seen": [[7]], "none": pa.nulls(1)})
    wanted = Schema(sequences=(Sequence("uih", ("seen",)),), context=("row",))
    assert Schema.infer(str(tmp_path / "*.parquet")) == wanted
    assert "leaves out none: it is null in all rows" in caplog.text
    assert "leaves out tags: no list of single values is as long" in caplog.text


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": [[["a"]]]}, "a.parquet has no column that a sample can be made of: name"),
        ({"row": []}, "no file has a"),
    ],
)
def test_files_without_a_field(tmp_path, columns, message):
    write(tmp_path / "a.parquet", columns)
    with pytest.raises(SchemaError, match=message):
        Schema.infer(tmp_path)
    with pytest.raises(FileNotFoundError):
        Schema.infer(tmp_path / "nothing")


def test_code_makes_the_same_schema():
    schema = Schema(
        sequences=(
            Sequence("uih", ("a",), max_length=7, keep="first", split=Split(recent=1, segment=2, tokens=3)),
            Sequence("b", floats=("c",), labels=("d",), share="user"),
        ),
        candidates=Sequence("candidates", ("e",)),
        context=("user",),
        explode="candidates",
    )
    assert eval(str(schema)) == schema
