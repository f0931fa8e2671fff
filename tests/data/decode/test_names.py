"""Columns whose names look like the path of a leaf of another column."""

import fsspec
import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, column, lists, read, write

from fsdata import ParquetSource, Schema, Sequence
from fsdata.compose import installed

INNER = [{"b": 10}, {"b": 20}, {"b": 30}]
COLUMNS = {
    "struct first": {"a": INNER, "a.b": [1, 2, 3]},
    "struct behind": {"a.b": [1, 2, 3], "a": INNER},
    "struct of another type": {"a": [{"b": 0.5}] * 3, "a.b": [1, 2, 3]},
    "struct of two": {"a": [{"c": "x", "b": 10}] * 3, "a.b": [1, 2, 3]},
    "struct with a dot": {"a": INNER, "a.b": [1, 2, 3], "a.b.c": [7, 8, 9]},
}


@pytest.fixture(params=DECODERS)
def source(request, tmp_path):
    def made(table, **options):
        path = write(tmp_path / "f.parquet", table, group=1)
        if options.pop("remote", False):
            memory = fsspec.filesystem("memory")
            memory.pipe("/names.parquet", path.read_bytes())
            return ParquetSource("memory://names.parquet", decoder=request.param, **options)
        return ParquetSource(path, decoder=request.param, **options)

    return made


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("remote", [False, True] if installed("remote") else [False])
def test_a_column_beside_a_struct(source, columns, remote):
    schema = Schema(context=("a.b",))
    assert column(read(source(columns, remote=remote), schema), "a.b") == [1, 2, 3]
    kept = source(columns, remote=remote, filter=pl.col("a.b") <= 2, columns={"n": pl.col("a.b") * 2})
    assert column(read(kept, Schema(context=("n",))), "n") == [2, 4]  # bounds are those of this column, too


@pytest.mark.parametrize("order", [("l", "l.list.element"), ("l.list.element", "l")])
def test_a_column_beside_a_list(source, order):
    columns = {"l": lists(pa.int64(), [10], [], [30, 31]), "l.list.element": pa.array([1, 2, 3])}
    table = {name: columns[name] for name in order}
    assert column(read(source(table), Schema(context=("l.list.element",))), "l.list.element") == [1, 2, 3]
    both = Schema(sequences=[Sequence("uih", fields=("l",))], context=("l.list.element",))
    assert read(source(table), both) == [
        {"l": [10], "l.list.element": 1},
        {"l": [], "l.list.element": 2},
        {"l": [30, 31], "l.list.element": 3},
    ]


def test_a_list_with_dots_and_a_column_beside_a_map(source):
    maps = pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int64()))
    columns = {"m": maps, "m.key_value.key": [5, 6], "s": [{"q": [0]}] * 2, "s.q": [[1, 2], [3]]}
    schema = Schema(sequences=[Sequence("uih", fields=("s.q",))], context=("m.key_value.key",))
    assert read(source(columns), schema) == [
        {"s.q": [1, 2], "m.key_value.key": 5},
        {"s.q": [3], "m.key_value.key": 6},
    ]


def test_a_column_without_a_name(source):
    assert column(read(source({"": [1, 2], "x": [3, 4]}, columns={"e": ""}), Schema(context=("e",))), "e") == [1, 2]
