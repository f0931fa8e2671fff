"""`ParquetSource(map=...)`: what the function gets, what it may give, and what its failures say."""

from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from parquet import column, opened, read, write

from fsdata import AsOf, DataError, Join, ParquetSource, Schema, SchemaError, Sequence

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


def source(folder, **options):
    columns = {"item": "items", "id": "request", **options.pop("columns", {})}
    return ParquetSource(folder, columns=columns, defaults={"day": 7, **options.pop("defaults", {})}, **options)


def changed(batch, **arrays):
    for name, array in arrays.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, array)
    return batch


def doubled(batch):
    items = pa.array([[2 * item for item in each] for each in batch["item"].to_pylist()], pa.list_(pa.int64()))
    return changed(batch, item=items, user=pc.multiply(batch["user"], 2))


def same(batch):
    return batch


def test_it_gets_the_fields_by_their_names(tmp_path):
    seen = []

    def note(batch):
        seen.append(batch)
        return batch

    write(tmp_path / "a.parquet", table(), group=5)
    folder = tmp_path / "day=3"
    options = {"filter": pl.col("user") != 1, "columns": {"user": pl.col("user") + 100}}
    got = read(source(tmp_path / "a.parquet", map=note, **options), SCHEMA)
    assert got == read(source(tmp_path / "a.parquet", **options), SCHEMA)
    assert [batch.num_rows for batch in seen] == [4, 4]
    assert {tuple(sorted(batch.schema.names)) for batch in seen} == {
        ("age", "click", "id", "item", "price", "tags", "user")
    }
    assert [value for batch in seen for value in batch["user"].to_pylist()] == [100, *range(102, 109)]
    write(folder / "a.parquet", table(4))
    assert column(read(source(folder, map=note), SCHEMA), "day") == [[3]] * 4
    assert "day" not in seen[-1].schema.names


def test_it_gives_what_files_with_these_values_give(tmp_path):
    made = table()
    write(tmp_path / "a.parquet", made, group=4)
    twice = made.set_column(0, "user", pc.multiply(made["user"], 2))
    twice = twice.set_column(1, "items", pa.array([[2 * item for item in each] for each in made["items"].to_pylist()]))
    write(tmp_path / "b.parquet", twice, group=4)
    for options in ({}, {"filter": pl.col("age") > 1}, {"columns": {"age": pl.col("age") + 1}}):
        got = read(source(tmp_path / "a.parquet", map=doubled, **options), SCHEMA)
        assert got == read(source(tmp_path / "b.parquet", **options), SCHEMA)


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
def test_other_types_that_serve_a_field(tmp_path, name, kind):
    path = write(tmp_path / "a.parquet", table(), group=4)

    def cast(batch):
        return changed(batch, **{name: batch[name].cast(kind)})

    assert read(source(path, map=cast), SCHEMA) == read(source(path), SCHEMA)


@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)], ids=["list", "large", "2"])
@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.int32(), pa.float32(), pa.list_(pa.int64()), pa.list_(pa.int64(), 3)], ids=str
)
def test_slices_and_what_lies_below_nulls(tmp_path, outer, kind):
    """Arrays may begin anywhere in their buffers, and a null list may have elements."""
    rng = np.random.default_rng(3)
    one = lambda: [int(n) for n in rng.integers(0, 99, 3)] if kind.num_fields else int(rng.integers(0, 99))  # noqa: E731
    whole = pa.array([[one(), one()] for _ in range(12)], outer(kind))
    null = np.arange(12) % 5 == 2
    parts = [
        pa.py_buffer(np.packbits(~null, bitorder="little").tobytes()),
        *whole.buffers()[1 : whole.type.num_buffers],
    ]
    masked = pa.Array.from_buffers(whole.type, 12, parts, children=[whole.values])
    name = "tags" if kind.num_fields else "price" if kind == pa.float32() else "item"
    path = write(tmp_path / "a.parquet", {"user": pa.array(range(7)), name: masked.slice(4, 7)}, group=7)
    given = lambda batch: changed(batch, **{name: masked.slice(4, 7)})  # noqa: E731
    schema = Schema(
        sequences=(Sequence("uih", ("item",), floats=("price",), nested=("tags",), max_length=1),), context=("user",)
    )
    options = {"defaults": dict.fromkeys({"item", "price", "tags"} - {name}, 5), "nulls": {name: "drop"}}
    got = read(ParquetSource(path, map=given, **options), schema)
    assert got == read(ParquetSource(path, **options), schema)
    last = [row[-1] for row, gone in zip(whole.to_pylist(), null, strict=True) if not gone]
    expected = [row for row, at in zip(last, np.flatnonzero(~null), strict=True) if 4 <= at < 11]
    assert [each["ids of tags"] if name == "tags" else each[name][0] for each in got] == expected


def without_odd(batch):
    """Null for every odd user."""
    odd = pa.array([user % 2 == 1 for user in batch["user"].to_pylist()])
    return changed(batch, age=pc.if_else(odd, pa.scalar(None, batch["age"].type), batch["age"]))


def test_null_policies_come_after_it(tmp_path):
    path = write(tmp_path / "a.parquet", table(), group=4)
    assert column(read(source(path, map=without_odd, nulls={"age": "drop"}), SCHEMA), "user") == [
        [n] for n in range(0, ROWS, 2)
    ]
    handle, layout = opened(source(path, map=without_odd, defaults={"age": 9.0}), SCHEMA)
    assert handle.read(handle.groups[0], layout, 0, 4).table.num_rows == 4
    with pytest.raises(DataError, match="row group 0, row 1: age is null"):
        read(source(path, map=without_odd), SCHEMA)
    nothing = source(path, map=lambda batch: changed(batch, item=pa.nulls(batch.num_rows)), nulls={"item": "drop"})
    assert read(nothing, SCHEMA) == []


def test_nulls_of_the_files_can_be_filled(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1, None, 3]), "id": pa.array([None, "b", None])})
    schema = Schema(context=("user",), passthrough=("id",))

    def filled(batch):
        return changed(batch, user=pc.fill_null(batch["user"], 0), id=pc.fill_null(batch["id"], "?"))

    got = read(ParquetSource(path, map=filled), schema)
    assert got == [{"user": [1], "id": "?"}, {"user": [0], "id": "b"}, {"user": [3], "id": "?"}]


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
            r"gave 'user', which is timestamp\[s\] where it got int64: units would be mixed",
        ),
        (lambda batch: changed(batch, age=batch["id"]), "gave 'age', which is string: text is never turned"),
    ],
    ids=range(12),
)
def test_what_it_must_not_give(tmp_path, function, message):
    path = write(tmp_path / "a.parquet", table(), group=4)
    with pytest.raises(DataError, match=rf"source 0 \(.*a.parquet, row group 0: map=... {message}"):
        read(source(path, map=function, on_error="skip"), SCHEMA)


def test_a_value_outside_int64_names_its_row(tmp_path):
    path = write(tmp_path / "a.parquet", table(), group=4)

    def large(batch):
        return changed(batch, user=pc.add(batch["user"].cast(pa.uint64()), pa.scalar(2**63 - 3, pa.uint64())))

    with pytest.raises(DataError, match=f"row group 0, row 3: user: {2**63} is outside int64"):
        read(source(path, map=large), SCHEMA)


class Odd(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "on_error"),
    [
        (Odd("x"), "raise"),
        (OSError("x"), "skip"),
        (pa.ArrowInvalid("x"), "skip"),
        (DataError("x"), "skip"),
        (FileNotFoundError(2, "x"), "raise"),
    ],
    ids=repr,
)
def test_what_it_raises_is_raised(tmp_path, error, on_error):
    path = write(tmp_path / "a.parquet", table(), group=4)

    def fails(batch):
        if batch["user"][0].as_py() == 4:
            raise error
        return batch

    handle, layout = opened(source(path, map=fails, on_error=on_error), SCHEMA)
    assert handle.read(handle.groups[0], layout, 0, 4).table.num_rows == 4
    with pytest.raises(type(error)) as caught:
        handle.read(handle.groups[1], layout, 0, 4)
    assert caught.value is error
    assert caught.value.__context__ is None
    (note,) = caught.value.__notes__
    assert note.startswith("map=... failed with row 0 and the 3 after it of source 0 (")
    assert note.endswith("a.parquet, row group 1")
    assert handle.skipped == []


def test_stop_iteration_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", table(), group=4)

    def stops(batch):
        raise StopIteration

    with pytest.raises(RuntimeError, match="map raised StopIteration") as caught:
        read(source(path, map=stops), SCHEMA)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_keys_of_joins_and_joined_fields(tmp_path):
    rows = write(tmp_path / "rows.parquet", {"key": pa.array([1, 2]), "row": pa.array([10, 20])})
    side = write(tmp_path / "side.parquet", {"key": pa.array([2, 4]), "age": pa.array([5, 6])})
    schema = Schema(context=("row", "age"))

    def of_rows(batch):
        return changed(batch, key=pc.multiply(batch["key"], 2), row=pc.add(batch["row"], 1))

    def of_side(batch):
        return changed(batch, age=pc.multiply(batch["age"], 100))

    join = Join(ParquetSource(side, map=of_side), on="key", fields=("age",))
    got = read(ParquetSource(rows, join=[join], map=of_rows), schema)
    assert got == [{"row": [11], "age": [500]}, {"row": [21], "age": [600]}]


def test_times_that_order_sources_are_those_of_the_files(tmp_path):
    path = write(tmp_path / "a.parquet", {"at": pa.array([5, 3, 4]), "user": pa.array([1, 2, 3])})
    schema = Schema(context=("user", "at"), time="at")

    def later(batch):
        return changed(batch, at=pc.add(batch["at"], 100))

    handle, layout = opened(ParquetSource(path, map=later), schema)
    assert handle.read_times(handle.groups[0]).tolist() == [5, 3, 4]
    del layout
    assert column(read(ParquetSource(path, map=later), schema), "at") == [[105], [103], [104]]


class Callable_:
    def __call__(self, batch):
        return batch


def test_fingerprints_know_its_name(tmp_path):
    path = write(tmp_path / "a.parquet", table())

    def arguments(function):
        handle, _ = opened(source(path, map=function), SCHEMA)
        return handle.fingerprint["arguments"]

    assert len({arguments(each) for each in (None, same, doubled, partial(same), Callable_())}) == 5
    assert arguments(Callable_()) == arguments(Callable_())
    assert arguments(partial(same)) == arguments(partial(same))


def test_arguments():
    with pytest.raises(SchemaError, match=r"map takes a function of a pyarrow.RecordBatch, got 3"):
        ParquetSource("a.parquet", map=3)
    with pytest.raises(SchemaError, match="the source of this AsOf has no map"):
        AsOf(ParquetSource("a.parquet", map=same), on="user", at="at", time="time", fields=("item",))
    with pytest.raises(SchemaError, match="the source of this Join has no map"):
        Join(ParquetSource("a.parquet", map=same), on="user", fields=("age",), bucketed=4)
