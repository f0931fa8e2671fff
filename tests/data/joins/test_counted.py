"""Integers that are compared or mixed count the same: in the files of a source, over sources, of keys and of times."""

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, lists, read, write

from fsdata import AsOf, Follow, Join, Lookup, ParquetSource, Schema, SchemaError, Sequence

DAY = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
DATES = pa.array(DAY, pa.date32())
SECONDS = DATES.cast(pa.timestamp("s")).cast(pa.int64())


def times(unit, zone=None):
    return DATES.cast(pa.timestamp(unit, zone))


KINDS = {
    "dates": DATES,
    "ms": times("ms"),
    "us": times("us"),
    "us of a zone": times("us", "America/New_York"),
    "seconds": SECONDS,
    "durations": SECONDS.cast(pa.duration("us")),
    "times of day": pa.array([1, 2], pa.time64("us")),
}
PLACES = ["files", "sources", "lists", "nested", "key of a join"]
PAIRS = [
    ("ms", "us"),
    ("dates", "us"),
    ("us", "us of a zone"),
    ("seconds", "us"),
    ("durations", "us"),
    ("times of day", "us"),
]
CASES = [(where, *pair) for where in PLACES for pair in (PAIRS if where == "files" else PAIRS[:2])]


@pytest.mark.parametrize(("where", "one", "other"), CASES, ids=map(", ".join, CASES))
def test_ids_of_two_kinds_are_refused(tmp_path, where, one, other):
    paths = []
    for name, kind in (("a", one), ("b", other)):
        values = KINDS[kind]
        if where == "lists":
            values = lists(values.type, *[values.to_pylist()] * 2)
        if where == "nested":
            values = lists(pa.list_(values.type), *[[values.to_pylist()]] * 2)
        paths.append(write(tmp_path / f"{name}.parquet", {"x": values, "events": [[1], [2]], name: [7, 8]}))
    if where == "files":
        sources, schema = ParquetSource(tmp_path), Schema(context=("x",))
    elif where == "key of a join":
        side = Join(ParquetSource(paths[1]), on="x", fields=("b",), missing="mask")
        sources, schema = ParquetSource(paths[0], join=side), Schema(context=("a", "b"))
    else:
        sources = [ParquetSource(path) for path in paths]
        fields = {"sources": {"context": ("x",)}, "lists": {"sequences": (Sequence("s", ("x",)),)}}
        fields["nested"] = {"sequences": (Sequence("s", ("events",), nested=("x",)),)}
        schema = Schema(**fields[where])
    with pytest.raises(SchemaError, match=r"columns=\{'x': pl.col\('x'\)") as caught:
        read(sources, schema)
    said = str(caught.value)
    assert all(str(KINDS[kind].type) in said for kind in (one, other))
    assert "b.parquet" in said
    assert where == "files" or "a.parquet" in said


def test_zones_count_the_same_and_so_do_integers_of_all_widths(tmp_path):
    zones = {"a": times("us", "UTC"), "b": times("us", "America/New_York")}
    integers = {"a": pa.array([1, 2], pa.int8()), "b": pa.array([True, False])}
    for name in "ab":
        write(tmp_path / f"{name}.parquet", {"x": zones[name], "y": integers[name]})
    sources = [ParquetSource(tmp_path / f"{name}.parquet") for name in "ab"]
    assert column(read(sources, Schema(context=("x", "y"), time="x"), mix="time"), "y") == [1, 1, 2, 0]


@pytest.mark.parametrize("kind", ["dates", "us"])
def test_the_advice_makes_keys_match(tmp_path, kind):
    main = write(tmp_path / "main.parquet", {"day": KINDS["dates"], "id": [0, 1]})
    side = write(tmp_path / "side.parquet", {"day": KINDS[kind], "weather": [7, 8]})
    columns = {"day": pl.col("day").cast(pl.Datetime("us"))}
    join = Join(ParquetSource(side, columns=columns), on="day", fields=("weather",))
    samples = read(ParquetSource(main, columns=columns, join=join), Schema(context=("id", "weather")))
    assert column(samples, "weather") == [7, 8]


def test_keys_of_histories_and_ids_that_are_looked_up(tmp_path):
    main = write(tmp_path / "main.parquet", {"user": DATES, "at": [9, 9]})
    table = {"user": times("ms"), "item": lists(pa.int64(), [1], [2]), "when": lists(pa.int64(), [1], [2])}
    histories = write(tmp_path / "histories.parquet", table)
    of = AsOf(ParquetSource(histories), on="user", at="at", time="when", fields=("item",))
    with pytest.raises(
        SchemaError, match=r"the key 'user' .*'user' is date32.*main.parquet.*timestamp\[ms\].*histories.p"
    ):
        read(ParquetSource(main, join=of), Schema(sequences=(Sequence("s", ("item",)),)))
    found = Lookup(
        ParquetSource(write(tmp_path / "dim.parquet", {"user": SECONDS, "age": [1, 2]})), on="user", fields=("age",)
    )
    with pytest.raises(SchemaError, match=r"the key 'user' .*date32.*main.parquet.* is int64 in .*dim.parquet"):
        read(ParquetSource(main, join=found), Schema(context=("user", "age")))


def test_fields_of_joined_tables_are_compared_with_those_of_other_sources(tmp_path):
    own = write(tmp_path / "own.parquet", {"user": [1, 2], "seen": times("us")})
    main = write(tmp_path / "main.parquet", {"user": [1, 2]})
    side = ParquetSource(write(tmp_path / "side.parquet", {"user": [1, 2], "seen": times("ms")}))
    for join in (Join(side, on="user", fields=("seen",)), Lookup(side, on="user", fields=("seen",))):
        with pytest.raises(SchemaError, match=r"'seen' .*own.parquet.*timestamp\[ms\] in .*side.parquet"):
            read([ParquetSource(own), ParquetSource(main, join=join)], Schema(context=("user", "seen")))


@pytest.mark.parametrize(("one", "other"), [("seconds", "us"), ("us", "us of a zone"), ("dates", "seconds")])
@pytest.mark.parametrize("where", ["files", "sources"])
def test_times_of_two_kinds_are_refused(tmp_path, where, one, other):
    """Those of all units are compared as nanoseconds."""
    for name, kind in (("a", one), ("b", other)):
        write(tmp_path / f"{name}.parquet", {"id": [1, 2], "t": KINDS[kind]})
    paths = [tmp_path] if where == "files" else [tmp_path / f"{name}.parquet" for name in "ab"]
    sources = [ParquetSource(path) for path in paths]
    with pytest.raises(SchemaError, match="would be mixed") as caught:
        read(sources, Schema(context=("id",), time="t"), mix="time")
    assert all(str(KINDS[kind].type) in str(caught.value) for kind in (one, other))


def test_a_new_file_of_another_unit_is_refused(tmp_path):
    for name, unit in (("a", "ms"), ("b", "us")):
        write(tmp_path / f"{name}.parquet", {"x": times(unit)})
    source = ParquetSource(tmp_path, follow=Follow(idle="0.1s", every="0.01s", at_most=1))
    with pytest.raises(SchemaError, match=r"x: is timestamp\[us\] in some files and timestamp\[ms\] in the first"):
        read(source, Schema(context=("x",)), batch_size=2)
