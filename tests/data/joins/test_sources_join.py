"""Side tables."""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, fingerprint, lists, read, write
from fsspec.implementations.memory import MemoryFileSystem

from fsdata import AsOf, DataError, Join, Lookup, ParquetSource, Schema, SchemaError, Sequence

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item", "action"), max_length=2),),
    context=("user", "country"),
    dense=("hour", "age"),
    labels=("click", "rating"),
)
FIELDS = ("item", "action", "country", "age", "rating")
DEFAULTS = {"item": 0, "action": 0, "country": -1, "age": 0.25, "rating": 0}


@pytest.fixture
def main(tmp_path):
    hours, clicks = pa.array([0.5, 1.5, 2.5, 3.5]), pa.array([1, 0, 1, 0])
    users = pa.array([3, 1, 9, 2], pa.int32())
    return write(tmp_path / "main.parquet", {"user": users, "hour": hours, "click": clicks}, group=3)


SIDE = {
    "uid": pa.array([2, 1, 3], pa.int16()),
    "item": lists(pa.int64(), [20, 21, 22], [10], []),
    "action": lists(pa.int32(), [1, 2, 3], [4], []),
    "nation": pa.array([200, 100, 300]),
    "age": pa.array([20, 10, 30]),
    "rating": pa.array([2.0, 1.0, 3.0]),
}


def side(tmp_path, **columns):
    return write(tmp_path / "side" / "users.parquet", SIDE | columns, group=2)


def joined(main, path, **options):
    table = ParquetSource(path, columns={"user": "uid", "country": "nation"}, **options)
    return ParquetSource(main, join=[Join(table, on="user", fields=FIELDS)])


def test_scalars_lists_dense_and_labels(main, tmp_path):
    samples = read(joined(main, side(tmp_path), defaults=DEFAULTS), SCHEMA)
    assert column(samples, "user") == [3, 1, 9, 2]
    assert column(samples, "item") == [[], [10], [], [21, 22]]
    assert column(samples, "action") == [[], [4], [], [2, 3]]
    assert column(samples, "country") == [300, 100, -1, 200]
    assert column(samples, "hour") == [0.5, 1.5, 2.5, 3.5]
    assert column(samples, "age") == [30.0, 10.0, 0.25, 20.0]
    assert column(samples, "rating") == [3.0, 1.0, 0.0, 2.0]
    assert column(samples, "click") == [1.0, 0.0, 1.0, 0.0]


def test_a_filter_that_leaves_no_row_of_a_row_group(main, tmp_path):
    table = ParquetSource(side(tmp_path), columns={"user": "uid", "country": "nation"})
    source = ParquetSource(main, join=[Join(table, on="user", fields=FIELDS)], filter=pl.col("hour") + 0 > 3)
    assert column(read(source, SCHEMA), "user") == [2]


def test_a_key_without_a_match_is_an_error_or_drops_the_row(main, tmp_path):
    with pytest.raises(DataError, match=r"main\.parquet, row group 0, row 2: user 9 is not in the .*users\.parquet"):
        read(joined(main, side(tmp_path)), SCHEMA)
    source = joined(main, side(tmp_path), defaults=DEFAULTS, nulls={"age": "drop"})
    assert column(read(source, SCHEMA), "user") == [3, 1, 2]


def test_nulls_in_the_side_table_follow_its_policy(main, tmp_path):
    path = side(tmp_path, age=pa.array([20, None, 30]))
    samples = read(joined(main, path, defaults=DEFAULTS), SCHEMA)
    assert column(samples, "age")[1] == 0.25
    samples = read(joined(main, path, defaults=DEFAULTS, nulls={"age": "drop"}), SCHEMA)
    assert column(samples, "user") == [3, 2]
    with pytest.raises(DataError, match=r"users\.parquet, row group 0, row 1: age is null"):
        read(joined(main, path, defaults={"country": 0}), SCHEMA)


def test_a_null_key_in_the_main_table_has_no_match(tmp_path):
    main = write(tmp_path / "main.parquet", {"key": pa.array([1, None]), "row": pa.array([7, 8])})
    users = write(tmp_path / "users.parquet", {"key": pa.array([1, 0]), "age": pa.array([10, 20])})
    source = ParquetSource(main, join=Join(ParquetSource(users, defaults={"age": -1}), on="key", fields=("age",)))
    assert column(read(source, Schema(context=("row",), dense=("age",))), "age") == [10.0, -1.0]
    strict = ParquetSource(main, join=Join(ParquetSource(users), on="key", fields=("age",)))
    with pytest.raises(DataError, match="row 1: key null is not in"):
        read(strict, Schema(context=("row",), dense=("age",)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([2, 3, 3], r"users\.parquet: 1 values of the key 'user' are in more than one row \(3\)"),
        ([2, None, 3], "row 1: the key 'user' is null and can never match"),
    ],
)
def test_keys_that_are_null_or_not_unique(main, tmp_path, keys, message):
    with pytest.raises(DataError, match=message):
        read(joined(main, side(tmp_path, uid=pa.array(keys, pa.int16())), defaults=DEFAULTS), SCHEMA)


def test_an_empty_side_table(main, tmp_path):
    path = side(tmp_path, **{name: array.slice(0, 0) for name, array in SIDE.items()})
    samples = read(joined(main, path, defaults=DEFAULTS), SCHEMA)
    assert column(samples, "country") == [-1] * 4
    assert column(samples, "item") == [[]] * 4
    assert column(samples, "age") == [0.25] * 4


def test_lists_of_both_tables_must_align(tmp_path):
    main = write(tmp_path / "main.parquet", {"user": pa.array([1, 2]), "item": lists(pa.int64(), [1], [2, 3])})
    users = write(tmp_path / "users.parquet", {"user": pa.array([1, 2]), "action": lists(pa.int64(), [1], [2])})
    schema = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("user",))
    with pytest.raises(DataError, match=r"main\.parquet, row group 0, row 1: .* item 2, action 1"):
        read(ParquetSource(main, join=[Join(ParquetSource(users), on="user", fields=("action",))]), schema)


def test_two_joins_on_different_keys(tmp_path):
    main = write(tmp_path / "main.parquet", {"u": pa.array([1, 2]), "i": pa.array([7, 8])})
    users = write(tmp_path / "u.parquet", {"u": pa.array([2, 1]), "age": pa.array([20, 10])})
    items = write(tmp_path / "i.parquet", {"i": pa.array([7, 8]), "price": pa.array([0.5, 1.5])})
    joins = [Join(ParquetSource(users), on="u", fields=("age",)), Join(ParquetSource(items), on="i", fields=("price",))]
    samples = read(ParquetSource(main, join=joins), Schema(context=("u",), dense=("price", "age")))
    assert samples == [{"u": 1, "price": 0.5, "age": 10.0}, {"u": 2, "price": 1.5, "age": 20.0}]


def test_side_tables_count_in_the_fingerprint(main, tmp_path):
    before, after = (
        fingerprint(joined(main, side(tmp_path, age=age), defaults=DEFAULTS), SCHEMA)
        for age in (SIDE["age"], pa.array([1, 2, 3]))
    )
    assert {key for key in before if before[key] != after[key]} == {"source 0 join 0 footers"}


def test_joins_that_make_no_sense(main, tmp_path):
    table = ParquetSource(side(tmp_path))
    text = ParquetSource(write(tmp_path / "text.parquet", {"user": pa.array(["a"]), "age": pa.array([1])}))
    twice = ParquetSource(table.paths, defaults={"country": 0}, columns={"user": "uid"})
    for message, source, fields, options in (
        ("does not have: shoe_size", table, ("shoe_size",), {}),
        ("age come from a side table", table, ("age",), {"defaults": {"age": 0}}),
        ("column 'user' is string: text is never", text, ("age",), {}),
    ):
        given = ParquetSource(main, join=[Join(source, on="user", fields=fields)], **options)
        with pytest.raises(SchemaError, match=message):
            read(given, Schema(dense=("age",)))
    with pytest.raises(SchemaError, match="two joins add the same field: age"):
        ParquetSource(main, join=[Join(table, on="user", fields=("age",))] * 2)
    with pytest.raises(SchemaError, match="cannot have joins itself"):
        Join(ParquetSource(main, join=[Join(table, on="user", fields=("age",))]), on="user", fields=("age",))
    with pytest.raises(SchemaError, match="defaults names country, not a joined field: age"):
        Join(twice, on="user", fields=("age",))
    with pytest.raises(SchemaError, match="the source of a Join is read whole"):
        Join(ParquetSource("a", limit=3), on="row", fields=("x",))
    # What is wrong with both tables stands in one message.
    table = ParquetSource(side(tmp_path, age=pa.array(["x", "y", "z"])), columns={"user": "uid"})
    both = "nothing: column 'nothing' is missing(?s:.)*side table(?s:.)*age: column 'age' is string"
    given = ParquetSource(main, join=[Join(table, on="user", fields=("age",))])
    with pytest.raises(SchemaError, match=both):
        read(given, Schema(context=("user", "nothing"), dense=("age",)))


@pytest.mark.parametrize("kind", ["Lookup", "AsOf"])
def test_a_store_is_not_asked_again_for_what_its_listing_said(tmp_path, kind):
    asked = Counter()

    class Store(MemoryFileSystem):
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]

        def info(self, path, **options):
            asked[path.rpartition("/")[2]] += 1
            return super().info(path, **options)

    store = Store(skip_instance_cache=True)
    main = write(tmp_path / "main.parquet", {"user": [0, 1], "at": [9, 9], "items": lists(pa.int64(), [0], [1])})
    for number in range(2):
        columns = {"user": [number], "age": [number], "ts": lists(pa.int64(), [1]), "item": lists(pa.int64(), [7])}
        path = write(tmp_path / "side" / f"{number}.parquet", columns)
        store.pipe(f"/side/{number}.parquet", path.read_bytes())
    side = ParquetSource("/side/*.parquet", filesystem=store)
    join, schema = {
        "Lookup": (
            Lookup(replace(side, columns={"items": "user"}), on="items", fields=("age",)),
            Schema(sequences=[Sequence("uih", fields=("items", "age"))]),
        ),
        "AsOf": (
            AsOf(side, on="user", at="at", time="ts", fields=("item",)),
            Schema(sequences=[Sequence("uih", fields=("item",))]),
        ),
    }[kind]
    assert len(read(ParquetSource(main, join=[join]), schema)) == 2
    assert asked["0.parquet"] == asked["1.parquet"] == 2  # once to read its footer, once to read its rows
