"""`ParquetSource(map=...)`: what the function gets, what it may give, and what its failures say."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from data_kit import column, loader_on, read, write

from fsdata import DataError, ParquetSource, Schema, Sequence

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item",), floats=("price",), nested=("tags",), max_length=3),),
    context=("user", "day"),
    dense=("age",),
    labels=("click",),
    passthrough=("id",),
)
ROWS = 9


def table(rows=ROWS):
    lists = [list(range(10 * n, 10 * n + n % 5)) for n in range(rows)]
    return pa.table(
        {
            "user": pa.array(range(rows)),
            "items": pa.array(lists),
            "price": pa.array([[0.5 * n for n in each] for each in lists], pa.large_list(pa.float32())),
            "tags": pa.array([[[n, n + 1][: n % 3] for n in each] for each in lists]),
            "age": pa.array([n / 2 for n in range(rows)]),
            "click": pa.array([n % 2 for n in range(rows)], pa.int8()),
            "request": pa.array([f"r{n}" for n in range(rows)]),
        }
    )


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet", table(), group=4)


def source(folder, **options):
    columns = {"item": "items", "id": "request", **options.pop("columns", {})}
    return ParquetSource(folder, columns=columns, defaults={"day": 7, **options.pop("defaults", {})}, **options)


def changed(batch, **arrays):
    for name, array in arrays.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, array)
    return batch


def test_it_gets_the_fields_by_their_names(path, tmp_path):
    seen = []

    def note(batch):
        seen.append(batch)
        return batch

    options = {"filter": pl.col("user") != 1, "columns": {"user": pl.col("user") + 100}}
    assert read(source(path, map=note, **options), SCHEMA) == read(source(path, **options), SCHEMA)
    assert [batch.num_rows for batch in seen] == [3, 4, 1]
    assert {tuple(sorted(batch.schema.names)) for batch in seen} == {
        ("age", "click", "id", "item", "price", "tags", "user")
    }
    assert [value for batch in seen for value in batch["user"].to_pylist()] == [100, *range(102, 109)]
    write(tmp_path / "day=3" / "a.parquet", table(4))
    assert column(read(source(tmp_path / "day=3", map=note), SCHEMA), "day") == [3] * 4
    assert "day" not in seen[-1].schema.names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("item", pa.large_list(pa.int32())),
        ("item", pa.list_(pa.uint64())),
        ("price", pa.list_(pa.float64())),
        ("tags", pa.large_list(pa.large_list(pa.int16()))),
        ("user", pa.uint8()),
        ("age", pa.float32()),
        ("click", pa.bool_()),
        ("id", pa.large_string()),
        ("id", pa.dictionary(pa.int32(), pa.string())),
        ("id", pa.string_view()),
    ],
    ids=str,
)
def test_other_types_that_serve_a_field(path, name, kind):
    def cast(batch):
        return changed(batch, **{name: batch[name].cast(kind)})

    assert read(source(path, map=cast), SCHEMA) == read(source(path), SCHEMA)


@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, lambda of: pa.list_(of, 2)], ids=["list", "large", "2"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.list_(pa.int64()), pa.list_(pa.int64(), 3)], ids=str)
def test_slices_and_what_lies_below_nulls(tmp_path, outer, kind):
    """Arrays may begin anywhere in their buffers, and a null list may have elements."""
    event = (lambda n: [n, n + 1, n + 2]) if kind.num_fields else (lambda n: n)
    whole = pa.array([[event(10 * n), event(10 * n + 5)] for n in range(12)], outer(kind))
    known = np.arange(12) % 5 != 2
    valid = pa.py_buffer(np.packbits(known, bitorder="little").tobytes())
    buffers = [valid, *whole.buffers()[1 : whole.type.num_buffers]]
    part = pa.Array.from_buffers(whole.type, 12, buffers, children=[whole.values]).slice(4, 7)
    fields = {"nested": ("item",)} if kind.num_fields else {}
    schema = Schema(sequences=(Sequence("uih", ("one",) if fields else ("one", "item"), **fields, max_length=1),))
    path = write(tmp_path / "a.parquet", {"one": pa.array([[1, 1]] * 7), "item": part}, group=7)
    options = {"nulls": {"item": "drop"}}
    got = read(ParquetSource(path, map=lambda batch: changed(batch, item=part), **options), schema)
    assert got == read(ParquetSource(path, **options), schema)
    assert column(got, "item") == [[event(10 * n + 5)] for n in range(4, 11) if known[n]]


def test_null_policies_come_after_it(path):
    def without_odd(batch):
        odd = pa.array([user % 2 == 1 for user in batch["user"].to_pylist()])
        return changed(batch, age=pc.if_else(odd, pa.scalar(None, batch["age"].type), batch["age"]))

    got = read(source(path, map=without_odd, nulls={"age": "drop"}), SCHEMA)
    assert column(got, "user") == list(range(0, ROWS, 2))
    got = read(source(path, map=without_odd, defaults={"age": 9.0}), SCHEMA)
    assert column(got, "age")[:3] == [0.0, 9.0, 1.0]
    with pytest.raises(DataError, match="row group 0, row 1: age is null"):
        read(source(path, map=without_odd), SCHEMA)
    nothing = source(path, map=lambda batch: changed(batch, item=pa.nulls(batch.num_rows)), nulls={"item": "drop"})
    assert read(nothing, SCHEMA) == []


def test_nulls_of_the_files_can_be_filled(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1, None, 3]), "id": pa.array([None, "b", None])})

    def filled(batch):
        return changed(batch, user=pc.fill_null(batch["user"], 0), id=pc.fill_null(batch["id"], "?"))

    got = read(ParquetSource(path, map=filled), Schema(context=("user",), passthrough=("id",)))
    assert got == [{"user": 1, "id": "?"}, {"user": 0, "id": "b"}, {"user": 3, "id": "?"}]


def large(batch):
    return changed(batch, user=pc.add(batch["user"].cast(pa.uint64()), pa.scalar(2**63 - 3, pa.uint64())))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch.slice(1), r"gave 3 rows for 4: .* nulls=\{...: 'drop'\}"),
        (lambda batch: pa.Table.from_batches([batch]), "gave a Table, where a pyarrow.RecordBatch is needed"),
        (lambda batch: None, "gave a NoneType"),
        (lambda batch: batch.drop_columns("user"), r"gave the columns \['item', .* are needed: \['user', 'item'"),
        (lambda batch: batch.append_column("more", batch["user"]), "gave the columns .*'more'"),
        (lambda batch: batch.rename_columns(["a", *batch.schema.names[1:]]), r"gave the columns \['a'"),
        (lambda batch: changed(batch, user=batch["user"].cast(pa.float64())), "gave 'user', which is double: ids are"),
        (lambda batch: changed(batch, user=batch["item"]), "gave 'user', which is list<.*, a list, where one value"),
        (lambda batch: changed(batch, item=batch["user"]), "gave 'item', which is int64, one value per sample"),
        (lambda batch: changed(batch, id=batch["user"]), "gave 'id', which is int64 where it got string: one of both"),
        (
            lambda batch: changed(batch, user=batch["user"].cast(pa.timestamp("s"))),
            r"gave 'user', which is timestamp\[s\] where it got int64: integers and timestamps in s would be mixed",
        ),
        (lambda batch: changed(batch, age=batch["id"]), "gave 'age', which is string: text is never turned"),
    ],
    ids=range(12),
)
def test_what_it_must_not_give(path, function, message):
    with pytest.raises(DataError, match=rf"source 0 \(.*a.parquet, row group 0: map=... {message}"):
        read(source(path, map=function, on_error="skip"), SCHEMA)
    with pytest.raises(DataError, match=f"row group 0, row 3: user: {2**63} is outside int64"):
        read(source(path, map=large), SCHEMA)


@pytest.mark.parametrize(
    ("error", "on_error"),
    [
        (ZeroDivisionError("x"), "raise"),
        (OSError("x"), "skip"),
        (pa.ArrowInvalid("x"), "skip"),
        (DataError("x"), "skip"),
        (FileNotFoundError(2, "x"), "raise"),
        (StopIteration(), "skip"),
    ],
    ids=repr,
)
def test_what_it_raises_is_raised(path, error, on_error):
    def fails(batch):
        if batch["user"][0].as_py() == 4:
            raise error
        return batch

    stops = isinstance(error, StopIteration)
    with loader_on(source(path, map=fails, on_error=on_error), SCHEMA, batch_size=4) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 4
        with pytest.raises(RuntimeError if stops else type(error)) as caught:
            next(batches)
        assert loader.skipped == []
    assert caught.value is error or (stops and caught.value.__cause__ is error)
    (note,) = caught.value.__notes__
    assert note.startswith("map=... failed with row 0 and the 3 after it of source 0 (")
    assert note.endswith("a.parquet, row group 1")


def test_times_that_order_sources_are_those_of_the_files(tmp_path):
    sources = [
        ParquetSource(
            write(tmp_path / f"{by}.parquet", {"at": [3 * n + by for n in range(3)]}),
            map=lambda batch, by=by: changed(batch, at=pc.add(batch["at"], 100 * by)),
        )
        for by in range(2)
    ]
    at = column(read(sources, Schema(context=("at",), time="at"), mix="time"), "at")
    assert at == [0, 101, 3, 104, 6, 107]
