"""Rows that are events of the histories: every sample against plain Python. Windows of time, held-out users, states."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import data_kit as kit
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from data_kit import as_python, column, load, loader_on
from event_log import LISTEN, SCHEMA, UIH, Log, anchors, as_of, lookup, samples_of
from hypothesis import given
from hypothesis import strategies as st
from rank_loaders import read_and_go_on, skips_as_islice
from worlds import shared_world

from fsdata import AsOf, Balance, FreeScaleDataLoader, Lookup, ParquetSource, Schema, Sequence, cross
from fsdata.errors import SchemaError, StateError

WIDTH = 170
PLACES = list[tuple[int, int]]


def logged(folder: Path, seed: int, users: int = 30) -> Log:
    log = Log.drawn(seed, users=users)
    log.write(folder)
    return log


def places_of(loader: FreeScaleDataLoader) -> PLACES:
    """(uid, position) of the samples of the next epoch, in order."""
    return [place for batch in loader for place in samples_of(batch)]


def opened(source: ParquetSource, **given: Any) -> FreeScaleDataLoader:
    return loader_on(source, SCHEMA, **{"batch_size": 5, **given})


def windows_of(log: Log, places: PLACES) -> dict[int, PLACES]:
    """Window of time -> the anchors in it, in order."""
    times = [log.events[uid]["ts"][position] for uid, position in places]
    found: dict[int, PLACES] = {}
    for place, time in zip(places, times, strict=True):
        found.setdefault((time - min(times)) // WIDTH, []).append(place)
    return found


def in_time(log: Log, places: PLACES) -> PLACES:
    return sorted(places, key=lambda place: log.events[place[0]]["ts"][place[1]])


@given(
    seed=st.integers(0, 2**32),
    scan=st.sampled_from([None, 6]),
    cap=st.sampled_from([None, 1, 4]),
    min_history=st.integers(0, 4),
    sparse=st.booleans(),
    bucketed=st.sampled_from([None, 2]),
    shuffle=st.booleans(),
)
def test_every_sample_is_that_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scan: int | None, cap: int | None, min_history: int,
    sparse: bool, bucketed: int | None, shuffle: bool,
) -> None:  # fmt: skip
    folder, log = tmp_path_factory.mktemp("events"), Log.drawn(seed, sparse=sparse)
    log.write(folder)
    source = anchors(folder, min_history=min_history, as_of_given={"scan": scan, "cap": cap, "bucketed": bucketed})
    found = {}
    with opened(source, shuffle=shuffle) as loader:
        assert len(loader) == -(-len(log.anchors(min_history)) // 5)
        for batch in loader:
            found |= samples_of(batch)
    assert found == {place: log.sample(*place, scan=scan, cap=cap) for place in log.anchors(min_history)}
    if not shuffle:
        assert list(found) == log.anchors(min_history)


@pytest.mark.parametrize("order", ["user", "time"])
@pytest.mark.parametrize("shuffle_window", [None, 2, 0.5])
def test_epochs_are_windows_of_time(
    tmp_path: Path, order: str, shuffle_window: int | float | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = logged(tmp_path, 3, users=20)
    expected = windows_of(log, log.anchors(2))
    given = {} if shuffle_window is None else {"shuffle": True, "shuffle_window": shuffle_window}
    with opened(anchors(tmp_path, min_history=2, order=order, time_window=WIDTH), **given) as loader:
        assert loader.windows == max(expected) + 1
        passed = 0
        for window in range(loader.windows):
            some = expected.get(window, [])
            assert len(loader) == -(-len(some) // 5)
            found = places_of(loader)
            if shuffle_window is None:
                assert found == (some if order == "user" else in_time(log, some))
            else:
                assert sorted(found) == sorted(some)
                assert found != some
                loader.set_epoch(window)
                assert places_of(loader) == found, "the order is a function of seed and window"
            passed += len(some)
            assert loader.share == passed / len(log.anchors(2))
        assert [each for each in caplog.messages if "got no batch" in each] == []
        for _ in range(2):
            assert places_of(loader) == [], "nothing is behind the last window"
        (warning,) = (each for each in caplog.messages if "got no batch" in each)
        assert f"epoch {loader.windows}: there are {loader.windows} windows of time" in warning
        with pytest.raises(ValueError, match=rf"window 99 of time: there are {loader.windows}"):
            loader.set_epoch(99)


def test_windows_begin_with_the_first_row_whoever_is_held_out(tmp_path: Path) -> None:
    log = logged(tmp_path, 3)
    places = log.anchors(0)
    of_parts = []
    for keep in ((0, 0.7), (0.7, 1)):
        source = anchors(tmp_path, time_window=WIDTH, split="uid", keep=keep, salt="test")
        found: dict[int, PLACES] = {}
        with opened(source) as loader:
            for window in range(loader.windows or 0):
                loader.set_epoch(window)
                found[window] = places_of(loader)
        of_parts.append(found)
    train, held_out = of_parts
    assert not {uid for of in train.values() for uid, _ in of} & {uid for of in held_out.values() for uid, _ in of}
    for window, expected in windows_of(log, places).items():
        assert sorted(train.get(window, []) + held_out.get(window, [])) == sorted(expected)


@pytest.mark.parametrize("sorted_at_once", [None, 16])
def test_all_in_order_of_time(tmp_path: Path, sorted_at_once: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times need no order where positions count."""
    log = logged(tmp_path, 5)
    if sorted_at_once:
        monkeypatch.setattr("fsdata.histories.event_rows._SORTED", sorted_at_once)
        monkeypatch.setattr("fsdata.histories.event_rows._CHUNK", 2 * sorted_at_once)
    for bucketed in (None, 2):
        for of in log.events.values():
            of["ts"].reverse()
        log.write(tmp_path)
        with opened(anchors(tmp_path, order="time", as_of_given={"bucketed": bucketed})) as loader:
            assert places_of(loader) == in_time(log, log.anchors(0))


def read(rank: int, size: int, folder: Path, window: int | None = None, **given: Any) -> dict[Any, Any]:
    """The samples of this rank, of one window of time or of all; from every third place another loader goes on."""
    window_given = {} if window is None else {"time_window": WIDTH}
    found = {}

    def make() -> FreeScaleDataLoader:
        source = anchors(folder, min_history=1, as_of_given={"cap": 3}, **window_given)
        loader = opened(source, batch_size=3, **given)
        if window is not None:
            loader.set_epoch(window)
        return loader

    for batch in read_and_go_on(make, every=3)[0]:
        found |= samples_of(batch)
    return found


@pytest.mark.parametrize("window", [None, 1])
def test_ranks_that_balance_compute_the_same_samples(tmp_path: Path, window: int | None) -> None:
    log = logged(tmp_path, 7)
    places = log.anchors(1)
    expected = places if window is None else windows_of(log, places)[window]
    given = {"shuffle": True, "shuffle_window": 0.5, "balance": Balance()}
    found: dict[Any, Any] = {}
    for of_rank in shared_world(3).run(partial(read, **given), tmp_path, window):
        assert not found.keys() & of_rank.keys()
        found |= of_rank
    assert found == {place: log.sample(*place, cap=3) for place in expected}


@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2}])
def test_skipped_steps_of_a_window_of_time_end_with_it(tmp_path: Path, ranks: dict[str, int]) -> None:
    logged(tmp_path, 7)
    for before, steps in ((2, 1), (1, 3), (2, 100), (0, 100)):

        def make() -> FreeScaleDataLoader:
            loader = opened(anchors(tmp_path, time_window=WIDTH), batch_size=3, shuffle=True, **ranks)
            loader.set_epoch(1)
            return loader

        skips_as_islice(make, before, steps)


def some_steps(rank: int, size: int, folder: Path, state: dict[str, Any] | None, steps: int) -> tuple[PLACES, Any]:
    """What this rank reads of window 1 in so many steps, from a state on; and the state then."""
    found: PLACES = []
    with opened(anchors(folder, time_window=WIDTH), batch_size=2, shuffle=True, shuffle_window=0.3) as loader:
        if state is None:
            loader.set_epoch(1)
        else:
            loader.load_state_dict(state)
        for step, batch in enumerate(loader, start=1):
            found += samples_of(batch)
            if step == steps:
                break
        return found, loader.state_dict()


def test_the_rest_of_a_window_on_another_number_of_ranks(tmp_path: Path) -> None:
    log = logged(tmp_path, 7)
    first = shared_world(3).run(some_steps, tmp_path, None, 3)
    state = first[0][1]
    assert state["epoch"] == 1
    rest = shared_world(2).run(some_steps, tmp_path, state, 10**6)
    found = [place for places, _ in (*first, *rest) for place in places]
    assert sorted(found) == sorted(windows_of(log, log.anchors(0))[1])


def test_a_state_of_the_end_of_a_window_goes_on_with_the_next(tmp_path: Path) -> None:
    log = logged(tmp_path, 3, users=20)
    source = anchors(tmp_path, time_window=WIDTH)
    with opened(source) as loader:
        for _ in loader:
            state = loader.state_dict()
    with opened(source) as loader:
        loader.load_state_dict(state)
        assert places_of(loader) == windows_of(log, log.anchors(0))[1]


@pytest.mark.parametrize(
    "other", [{"min_history": 1}, {"order": "time"}, {"time_window": 99}, {"split": "uid", "keep": (0, 0.9)}]
)
def test_which_events_are_rows_is_part_of_what_a_state_belongs_to(tmp_path: Path, other: dict[str, Any]) -> None:
    Log.drawn(3).write(tmp_path)
    with opened(anchors(tmp_path)) as loader:
        state = loader.state_dict()
    with opened(anchors(tmp_path, **other)) as loader, pytest.raises(StateError, match="arguments"):
        loader.load_state_dict(state)


def test_two_sources_cannot_have_windows_of_time(tmp_path: Path) -> None:
    Log.drawn(3).write(tmp_path)
    with pytest.raises(SchemaError, match="the only source"):
        opened([anchors(tmp_path, time_window=WIDTH), anchors(tmp_path)])  # type: ignore[arg-type]


PLACE = Schema(sequences=(Sequence("uih", fields=("item",)),), context=("uid", "position"))


def written(folder: Path, **lists: Any) -> AsOf:
    """Histories of users 1, 2, ..., with the lists that are given."""
    columns = {"uid": pa.array(range(1, len(lists["item"]) + 1)), **lists}
    defaults = {name: -1 for name in lists if name in ("rating", "genre")}
    source = ParquetSource(kit.write(folder / "histories.parquet", columns), defaults=defaults)
    return AsOf(source, on="uid", at="position", time="ts", fields=("item",))


def test_windows_of_times_as_far_apart_as_they_can_be(tmp_path: Path) -> None:
    source = written(tmp_path, item=[[1, 2, 3], [4]], ts=[[-(2**63), -5, 2**63 - 1], [0]]).anchors(time_window=2**62)
    found = []
    with loader_on(source, PLACE) as loader:
        for _ in range(loader.windows or 0):
            samples = [sample for batch in loader for sample in as_python(batch)]
            found.append([(sample["uid"], sample["position"]) for sample in samples])
    assert found == [[(1, 0)], [(1, 1)], [(2, 0)], [(1, 2)]]


def test_a_window_in_another_unit(tmp_path: Path) -> None:
    times = pa.array([[0, 10**9], [10**8]], pa.list_(pa.timestamp("s")))
    source = written(tmp_path, item=[[1, 2], [3]], ts=times).anchors(time_window=86400)
    with pytest.raises(SchemaError, match=r"time_window=86400\) makes \d+ windows .* ts is in nanoseconds"):
        load(source, PLACE)


def test_times_of_events_and_of_other_histories_count_the_same(tmp_path: Path) -> None:
    others = written(tmp_path / "others", other=[[1]], item=[[1]], ts=[[5]])
    join = AsOf(others.source, on="uid", at="ts", time="ts", fields=("other",))
    own = written(tmp_path, item=[[1]], ts=pa.array([[0]], pa.list_(pa.timestamp("s")))).anchors(join=join)
    schema = Schema(sequences=(*PLACE.sequences, Sequence("others", fields=("other",))))
    with pytest.raises(SchemaError, match=r"ts and ts .*, timestamps in ns with integers"):
        load(own, schema)


def test_nulls_and_defaults_of_what_rows_are_made_of(tmp_path: Path) -> None:
    """A default of a row stands for a list that the table does not have, and hides none that it has."""
    histories = written(tmp_path, item=[[1, 2], [3]], ts=[[1, 2], [3]], rating=[[5, None], [7]])
    candidates = Sequence("candidates", fields=("candidate", "nowhere"))
    schema = Schema(sequences=PLACE.sequences, candidates=candidates, context=("uid", "missing"), labels=("label",))
    columns, defaults = {"label": "rating", "candidate": "item"}, {"label": 9, "missing": 4, "nowhere": 6}
    samples = kit.read(histories.anchors(columns=columns, defaults=defaults), schema)
    assert column(samples, "label") == [5, -1, 7]
    assert column(samples, "missing") == [4, 4, 4]
    assert column(samples, "candidate") == [[1], [2], [3]]
    assert column(samples, "nowhere") == [[6], [6], [6]]


def test_a_default_of_a_list_that_nothing_is_made_of(tmp_path: Path) -> None:
    histories = written(tmp_path, item=[[1, 2]], ts=[[1, 2]], genre=[[1, 2]])
    with pytest.raises(SchemaError, match="defaults names genre, which is not read; lists that are read: item"):
        load(histories.anchors(), PLACE)


def test_a_lookup_for_an_expression_alone(tmp_path: Path) -> None:
    """Then the ids that are looked up are read for it."""
    written(tmp_path, item=[[1, 2], [3]], ts=[[1, 2], [3]], genre=[[8, 9], [7]])
    histories = AsOf(ParquetSource(tmp_path / "histories.parquet"), on="uid", at="position", fields=("item",))
    genres = kit.write(tmp_path / "genres.parquet", {"genre": [7, 8, 9], "style": [70, 80, 90]})
    styles = Lookup(ParquetSource(genres), on="genre", fields=("style",))
    schema = Schema(sequences=PLACE.sequences, context=("style_and_user",))
    source = histories.anchors(join=styles, columns={"style_and_user": pl.col("style") + pl.col("uid")})
    assert column(kit.read(source, schema), "style_and_user") == [81, 91, 72]


def test_lists_of_booleans_are_compared(tmp_path: Path) -> None:
    Log.drawn(3).write(tmp_path)
    source = as_of(tmp_path).anchors(where=pl.col("organic"), join=lookup(tmp_path), columns={"label": "ratio"})
    with pytest.raises(SchemaError, match=r"over organic gives uint8 .* as in pl.col\('organic'\) == 1"):
        load(source, Schema(sequences=(UIH,), labels=("label",)))


def test_a_column_that_events_do_not_have(tmp_path: Path) -> None:
    Log.drawn(3).write(tmp_path)
    with pytest.raises(SchemaError, match="rating"):
        opened(as_of(tmp_path).anchors(join=lookup(tmp_path), columns={"label": pl.col("rating")}))


def test_users_held_out_by_a_hash_of_their_own(tmp_path: Path) -> None:
    """Integers of polars wrap around, so a hash of 64 bits is an expression; that of the page about DLRMv4."""
    page = (Path(__file__).parents[3] / "docs" / "dlrm-v4.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    log = Log.drawn(3)
    log.write(tmp_path)
    source = as_of(tmp_path).anchors(where=names["share"](pl.col("uid"), salt=5) < 0.5, join=lookup(tmp_path))
    schema = Schema(sequences=(UIH,), context=("uid",))
    seen = set(column(kit.read(source, schema), "uid"))
    users = [uid for uid, events in log.events.items() if events["ts"]]
    assert seen == {uid for uid in users if splitmix64(uid + 5) < 0.5}
    assert 0 < len(seen) < len(users)


def splitmix64(number: int) -> float:
    """The next number of a generator in this state, as a share of 1."""
    word = 2**64 - 1
    mixed = (number + 0x9E3779B97F4A7C15) & word
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53


HISTORIES = AsOf(ParquetSource("x"), on="uid", at="at", time="ts", fields=("item",))
anchors_of = replace(HISTORIES, at="position").anchors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cross(buckets=3), "takes values"),
        (lambda: cross("uid", buckets=0), "buckets=...\\) is an integer from 1 to"),
        (lambda: cross("uid", buckets=2**63 + 1), "buckets"),
        (lambda: cross("uid", buckets=3, seed=-1), "seed"),
        (lambda: cross(np.array([1]), buckets=3), "polars expression"),
        (lambda: ParquetSource("x", filter=cross("uid", buckets=2)), r"filter=... takes a condition, .* gives ids"),
        (lambda: HISTORIES.anchors(), "at='position'"),
        (lambda: anchors_of(min_history=-1), "at least 0"),
        (lambda: anchors_of(order="random"), "must be one of 'user', 'time'"),
        (lambda: anchors_of(time_window=0), "at least 1 or None, got 0"),
        (lambda: anchors_of(time_window=2**63), r"at most 2\*\*63 - 1"),
        (lambda: anchors_of(split="item"), "split by their key, 'uid'"),
        (lambda: anchors_of(salt="x"), "belong to split"),
        (lambda: anchors_of(keep=5), "belong to split"),
        (lambda: anchors_of(where=cross("uid", buckets=2)), "takes a condition"),
        (lambda: anchors_of(filter=LISTEN), "no option filter"),
        (lambda: anchors_of(limit=5), "no option limit"),
    ],
)
def test_ids_and_anchors_that_cannot_be(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make()
