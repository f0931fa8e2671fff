"""A loader of a folder that grows, on one rank."""

import json
import logging
from base64 import b64decode
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import loader_on
from growing import (
    ENDLESS,
    FAST,
    IDS,
    SCHEMA,
    WithoutTimes,
    add,
    age,
    before_listings,
    failing,
    loader_of,
    nothing,
    read,
    resumed,
    rows_of,
    take,
    write,
)
from patience import PATIENCE_S
from rank_loaders import skips_as_islice

from fsdata import (
    Balance,
    CorruptFileError,
    Follow,
    Join,
    ParquetSource,
    Retry,
    SchemaError,
    StateError,
)
from fsdata.catalog import catalog
from fsdata.growing import followed, followed_data, growing_files, watcher


@pytest.fixture
def folder(tmp_path):
    add(tmp_path / "in", 0, 1, 2)
    return tmp_path / "in"


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, "fsdata"):
        yield caplog


def test_files_that_come_are_read_once_in_the_order_of_their_names(folder):
    with loader_of(folder, Follow(**ENDLESS)) as loader:
        batches = iter(loader)
        rows = take(batches, 7)
        (folder / "03.parquet").write_bytes(b"PAR1")  # its place is before the next one, which has to wait for it
        add(folder, 4, 3)
        assert rows + take(batches, 5) == list(range(48))
    with pytest.raises(TypeError, match="no length"):
        len(loader)


def test_skipped_steps_are_read_and_lengths_alone_may_change(folder):
    skips_as_islice(lambda: loader_of(folder, Follow(**FAST)), 2, 3)
    with loader_of(folder, Follow(**FAST), shuffle=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
        rows = [row for batch in loader for row in rows_of(batch)]
    (uih,) = SCHEMA.sequences
    short = replace(SCHEMA, sequences=(replace(uih, max_length=2),))
    source = ParquetSource(folder, follow=Follow(**FAST), columns=IDS)
    with loader_on(source, short, batch_size=4, shuffle=True) as loader:
        loader.load_state_dict(state, changed="max_length")
        batches = list(loader)
        assert [row for batch in batches for row in batch.features["row"].values().tolist()] == rows
        assert max(batch.features["item"].lengths().max() for batch in batches) == 2
    heavy = replace(source, weight=2.0)
    with loader_on(heavy, SCHEMA, batch_size=4, shuffle=True) as loader, pytest.raises(StateError, match="weight of"):
        loader.load_state_dict(state, changed=("weights", "sources"))


@pytest.mark.parametrize("balance", [None, Balance(max_tokens=24)])
def test_the_order_does_not_depend_on_when_files_come(folder, balance):
    """One file each time: the extensions are the same."""
    found = []
    for come in (True, False):
        with loader_of(folder, Follow(**ENDLESS, at_most=1), shuffle=True, balance=balance) as loader:
            batches, rows = iter(loader), []
            for number in range(3, 6):
                rows += take(batches, 4)
                if come:
                    add(folder, number)
            found.append(rows)
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0])


BALANCE, FILTER = Balance(max_tokens=24), {"filter": pl.col("keep")}


@pytest.mark.parametrize(
    ("source", "balance", "shuffle"),
    [
        ({}, None, True),
        (FILTER, BALANCE, False),
        pytest.param(FILTER, None, True, marks=pytest.mark.long),
        pytest.param({}, BALANCE, True, marks=pytest.mark.long),
    ],
)
def test_a_job_goes_on_where_it_was_at_every_step(folder, shuffle, balance, source):
    follow = Follow(**FAST, at_most=2)
    options = {"shuffle": shuffle, "balance": balance, "source": source}
    with loader_of(folder, follow, **options) as loader:
        found = [(rows_of(batch), loader.state_dict()) for batch in loader]
    for number, (_, state) in enumerate(found, 1):
        rest = [row for rows, _ in found[number:] for row in rows]
        assert resumed(folder, state, follow, **options) == rest


def test_what_was_read_may_be_removed_and_what_was_not_stays_as_it_is(folder, monkeypatch):
    monkeypatch.setattr(followed_data, "_PATIENCE_S", 0.0)
    follow = Follow(**FAST, at_most=1)
    with loader_of(folder, follow) as loader:
        rows = read(loader, 4)
        state = loader.state_dict()
    (folder / "00.parquet").unlink()
    assert rows + resumed(folder, state, follow) == list(range(30))
    (folder / "01.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"01\.parquet") as caught:
        resumed(folder, state, follow)
    assert "removed after all of their rows were read" in str(caught.value.__notes__)
    write(folder, "01.parquet", range(900, 910))
    with pytest.raises(CorruptFileError, match=r"01\.parquet was replaced"):
        resumed(folder, state, follow)


def test_a_second_loop_goes_on_behind_the_first(folder):
    with loader_of(folder) as loader:
        assert read(loader, 2) == list(range(8))
        loader.set_epoch(5)
        assert read(loader) == list(range(8, 30))
        assert read(loader) == []
        write(folder, "03.parquet", range(30, 33))
        assert read(loader) == [30, 31, 32]
        assert loader.state_dict()["epoch"] == 0


def test_a_state_names_few_files_of_months_and_a_loader_goes_back_to_it(folder):
    with loader_of(folder, Follow(**ENDLESS, at_most=1)) as loader:
        batches = iter(loader)
        rows = take(batches, 1)
        state = loader.state_dict()
        add(folder, *range(3, 10))
        for _ in range(24):
            rows += take(batches, 1)
            assert len(loader.state_dict()["follow"]["files"]) <= 3
        assert rows == list(range(100))
        loader.load_state_dict(state)
        assert read(loader, 24) == list(range(4, 100))


def test_rows_wait_until_they_fill_a_batch(folder):
    with loader_of(folder, batch_size=20, drop_last=True) as loader:
        assert read(loader) == list(range(20))
        write(folder, "03.parquet", range(30, 45))
        assert read(loader) == list(range(20, 40))


def test_files_that_are_not_whole_wait_and_those_after_them(folder, warnings):
    whole = (folder / "01.parquet").read_bytes()
    (folder / "01.parquet").write_bytes(whole[:-20])
    with loader_of(folder) as loader:
        batches = iter(loader)
        assert take(batches, 2) == list(range(8))
        with pytest.raises(CorruptFileError, match=r"1 files are not whole: 01\.parquet.*rename it"):
            next(batches)
        (folder / "01.parquet").write_bytes(whole)
        assert read(loader) == list(range(8, 30))
    (folder / "01.parquet").write_bytes(b"PAR1")
    age(folder, "01.parquet", 3600)
    with loader_of(folder, source={"on_error": "skip"}) as loader:
        assert read(loader) == list(range(10))
        assert [entry.file for entry in loader.skipped] == ["01.parquet"]
    assert "01.parquet" in warnings.text


def test_files_that_change_all_the_time_wait(folder):
    age(folder, "00.parquet", 1000)
    with loader_of(folder, Follow(every="10ms", idle="50ms", lag="500s"), batch_size=5) as loader:
        batches = iter(loader)
        assert take(batches, 2) == list(range(10))
        age(folder, "01.parquet", 1000)
        assert take(batches, 1) == list(range(10, 15))


@pytest.mark.parametrize("by", ["path", "time"])
def test_a_late_file_is_read_and_named_whatever_its_time(folder, by, warnings):
    """As `rsync -t` and renaming leave it: modified long before the files that were read. The job runs, or is down."""
    follow = Follow(**FAST, by=by, lag=0 if by == "time" else "0s")
    with loader_of(folder, follow) as loader:
        assert read(loader) == list(range(30))
        state = json.loads(json.dumps(loader.state_dict()))
        write(folder, "00b.parquet", range(3, 7))
        age(folder, "00b.parquet", 10**6)
        assert read(loader) == [3, 4, 5, 6]
    assert "late, behind files that were read: 00b.parquet" in warnings.text
    assert len(state["follow"]["seen"]["names"]) == 32  # 8 bytes each
    assert resumed(folder, state, follow) == [3, 4, 5, 6]


def test_files_that_are_gone_for_long_are_forgotten(folder, monkeypatch):
    """A folder that is away for a moment is not: its files would be read again."""
    monkeypatch.setattr(watcher, "_FORGET_S", 0.0)
    listings, away = before_listings(monkeypatch, watcher), folder.with_name("away")

    def leave():
        folder.rename(away)

    def come():
        away.rename(folder)

    with loader_of(folder, Follow(**ENDLESS)) as loader:
        batches = iter(loader)
        rows = take(batches, 7)
        listings += [leave, nothing, come, (folder / "00.parquet").unlink, nothing]
        listings.append(lambda: write(folder, "03.parquet", range(30, 34)))
        assert rows + rows_of(next(batches)) == list(range(32))
        assert len(b64decode(loader.state_dict()["follow"]["seen"]["names"])) == 3 * 8


def test_by_time(tmp_path):
    """Files come in any order; the one with the latest times waits until others are later by the lag."""
    write(tmp_path, "b.parquet", range(10))
    write(tmp_path, "a.parquet", range(10, 20))
    write(tmp_path, "c.parquet", range(40, 50))
    with loader_of(tmp_path, Follow(by="time", lag=20, **ENDLESS), batch_size=5) as loader:
        batches = iter(loader)
        assert take(batches, 4) == list(range(20))
        write(tmp_path, "d.parquet", range(20, 30))
        assert take(batches, 2) == list(range(20, 30))
        write(tmp_path, "0.parquet", range(70, 80))
        assert take(batches, 2) == list(range(40, 50))
        state = loader.state_dict()
    assert resumed(tmp_path, state, Follow(by="time", lag=20, **FAST), batch_size=5) == list(range(70, 80))


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_by_timestamps(tmp_path, unit):
    for number in (2, 0, 1):
        rows = np.arange(number * 10, number * 10 + 10)
        times = pa.array(rows * 60 * 1000, pa.int64()).cast(pa.timestamp("ms")).cast(pa.timestamp(unit))
        table = pa.table({"row": rows, "item": [[1] * (row % 7) for row in rows.tolist()], "at": times})
        pq.write_table(table, tmp_path / f"{9 - number}.parquet")
    with loader_of(tmp_path, Follow(by="time", lag="10m", **ENDLESS), batch_size=5) as loader:
        assert take(iter(loader), 4) == list(range(20))
    with loader_of(tmp_path, Follow(by="time", lag="10m", **FAST), batch_size=5) as loader:
        assert read(loader) == list(range(30))


def test_times_that_no_footer_says_are_named(folder, tmp_path):
    pq.write_table(pq.read_table(folder / "00.parquet"), tmp_path / "a.parquet", write_statistics=False)
    for path, lag, message in (
        (tmp_path / "*.parquet", {}, "'at'"),
        (folder, {"lag": "5s"}, "integers, whose unit is not known"),
    ):
        with loader_of(path, Follow(by="time", **lag, **FAST)) as loader, pytest.raises(SchemaError, match=message):
            read(loader)


@pytest.mark.parametrize("by", ["path", "time"])
def test_files_without_rows_hold_up_nothing(tmp_path, by, warnings):
    follow = Follow(**FAST, by=by, lag=3 if by == "time" else "0s")
    for name, rows in (("a", range(4)), ("b", range(0)), ("c", range(4, 8)), ("d", range(0))):
        write(tmp_path, f"{name}.parquet", rows)
    with loader_of(tmp_path, follow) as loader:
        assert read(loader) == list(range(8))
        write(tmp_path, "0.parquet", range(0))
        assert read(loader) == []
        write(tmp_path, "e.parquet", range(8, 12))
        assert read(loader) == list(range(8, 12))
    assert "late" not in warnings.text


def test_a_clock_that_is_ahead_holds_up_nothing(folder):
    """A file is read when it was not changed for `lag`, by our own clock if its time is to come."""
    age(folder, "01.parquet", -3600)
    with loader_of(folder, Follow(**FAST, lag="20ms")) as loader:
        assert read(loader) == list(range(30))


def test_without_times_of_modification_the_lag_counts_from_when_a_file_was_found(folder, monkeypatch):
    now = [10**15]
    monkeypatch.setattr(watcher, "time", SimpleNamespace(time_ns=lambda: now[0]))

    def after(seconds):
        now[0] += seconds * 10**9

    def written_again():
        after(50)
        write(folder, "00.parquet", range(8))

    actions = [nothing, written_again, lambda: after(50), lambda: after(50)]
    follow = Follow(**ENDLESS, lag="1m", at_most=1)
    with loader_of(folder, follow, source={"filesystem": WithoutTimes(use_listings_cache=False)}) as loader:
        left = before_listings(monkeypatch, watcher, *actions)
        assert read(loader, 2) == list(range(8))
        assert left == []


def test_what_another_host_sees_later_is_waited_for(folder, monkeypatch):
    """By its attribute cache a network file system shows an old size: the end of the file is not that of Parquet."""
    seen, raw_footer = [], catalog.raw_footer

    def late(file):
        seen.append(file.path.rpartition("/")[2])
        if seen.count("01.parquet") == 2:  # after rank 0 has looked at it
            raise CorruptFileError(f"{file.path}: not a Parquet file")
        return raw_footer(file)

    monkeypatch.setattr(catalog, "raw_footer", late)
    monkeypatch.setattr(followed_data, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    with loader_of(folder) as loader:
        assert read(loader) == list(range(30))
    assert seen.count("01.parquet") > 2


def test_a_folder_without_files_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    before_listings(monkeypatch, growing_files, nothing, nothing, lambda: write(tmp_path / "in", "a.parquet", range(5)))
    with loader_of(tmp_path / "in", Follow(**ENDLESS)) as loader:
        assert rows_of(next(iter(loader))) == [0, 1, 2, 3]
    with pytest.raises(FileNotFoundError, match="no whole file has come for 80ms"):
        loader_of(tmp_path / "elsewhere")


def test_what_is_left_out_is_logged_once_however_often_the_folder_is_listed(tmp_path, caplog):
    for name in ("a.parquet", "000000_0"):
        write(tmp_path, name, range(4))
    with loader_of(tmp_path) as loader:
        assert read(loader) == [0, 1, 2, 3]
    assert [message for message in caplog.messages if "left out" in message] == [
        f"source 0 ({tmp_path}): 1 left out: 000000_0 (its name does not end in .parquet or .parq). To read such "
        "files, give their paths or a glob"
    ]


def test_later_files_have_to_fit(folder):
    with loader_of(folder) as loader:
        read(loader)
        pl.read_parquet(folder / "00.parquet").drop("item").write_parquet(folder / "03.parquet")
        with pytest.raises(SchemaError, match=r"column 'item' is missing.*03\.parquet"):
            read(loader)


def test_folders_with_keys_that_come(tmp_path):
    for day in (1, 2):
        write(tmp_path, f"day=2026-01-{day:02}/0.parquet", range(day * 10, day * 10 + 5))
    with loader_of(tmp_path, source={"filter": pl.col("day") != "2026-01-02"}) as loader:
        assert read(loader) == list(range(10, 15))
        write(tmp_path, "day=2026-01-03/0.parquet", range(30, 35))
        assert read(loader) == list(range(30, 35))
        (found,) = loader.describe()
        assert (found["files"], found["rows"]) == (2, 10)


def joined(rows, side, **options):
    return ParquetSource(rows, join=[Join(side, on="row", fields=("item",), **options)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path, follow: ParquetSource([path, path / "more"], follow=follow), "one path"),
        (lambda path, follow: ParquetSource(catalog=path / "c", follow=follow), "no catalog"),
        (lambda path, follow: ParquetSource(path, follow="path"), "takes a Follow"),
        (lambda path, follow: ParquetSource(path, follow=follow, limit=5), "no skip and no limit"),
        (lambda path, follow: joined(path, ParquetSource(path, follow=follow)), "give both, or none"),
        (
            lambda path, follow: joined(path, ParquetSource(path, follow=follow), wait="1m"),
            "both sources a Follow",
        ),
        (lambda path, follow: joined(path, ParquetSource(path), wait="30m"), "a source with `follow` need each other"),
        (lambda path, follow: joined(path, ParquetSource(path), missing="skip"), "missing"),
        (lambda path, follow: joined(path, ParquetSource(path), missing="default"), "needs a default of every field"),
    ],
)
def test_options_that_contradict_each_other(tmp_path, make, message):
    with pytest.raises(SchemaError, match=message):
        make(tmp_path, Follow(**FAST))


def test_loaders_that_cannot_follow(folder):
    with pytest.raises(ValueError, match="has no end, so it cannot be mixed with others"):
        loader_on([ParquetSource(folder, follow=of, columns=IDS) for of in (Follow(**FAST), None)], SCHEMA)
    with pytest.raises(ValueError, match=r"shuffle_window=0.1 is a share of the epoch"):
        loader_of(folder, shuffle=True, shuffle_window=0.1)
    with pytest.raises(ValueError, match="a followed source makes the ranks communicate"):
        loader_of(folder, rank=0, world_size=2)


def test_states_of_other_loaders(folder):
    with loader_of(folder) as loader:
        read(loader)
        state = loader.state_dict()
        for key in ("rest", "files", "seen", "version"):
            damaged = {**state, "follow": {**state["follow"], key: "?"}}
            with pytest.raises(StateError):
                loader.load_state_dict(damaged)
        with loader_on(ParquetSource(folder, columns=IDS), SCHEMA, batch_size=4) as other:
            for one, two in ((loader, other), (other, loader)):
                with pytest.raises(StateError, match="belongs to another run"):
                    one.load_state_dict(two.state_dict())


def test_stopping_while_it_waits_ends_the_wait_and_leaves_nothing_behind(folder, monkeypatch, begun):
    monkeypatch.setattr(followed, "_TICK_S", PATIENCE_S)
    with loader_of(folder, Follow(every="1h"), prefetch=2) as loader:
        take(iter(loader), 7)
    assert begun("fsdata-decode") == []


def test_a_store_that_cannot_be_listed_for_a_moment_is_asked_again(folder, monkeypatch, warnings):
    monkeypatch.setattr(watcher, "_LISTING_PATIENCE_S", 0.0)
    listings = before_listings(monkeypatch, watcher)
    with loader_of(folder, source={"retry": Retry(max_s=0)}) as loader:
        for error in (ConnectionResetError("reset"), TimeoutError("no answer"), ConnectionResetError("again")):
            listings += [failing(error), nothing]  # each time it has all the patience
        assert read(loader) == list(range(30))
        while listings:
            assert read(loader) == []
        assert "out of reach: reset" in warnings.text
        listings.append(failing(PermissionError("not for you")))
        with pytest.raises(PermissionError, match="not for you"):
            read(loader)
        listings += [failing(TimeoutError("no answer"))] * 10_000
        with pytest.raises(ConnectionError, match="out of reach for 0 s: TimeoutError: no answer"):
            read(loader)


def test_a_file_that_goes_before_it_was_read_is_named(folder, monkeypatch, warnings):
    (folder / "00.parquet").write_bytes(b"PAR1")
    before_listings(monkeypatch, watcher, nothing, (folder / "02.parquet").unlink, lambda: add(folder, 0))
    with loader_of(folder, Follow(**ENDLESS)) as loader:
        assert read(loader, 5) == list(range(20))
    assert "removed before it was read: 02.parquet" in warnings.text


def test_a_file_that_goes_while_it_is_looked_at_is_looked_for_again(folder, monkeypatch, warnings):
    """A compaction replaces files by one, between the listing and the look at their footers."""
    before_listings(monkeypatch, watcher, lambda: (folder / "01.parquet").unlink)
    with loader_of(folder, Follow(**ENDLESS)) as loader:
        assert read(loader, 5) == [*range(10), *range(20, 30)]
    assert "gone while it was looked at" in warnings.text


def test_the_end_does_not_wait_for_the_next_look(folder):
    with loader_of(folder, Follow(every="1h", idle="50ms")) as loader:
        assert read(loader) == list(range(30))
