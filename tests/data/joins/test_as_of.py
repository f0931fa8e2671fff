"""Histories as of the time of a row: what a loader gives, against a search through all events in plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from as_of_data import SCHEMA, STORED, Data, read, samples, source
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import AsOf, Balance, FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsdata.balance.exchange.record import RecordSpec
from fsdata.errors import DataError, SchemaError

OPTIONS = [{}, {"known": True}, {"inclusive": True}, {"known": True, "inclusive": True}]


@given(
    seed=st.integers(0, 2**32),
    stored=st.sampled_from(STORED),
    options=st.sampled_from(OPTIONS),
    bucketed=st.sampled_from([None, 1, 5]),
    shuffle=st.booleans(),
    batch_size=st.integers(1, 50),
)
def test_every_row_sees_what_had_happened(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    stored: str,
    options: dict,
    bucketed: int | None,
    shuffle: bool,
    batch_size: int,
) -> None:
    folder, data = tmp_path_factory.mktemp("as_of"), Data.drawn(seed, stored=stored)
    data.write(folder)
    found = read(folder, options | {"bucketed": bucketed}, shuffle=shuffle, batch_size=batch_size)
    assert found == data.expected(**options)


def read_balanced(rank: int, size: int, folder: Path, options: dict[str, Any], shuffle: bool) -> tuple[dict, int]:
    """What this rank computes, and how many samples came from others."""
    found, moved = {}, 0
    given = {"batch_size": 6, "shuffle": shuffle, "timeout_s": PATIENCE_S, "num_threads": 1}
    with FreeScaleDataLoader(
        source(folder, **options), SCHEMA, balance=Balance(timeout_s=PATIENCE_S), **given
    ) as loader:
        for batch in loader:
            found |= dict(samples(batch))
            moved += int((batch.origin[:, 0] != rank).sum())
    return found, moved


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_balanced_ranks_gather_histories_where_they_are_computed(tmp_path: Path, size: int, options: dict) -> None:
    data = Data.drawn(3, requests=70, users=12)
    data.write(tmp_path, files=3)
    for shuffle in (False, True):
        answers = shared_world(size).run(read_balanced, tmp_path, options, shuffle)
        assert sum(moved for _, moved in answers) > 10
        assert {row: lists for found, _ in answers for row, lists in found.items()} == data.expected(**options)


def test_a_moved_sample_takes_no_history_with_it(tmp_path: Path) -> None:
    Data.drawn(1).write(tmp_path)
    with FreeScaleDataLoader(source(tmp_path), SCHEMA, batch_size=4) as loader:
        spec = RecordSpec.of_layout(loader._data.layout)
    short, long = np.zeros((2, 1), np.int64), np.full((2, 1), 10_000)
    assert spec.record_bytes(short).tolist() == spec.record_bytes(long).tolist()


def read_two_sources(rank: int, size: int, folder: Path) -> dict:
    """One of the sources has its histories in the rows: then values travel."""
    stored = ParquetSource(str(folder / "stored.parquet"))
    found = {}
    options = {"batch_size": 5, "balance": Balance(timeout_s=PATIENCE_S), "timeout_s": PATIENCE_S, "num_threads": 1}
    with FreeScaleDataLoader([source(folder), stored], SCHEMA, **options) as loader:
        for batch in loader:
            found |= dict(samples(batch))
    return found


def test_a_source_with_histories_beside_one_with_lists_in_its_rows(tmp_path: Path) -> None:
    data = Data.drawn(5, requests=30)
    data.write(tmp_path)
    lists = {row + 1000: each for row, each in data.expected().items()}
    columns = {name: [each[name] for each in lists.values()] for name in ("item", "price", "bought", "stars", "next")}
    rows = list(lists)
    pq.write_table(pa.table({"row": rows, "user": rows, **columns}), tmp_path / "stored.parquet", row_group_size=4)
    found = {}
    for of_rank in shared_world(2).run(read_two_sources, tmp_path):
        found |= of_rank
    assert found == data.expected() | lists


def test_rows_of_one_bucket_come_together_where_rows_are_shuffled(tmp_path: Path) -> None:
    """All rows are one window; buckets are stretches of events in the order of users, so users come in that order."""
    Data.drawn(2, requests=60).write(tmp_path)
    orders = []
    for bucketed in (None, 1000):
        with FreeScaleDataLoader(
            source(tmp_path, bucketed=bucketed), SCHEMA, batch_size=7, shuffle=True, shuffle_window=99, num_threads=1
        ) as loader:
            table = loader._data.sources[0].histories.groups["uih"]
            has = dict(zip(table.keys.tolist(), (np.diff(table.offsets) > 0).tolist(), strict=True))
            batches = [batch.features[name].values().tolist() for batch in loader for name in ("user", "row")]
        users = [user for of in batches[::2] for user in of if has.get(user)]
        orders.append([row for of in batches[1::2] for row in of])
        assert (users == sorted(users)) == (bucketed is not None)
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), pytest.param(3, 1, marks=pytest.mark.long), pytest.param(1, 2, marks=pytest.mark.long)],
)
def test_other_ranks_go_on_with_rows_in_buckets(tmp_path: Path, before: int, after: int) -> None:
    data = Data.drawn(5, requests=90)
    data.write(tmp_path, files=3)
    given = {"batch_size": 4, "shuffle": True, "shuffle_window": 3, "num_threads": 1}
    seen, state = [], {}

    def steps(rank: int, size: int, most: int | None) -> dict:
        with FreeScaleDataLoader(source(tmp_path, bucketed=4), SCHEMA, rank=rank, world_size=size, **given) as loader:
            if state:
                loader.load_state_dict(state)
            for _, batch in zip(range(99 if most is None else most), loader, strict=False):
                seen.extend(samples(batch))
            return loader.state_dict()

    found = [steps(rank, before, 3) for rank in range(before)]
    state |= found[0]
    for rank in range(after):
        steps(rank, after, None)
    assert len(seen) == 90
    assert dict(seen) == data.expected()


@pytest.mark.parametrize("bucketed", [None, 3])
def test_a_saved_state_goes_on_with_the_next_row(tmp_path: Path, bucketed: int | None) -> None:
    Data.drawn(2, requests=60).write(tmp_path)
    given = {"batch_size": 7, "shuffle": True, "num_threads": 1}

    def batches(loader: FreeScaleDataLoader) -> list[list[tuple[int, dict]]]:
        return [list(samples(batch)) for batch in loader]

    with FreeScaleDataLoader(source(tmp_path, bucketed=bucketed), SCHEMA, **given) as loader:
        whole = batches(loader)
        loader.set_epoch(0)
        steps = iter(loader)
        first = [list(samples(next(steps))) for _ in range(3)]
        state = loader.state_dict()
    with FreeScaleDataLoader(source(tmp_path, bucketed=bucketed), SCHEMA, **given) as loader:
        loader.load_state_dict(state)
        assert first + batches(loader) == whole


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


def test_a_small_table(tmp_path: Path) -> None:
    assert items(tmp_path, small(tmp_path)) == [[3], [1, 2]]


@pytest.mark.parametrize("known", [False, True])
def test_times_of_events_may_be_fields(tmp_path: Path, known: bool) -> None:
    of = small(tmp_path, seen=pa.array([[19, 20], [9]], pa.list_(pa.int32()))) | {"fields": ("item", "time", "seen")}
    schema = Schema(sequences=(Sequence("uih", ("item", "time", "seen")),))
    join = AsOf(
        ParquetSource(tmp_path / "histories.parquet", columns={"user": "uid"}),
        known_at="seen" if known else None,
        **of,
    )
    with FreeScaleDataLoader(
        ParquetSource(tmp_path / "requests.parquet", join=join), schema, batch_size=2, num_threads=1
    ) as loader:
        (batch,) = loader
    lists = {name: batch.features[name].values().tolist() for name in of["fields"]}
    whole = {"item": [3, 1, 2], "time": [9, 5, 19], "seen": [9, 19, 20]}
    assert lists == ({name: values[:2] for name, values in whole.items()} if known else whole)


def test_times_of_events_are_no_floats(tmp_path: Path) -> None:
    schema = Schema(sequences=(Sequence("uih", ("item",), floats=("time",)),), context=("row",))
    with pytest.raises(SchemaError, match="'time' is a time of events, in int64, and one of the floats"):
        items(tmp_path, small(tmp_path) | {"fields": ("item", "time")}, schema)


def test_timestamps_of_different_precision_are_compared(tmp_path: Path) -> None:
    of = small(
        tmp_path,
        at=pa.array([10, 20], pa.timestamp("s")),
        time=pa.array([[5000, 19999], [10000]], pa.list_(pa.timestamp("ms"))),
    )
    assert items(tmp_path, of) == [[], [1, 2]]


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
        ({"at": pa.array([10, 20], pa.timestamp("s"))}, SchemaError, r"at holds timestamps, and time .* integers"),
        (
            {
                "at": pa.array([10, 20], pa.timestamp("s", "UTC")),
                "time": pa.array([[5, 19], [9]], pa.list_(pa.timestamp("s"))),
            },
            SchemaError,
            r"at holds timestamps with a time zone, and time .* timestamps",
        ),
        (
            {"at": [1_700_000_000_000, 1_700_000_001_000], "time": [[1_600_000_000, 1_600_000_001], [1_600_000_000]]},
            DataError,
            r"at is about 1700000000500 and time .* about 1600000000. They seem to count different units",
        ),
    ],
    ids=[
        "unsorted",
        "ragged",
        "key twice",
        "null key",
        "null time",
        "null item",
        "null time of a row",
        "text key",
        "one item per key",
        "one time per key",
        "timestamps and integers",
        "time zones",
        "milliseconds and seconds",
    ],
)
def test_what_cannot_be_a_history_is_refused(tmp_path: Path, columns: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        items(tmp_path, small(tmp_path, **columns))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on": ""}, "names one key"),
        ({"at": None}, r"AsOf\(at=...\) names one column"),
        ({"time": 3}, r"AsOf\(time=...\) names one column"),
        ({"known_at": ""}, r"AsOf\(known_at=...\) names one column"),
        ({"fields": "item"}, r"write \('item',\)"),
        ({"fields": ()}, "at least one field"),
        ({"inclusive": 1}, "True or False"),
        ({"where": "time > 3"}, "polars expression"),
        ({"where": pl.col("item").mean() > 3}, "cannot be used"),
        ({"fields": ("item", "row")}, r"row are not: use a Join"),
        ({"fields": ("item", "other")}, "fields that the schema does not have: other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict, text: str) -> None:
    of = small(tmp_path)
    with pytest.raises(SchemaError, match=text):
        items(tmp_path, of | options)


def test_a_sequence_comes_from_one_table(tmp_path: Path) -> None:
    of = small(tmp_path, action=[[1, 2], [3]])
    schema = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("row",))
    with pytest.raises(SchemaError, match="some fields of the sequence 'uih' and not action"):
        items(tmp_path, of, schema)


@pytest.mark.parametrize(("nulls", "found"), [({}, [[], [1, 2]]), ({"item": "drop"}, [[1, 2]])])
def test_a_key_without_a_history(tmp_path: Path, nulls: dict, found: list) -> None:
    assert items(tmp_path, small(tmp_path, user=[7, 2]), nulls=nulls) == found


def test_a_key_without_a_history_can_be_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 0: user 7 is not in the .*histories"):
        items(tmp_path, small(tmp_path, user=[7, 2]), nulls={"item": "error"})


def test_a_table_without_rows(tmp_path: Path) -> None:
    of = small(
        tmp_path,
        uid=pa.array([], pa.int64()),
        item=pa.array([], pa.list_(pa.int32())),
        time=pa.array([], pa.list_(pa.int64())),
    )
    assert items(tmp_path, of) == [[], []]


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
