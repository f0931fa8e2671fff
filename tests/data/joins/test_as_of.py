"""Histories as of the time of a row: what a loader gives, against a search through all events in plain Python."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from as_of_data import SCHEMA, STORED, Data, samples, source
from data_kit import column, loader_on, read, rows_of, write
from event_log import POOLS
from hypothesis import example, given
from hypothesis import strategies as st
from rank_loaders import read_and_go_on
from test_share import SHARED, check_rows
from worlds import shared_world

from fsdata import AsOf, Balance, DataError, ParquetSource, Schema, SchemaError, Sequence

OPTIONS = [{}, {"known": True}, {"inclusive": True}, {"known": True, "inclusive": True}]


def read_all(
    rank: int, size: int, folders: list[Path], stored: Path | None, options: dict[str, Any], share: bool, **given: Any
) -> tuple:
    """What this rank computes by row, and how many samples came from others. Every third state goes on.

    Rows of `stored` have their lists with them.
    """
    found, moved = {}, 0
    sources = [source(each, **options) for each in folders] + ([ParquetSource(str(stored))] if stored else [])
    schema = SHARED if share else SCHEMA
    for batch in read_and_go_on(lambda: loader_on(sources, schema, **{"batch_size": 5, **given}), every=3)[0]:
        found |= samples(batch)
        moved += int((batch.origin[:, 0] != rank).sum())
        if share:
            check_rows(batch)
    return found, moved


@given(
    seed=st.integers(0, 2**32),
    stored=st.sampled_from(STORED),
    options=st.sampled_from(OPTIONS),
    bucketed=st.sampled_from([None, 1, 5]),
    share=st.booleans(),
    shuffle=st.booleans(),
    batch_size=st.integers(1, 50),
)
@example(seed=3, stored="int32", options={}, bucketed=None, share=True, shuffle=False, batch_size=50)
def test_every_row_sees_what_had_happened(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stored: str, options: dict, bucketed: int | None, share: bool,
    shuffle: bool, batch_size: int,
) -> None:  # fmt: skip
    folder, data = tmp_path_factory.mktemp("as_of"), Data.drawn(seed, stored=stored)
    data.write(folder)
    found, _ = read_all(
        0, 1, [folder], None, options | {"bucketed": bucketed}, share, shuffle=shuffle, batch_size=batch_size
    )
    assert found == data.expected(**options)


@pytest.mark.parametrize(
    ("size", "options", "share"),
    [
        (2, {}, False),
        (3, {"known": True, "inclusive": True}, True),
        pytest.param(3, {"known": True, "bucketed": 4}, False, marks=pytest.mark.long),
        pytest.param(2, {"inclusive": True, "bucketed": 4}, True, marks=pytest.mark.long),
    ],
)
def test_balanced_ranks_gather_histories_where_they_are_computed(
    tmp_path: Path, size: int, options: dict, share: bool
) -> None:
    data = Data.drawn(3, requests=70, users=12)
    data.write(tmp_path, files=3)
    given = {"shuffle": True, "balance": Balance()}
    answers = shared_world(size).run(partial(read_all, **given), [tmp_path], None, options, share)
    assert sum(moved for _, moved in answers) > 10
    found = {row: lists for of_rank, _ in answers for row, lists in of_rank.items()}
    assert found == data.expected(**{name: options[name] for name in options if name != "bucketed"})


@pytest.mark.parametrize("with_lists", [False, True])
def test_sources_with_histories_beside_each_other_and_beside_lists(tmp_path: Path, with_lists: bool) -> None:
    """Rows that come from another rank get the events of their own source, whatever stands beside them."""
    one, two = (Data.drawn(seed, requests=30, users=20) for seed in (5, 6))
    two = replace(two, requests=[(row + 100, user, at) for row, user, at in two.requests])
    folders = [tmp_path / "one", tmp_path / "two"]
    for data, folder in zip((one, two), folders, strict=True):
        data.write(folder)
    expected, stored = one.expected() | two.expected(), None
    if with_lists:  # then values travel, and no references to events
        lists = {row + 1000: each for row, each in one.expected().items()}
        columns = {name: [each[name] for each in lists.values()] for name in next(iter(lists.values()))}
        stored = write(tmp_path / "stored.parquet", {"row": list(lists), "user": list(lists), **columns}, group=4)
        expected |= lists
    given = {"mix": "weighted", "balance": Balance()}
    answers = shared_world(2).run(partial(read_all, **given), folders, stored, {}, False)
    assert sum(moved for _, moved in answers) > 10
    assert {row: of for of_rank, _ in answers for row, of in of_rank.items()} == expected


def test_rows_of_one_bucket_come_together_where_rows_are_shuffled(tmp_path: Path) -> None:
    """All rows are one window; buckets are stretches of events in the order of users, so users come in that order."""
    data = Data.drawn(2, requests=60)
    data.write(tmp_path)
    orders = []
    for bucketed in (None, 1000):
        samples = read(source(tmp_path, bucketed=bucketed), SCHEMA, batch_size=7, shuffle=True, shuffle_window=99)
        users = [user for user in column(samples, "user") if data.histories.get(user)]
        orders.append(column(samples, "row"))
        assert (users == sorted(users)) == (bucketed is not None)
    assert sorted(orders[0]) == sorted(orders[1])


def test_histories_are_part_of_what_a_state_belongs_to(tmp_path: Path) -> None:
    data = Data.drawn(2)
    data.write(tmp_path)
    with loader_on(source(tmp_path), SCHEMA) as loader:
        state = loader.state_dict()
    for options in ({"inclusive": True}, {"known": True}, {"bucketed": 2}):
        refuses(state, source(tmp_path, **options), "arguments")
    next(iter(data.histories.values())).append({"time": 99, "known": 99, "item": 1, "price": 0.0, "kind": 1})
    data.write(tmp_path)
    refuses(state, source(tmp_path), "join 0 footers")


def refuses(state: dict, of: ParquetSource, text: str) -> None:
    with loader_on(of, SCHEMA) as loader, pytest.raises(ValueError, match=text):
        loader.load_state_dict(state)


def small(tmp_path: Path, **columns: Any) -> dict[str, Any]:
    """Two requests and two histories; `columns` replace those of the histories, or `at` and `user` of the requests."""
    requests = {"row": [0, 1], "user": [1, 2], "at": [10, 20]}
    table = {"uid": [2, 1], "item": [[1, 2], [3]], "time": [[5, 19], [9]]}
    requests |= {name: columns.pop(name) for name in ("user", "at") if name in columns}
    write(tmp_path / "requests.parquet", requests)
    write(tmp_path / "histories.parquet", table | columns)
    return {"on": "user", "at": "at", "time": "time", "fields": ("item",)}


def items(tmp_path: Path, of: dict[str, Any], schema: Schema | None = None, **options: Any) -> list[list[int]]:
    schema = schema or Schema(sequences=(Sequence("uih", ("item",)),), context=("row",))
    options.setdefault("columns", {"user": "uid"})
    join = AsOf(ParquetSource(tmp_path / "histories.parquet", **options), **of)
    return column(read(ParquetSource(tmp_path / "requests.parquet", join=join), schema), "item")


@pytest.mark.parametrize("known_at", [None, "time", "seen"])
def test_times_of_events_may_be_fields(tmp_path: Path, known_at: str | None) -> None:
    of = small(tmp_path, seen=pa.array([[19, 20], [9]], pa.list_(pa.int32()))) | {"fields": ("item", "time", "seen")}
    schema = Schema(sequences=(Sequence("uih", ("item", "time", "seen")),))
    histories = ParquetSource(tmp_path / "histories.parquet", columns={"user": "uid"})
    join = AsOf(histories, known_at=known_at, **of)
    last = slice(1 if known_at == "seen" else None)
    assert read(ParquetSource(tmp_path / "requests.parquet", join=join), schema) == [
        {"item": [3], "time": [9], "seen": [9]},
        {"item": [1, 2][last], "time": [5, 19][last], "seen": [19, 20][last]},
    ]


def test_timestamps_of_different_precision_are_compared(tmp_path: Path) -> None:
    of = small(
        tmp_path,
        at=pa.array([10, 20], pa.timestamp("s")),
        time=pa.array([[5000, 19999], [10000]], pa.list_(pa.timestamp("ms"))),
    )
    assert items(tmp_path, of) == [[], [1, 2]]


@pytest.mark.parametrize("inclusive", [False, True])
def test_the_latest_time_of_a_row_means_all_events(tmp_path: Path, inclusive: bool) -> None:
    """Also where it looks like another unit than the times of the events."""
    of = small(tmp_path, at=[2**63 - 1] * 2, time=[[1_600_000_000, 1_600_000_001], [1_600_000_000]])
    assert items(tmp_path, of | {"inclusive": inclusive}) == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        (
            {"time": [[19, 5], [9]]},
            DataError,
            r"history of user 2 is not ascending: time is 5 at position 1 and 19 before",
        ),
        ({"time": [[5], [9]]}, DataError, r"row 0: the lists of 'histories' have different lengths: item 2, time 1"),
        ({"uid": [2, 2]}, DataError, r"1 values of the key 'user' are in more than one row \(2\)"),
        ({"uid": [2, None]}, DataError, r"row 1: the key 'user' is null and can never match"),
        ({"time": [[5, None], [9]]}, DataError, r"row 0: time is null at position 1"),
        ({"item": [[1, None], [3]]}, DataError, r"row 0: item is null at position 1"),
        ({"at": [10, None]}, DataError, r"row 1: at is null, and nothing is known as of no time"),
        ({"uid": ["a", "b"]}, SchemaError, r"user: column 'uid' is string"),
        ({"item": [1, 2]}, SchemaError, r"item: column 'item' is int64, one value per sample, where a list is needed"),
        ({"time": [5, 9]}, SchemaError, r"time: column 'time' is int64, one value per sample"),
        ({"at": pa.array([10, 20], pa.timestamp("s"))}, SchemaError, r"at and time .*, timestamps in ns with integers"),
        (
            {
                "at": pa.array([10, 20], pa.timestamp("s", "UTC")),
                "time": pa.array([[5, 19], [9]], pa.list_(pa.timestamp("s"))),
            },
            SchemaError,
            r"at and time .*, UTC timestamps in ns with timestamps in ns",
        ),
        (
            {"at": [1_700_000_000_000, 1_700_000_001_000], "time": [[1_600_000_000, 1_600_000_001], [1_600_000_000]]},
            DataError,
            r"at is about 1700000000500 and time .* about 1600000000. They seem to count different units",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_a_history_is_refused(tmp_path: Path, columns: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        items(tmp_path, small(tmp_path, **columns))


WITH_ACTION = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("row",))
WITH_TIMES = Schema(sequences=(Sequence("uih", ("item",), floats=("time",)),), context=("row",))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on": ""}, "names one key"),
        ({"at": None}, r"AsOf\(at=...\) names one column"),
        ({"time": 3}, r"AsOf\(time=...\) names one column"),
        ({"known_at": ""}, r"AsOf\(known_at=...\) names one column"),
        ({"fields": "item"}, r"write \('item',\)"),
        ({"fields": ()}, "at least one field"),
        ({"fields": {"item", "time"}}, "at least one field of the schema, in order, got"),
        ({"inclusive": 1}, "True or False"),
        ({"where": "time > 3"}, "polars expression"),
        ({"where": pl.col("item").mean() > 3}, "cannot be used"),
        ({"fields": ("item", "row")}, r"row are not: use a Join"),
        ({"fields": ("item",), "schema": WITH_ACTION}, "some fields of the sequence 'uih' but not action"),
        ({"fields": ("item", "time"), "schema": WITH_TIMES}, "'time' is a time of events, in int64, and one of the fl"),
        ({"fields": ("item", "other")}, "fields that the schema does not have: other"),
        ({"cap": 3}, "need pools: give"),
        ({"mask": "pools"}, "need pools: give"),
        ({"pools": {"a": "type"}}, "takes a column name or a polars expression"),
        ({"pools": {str(n): pl.col("type") == n for n in range(9)}}, "at most 8"),
        ({"pools": POOLS, "cap": 0}, "integer of at least 1"),
        ({"pools": POOLS, "cap": {"other": 1}}, "names other: pools are listen_plus, like, skip"),
        ({"pools": POOLS, "known_at": "ts"}, "cannot be combined with pools"),
        ({"at": "position", "where": pl.col("type") == 0}, "would change the positions"),
        ({"scan": 0}, "integer of at least 1"),
        ({"time": None}, "unless at='position'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict, text: str) -> None:
    of = small(tmp_path, action=[[1, 2], [3]]) | options
    with pytest.raises(SchemaError, match=text):
        items(tmp_path, of, of.pop("schema", None))


def test_a_key_without_a_history(tmp_path: Path) -> None:
    assert items(tmp_path, small(tmp_path)) == [[3], [1, 2]]
    assert items(tmp_path, small(tmp_path, user=[7, 2])) == [[], [1, 2]]
    assert items(tmp_path, small(tmp_path, user=[7, 2]), nulls={"item": "drop"}) == [[1, 2]]
    with pytest.raises(DataError, match=r"row 0: user 7 is not in the .*histories"):
        items(tmp_path, small(tmp_path, user=[7, 2]), nulls={"item": "error"})


def test_a_table_without_rows(tmp_path: Path) -> None:
    lists = {"item": pa.array([], pa.list_(pa.int32())), "time": pa.array([], pa.list_(pa.int64()))}
    assert items(tmp_path, small(tmp_path, uid=pa.array([], pa.int64()), **lists)) == [[], []]


def test_where_may_read_lists_that_no_field_needs(tmp_path: Path) -> None:
    of = small(tmp_path, kind=[[7, 8], [7]])
    assert items(tmp_path, of | {"where": pl.col("kind") == 8}) == [[], [2]]


def test_tables_that_look_alike_are_not_taken_for_one(tmp_path: Path) -> None:
    """Without statistics two footers are equal whatever the files hold, and the first table is still open."""
    found, loaders = [], []
    for number, items_of in enumerate(([[1, 2], [3]], [[4, 5], [6]])):
        folder = tmp_path / str(number)
        of = small(folder)
        lists = {"uid": [2, 1], "item": items_of, "time": [[5, 19], [9]]}
        plain = {"write_statistics": False, "write_page_checksum": False, "compression": "none"}
        write(folder / "histories.parquet", lists, **plain)
        join = AsOf(ParquetSource(folder / "histories.parquet", columns={"user": "uid"}), **of)
        schema = Schema(sequences=(Sequence("uih", ("item",)),))
        loaders.append(loader_on(ParquetSource(folder / "requests.parquet", join=join), schema))
        found += rows_of(loaders[-1], "item")
    for loader in loaders:
        loader.close()
    assert found == [3, 1, 2, 6, 4, 5]
