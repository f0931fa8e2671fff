"""Histories as of the time of a row: what a loader gives, against a search through all events in plain Python."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from as_of_data import SCHEMA, STORED, Data, samples, source
from hypothesis import example, given
from hypothesis import strategies as st
from patience import PATIENCE_S
from rank_loaders import read_and_go_on
from test_share import SHARED, check_rows, expanded
from worlds import shared_world

from fsdata import AsOf, Balance, FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsdata.errors import DataError, SchemaError

OPTIONS = [{}, {"known": True}, {"inclusive": True}, {"known": True, "inclusive": True}]


def read_all(
    rank: int, size: int, folders: list[Path], stored: Path | None, options: dict[str, Any], share: bool, **given: Any
) -> tuple:
    """What this rank computes by row, and how many samples came from others. Every third state goes on.

    Rows of `stored` have their lists with them.
    """
    found, moved = {}, 0
    sources = [source(each, **options) for each in folders] + ([ParquetSource(str(stored))] if stored else [])
    given = {"batch_size": 5, "timeout_s": PATIENCE_S, "num_threads": 1, **given}
    schema = SHARED if share else SCHEMA
    for batch in read_and_go_on(lambda: FreeScaleDataLoader(sources, schema, **given), every=3)[0]:
        found |= expanded(batch) if share else dict(samples(batch))
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
        stored = tmp_path / "stored.parquet"
        pq.write_table(pa.table({"row": list(lists), "user": list(lists), **columns}), stored, row_group_size=4)
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
        with FreeScaleDataLoader(
            source(tmp_path, bucketed=bucketed), SCHEMA, batch_size=7, shuffle=True, shuffle_window=99, num_threads=1
        ) as loader:
            batches = [batch.features[name].values().tolist() for batch in loader for name in ("user", "row")]
        users = [user for of in batches[::2] for user in of if data.histories.get(user)]
        orders.append([row for of in batches[1::2] for row in of])
        assert (users == sorted(users)) == (bucketed is not None)
    assert sorted(orders[0]) == sorted(orders[1])


def test_histories_are_part_of_what_a_state_belongs_to(tmp_path: Path) -> None:
    data = Data.drawn(2)
    data.write(tmp_path)
    with FreeScaleDataLoader(source(tmp_path), SCHEMA, batch_size=4) as loader:
        state = loader.state_dict()
    for options in ({"inclusive": True}, {"known": True}, {"bucketed": 2}):
        refuses(state, source(tmp_path, **options), "arguments")
    next(iter(data.histories.values())).append({"time": 99, "known": 99, "item": 1, "price": 0.0, "kind": 1})
    data.write(tmp_path)
    refuses(state, source(tmp_path), "join 0 footers")


def refuses(state: dict, of: ParquetSource, text: str) -> None:
    with (
        FreeScaleDataLoader(of, SCHEMA, batch_size=4) as loader,
        pytest.raises(ValueError, match=text),
    ):
        loader.load_state_dict(state)


def small(tmp_path: Path, **columns: Any) -> dict[str, Any]:
    """Two requests and two histories; `columns` replace those of the histories, or `at` and `user` of the requests."""
    requests = {"row": [0, 1], "user": [1, 2], "at": [10, 20]}
    table = {"uid": [2, 1], "item": [[1, 2], [3]], "time": [[5, 19], [9]]}
    requests |= {name: columns.pop(name) for name in ("user", "at") if name in columns}
    pq.write_table(pa.table(requests), tmp_path / "requests.parquet")
    pq.write_table(pa.table(table | columns), tmp_path / "histories.parquet")
    return {"on": "user", "at": "at", "time": "time", "fields": ("item",)}


def items(tmp_path: Path, of: dict[str, Any], schema: Schema | None = None, **options: Any) -> list[list[int]]:
    schema = schema or Schema(sequences=(Sequence("uih", ("item",)),), context=("row",))
    options.setdefault("columns", {"user": "uid"})
    join = AsOf(ParquetSource(tmp_path / "histories.parquet", **options), **of)
    with FreeScaleDataLoader(
        ParquetSource(tmp_path / "requests.parquet", join=join), schema, batch_size=9, num_threads=1
    ) as loader:
        found = []
        for batch in loader:
            lists = batch.features["item"]
            found += [part.tolist() for part in lists.values().split(lists.lengths().tolist())]
        return found


@pytest.mark.parametrize("known_at", [None, "time", "seen"])
def test_times_of_events_may_be_fields(tmp_path: Path, known_at: str | None) -> None:
    of = small(tmp_path, seen=pa.array([[19, 20], [9]], pa.list_(pa.int32()))) | {"fields": ("item", "time", "seen")}
    schema = Schema(sequences=(Sequence("uih", ("item", "time", "seen")),))
    histories = ParquetSource(tmp_path / "histories.parquet", columns={"user": "uid"})
    join = AsOf(histories, known_at=known_at, **of)
    requests = ParquetSource(tmp_path / "requests.parquet", join=join)
    with FreeScaleDataLoader(requests, schema, batch_size=2, num_threads=1) as loader:
        (batch,) = loader
    whole = {"item": [3, 1, 2], "time": [9, 5, 19], "seen": [9, 19, 20]}
    for name, values in whole.items():
        assert batch.features[name].values().tolist() == (values[:2] if known_at == "seen" else values)


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
        ({"uid": [2, 2]}, DataError, r"1 values of the key 'user' stand in more than one row \(2\)"),
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
        ({"fields": ("item",), "schema": WITH_ACTION}, "some fields of the sequence 'uih' and not action"),
        ({"fields": ("item", "time"), "schema": WITH_TIMES}, "'time' is a time of events, in int64, and one of the fl"),
        ({"fields": ("item", "other")}, "fields that the schema does not have: other"),
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
        folder.mkdir()
        of = small(folder)
        lists = {"uid": [2, 1], "item": items_of, "time": [[5, 19], [9]]}
        pq.write_table(pa.table(lists), folder / "histories.parquet", write_statistics=False, compression="none")
        join = AsOf(ParquetSource(folder / "histories.parquet", columns={"user": "uid"}), **of)
        schema = Schema(sequences=(Sequence("uih", ("item",)),))
        loaders.append(FreeScaleDataLoader(ParquetSource(folder / "requests.parquet", join=join), schema, batch_size=9))
        found += [batch.features["item"].values().tolist() for batch in loaders[-1]]
    for loader in loaders:
        loader.close()
    assert found == [[3, 1, 2], [6, 4, 5]]
