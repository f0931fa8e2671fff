"""Reading ahead: which bytes are asked for, what decoders get of them, and what is held at a time."""

import itertools
import os
import random
import threading
from collections import defaultdict
from concurrent.futures import CancelledError

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from data_kit import USERS, loader_on, rows_of, write
from hypothesis import example, given
from hypothesis import strategies as st
from patience import until

from fsdata import ParquetSource, Schema, Sequence
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.remote_file import RemoteFile
from fsdata.catalog.retry import Retrying
from fsdata.compose.reading import open_source
from fsdata.decode.row_layout import layout_of
from fsdata.options import bytes_of
from fsdata.remote.byte_ranges import requests
from fsdata.remote.read_ahead import ReadAhead


@pytest.mark.parametrize(
    ("text", "size"),
    [(0, 0), (7, 7), ("256MB", 256_000_000), ("1.5 GiB", 3 << 29), (" 8kb ", 8000), ("12B", 12), ("2TB", 2 * 10**12)],
)
def test_sizes_are_read(text, size):
    assert bytes_of(text, "read_ahead") == size


def test_sizes_that_are_none_are_refused():
    for text in (-1, True, 2.5, None, "", "256", "256M", "-1MB", "1e3MB", "MB", "1 iB", "1MB 2MB"):
        with pytest.raises(ValueError, match=r'read_ahead must be a number of bytes .* like "256MB"'):
            bytes_of(text, "read_ahead")


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12), st.integers(0, 40), st.integers(1, 90)
)
@example([(5, 10), (15, 5), (20, 1)], 0, 4)
def test_requests_cover_the_ranges_and_small_gaps_only(spans, gap, most):
    ranges = [(begin, begin + size) for begin, size in spans]
    found = requests(ranges, gap=gap, most=most)
    wanted = {byte for begin, end in ranges for byte in range(begin, end)}
    read = [byte for begin, end in found for byte in range(begin, end)]
    assert len(read) == len(set(read))  # nothing is read twice
    assert read == sorted(read)
    assert wanted <= set(read)
    assert all(0 < end - begin <= most for begin, end in found)
    unwanted = sorted(set(read) - wanted)
    runs = np.split(np.array(unwanted, int), np.flatnonzero(np.diff(unwanted) > 1) + 1)
    assert all(len(run) <= gap for run in runs)
    for before, after in itertools.pairwise(found):
        assert after[0] == before[1] or after[0] - before[1] > gap


def remote(folder):
    """A filesystem that counts as remote: it is not asked whether its files are on this machine."""
    return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())


@pytest.mark.parametrize("decoder", ["pages", "pyarrow"])
def test_all_bytes_that_a_decoder_needs_are_planned(tmp_path, decoder):
    columns = {
        "user": pa.array(np.arange(3000) % 7),
        "unread": pa.array([f"text {n % 50}" for n in range(3000)]),
        "item": pa.array([[n, n + 1] for n in range(3000)]),
    }
    path = write(tmp_path / "a.parquet", columns, group=1000)
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("user",))
    for read_ahead in (0, "1MB"):
        source = ParquetSource("a.parquet", filesystem=remote(tmp_path), decoder=decoder)
        with loader_on(source, schema, batch_size=500, read_ahead=read_ahead) as loader:
            assert rows_of(loader, "user") == columns["user"].to_pylist()
            asked = loader.stats()["remote"]
        groups = [pq.read_metadata(path).row_group(group) for group in range(3)]
        assert asked["unplanned_reads"] == 0
        assert (
            0 < asked["bytes"] <= sum(each.column(leaf).total_compressed_size for each in groups for leaf in (0, 1, 2))
        )


class Answer:
    """A store that says that `said` of 10 bytes have come, of which `came` have."""

    def __init__(self, came, said):
        self.came, self.said, self.asked = came, said, 0

    def size(self):
        return 20

    def get_stream(self, offset, count):
        assert (offset, count) == (4, 10)
        return self

    def readinto(self, memory):
        self.asked += 1
        memory[: len(self.came)] = self.came
        return self.said

    def cat_file(self, path, start, end):
        """As fsspec reads, which says truly what came."""
        self.asked += 2
        return self.came


@pytest.mark.parametrize(
    ("came", "said", "fault"),
    [
        (b"." * 9, 9, "only 9 of 10 bytes arrived"),
        (b"." * 9, 10, "not all of 10 bytes arrived"),
        (b"", 10, "not all of 10 bytes arrived"),
        (b".........\xa5", 10, None),
        (b"." * 9, None, "only 9 of 10 bytes arrived"),
        (b"." * 10, None, None),
    ],
    ids=["short", "stale by a byte", "stale", "ends like the mark", "short by fsspec", "by fsspec"],
)
def test_a_short_answer_of_a_remote_file_is_an_error_of_the_connection(came, said, fault):
    answer = Answer(came, said)
    system = None if said else pafs.PyFileSystem(pafs.FSSpecHandler(answer))
    file = RemoteFile(FileRef("bucket/a.parquet", "a.parquet", system, local=False), answer)
    if fault is None:
        assert file.read_at(10, 4) == came
        assert answer.asked == 2
    else:
        with pytest.raises(ConnectionError, match=rf"bucket/a\.parquet: {fault}, from byte 4 on"):
            file.read_at(10, 4)


def test_what_was_read_of_an_object_that_is_written_again_is_not_used(tmp_path):
    """It has the same size and footer, as where there are no statistics: only its time tells."""

    def put(first, seconds):
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        path = write(tmp_path / "a.parquet", {"user": range(first, first + 10)}, **plain)
        os.utime(path, (seconds, seconds))

    put(100, seconds=1)
    retry, layout, users = Retrying(sleep=lambda _: None), layout_of(USERS), np.empty(10, np.int64)
    source = open_source(ParquetSource("a.parquet", filesystem=remote(tmp_path)), USERS, retry=retry)
    fetched = source.fetch(source.groups[0], layout)
    for part in fetched.plan():
        fetched.read(part)
    put(500, seconds=2)
    rows = source.read(source.groups[0], layout, 0, 10, fetched)
    rows.spans().gather(layout.itemsize, np.array([users.ctypes.data]))
    assert users.tolist() == list(range(500, 510))
    assert source.retries == 1


class Store:
    """Row groups of given sizes, of which it counts what was read and not released."""

    def __init__(self, sizes, faults=()):
        self.row_groups = [Numbered(self, number, size, number in faults) for number, size in enumerate(sizes)]
        self.lock = threading.Lock()
        self.held: dict[int, int] = defaultdict(int)
        self.most = 0
        self.planned = 0
        self.reading = 0
        self.gate = threading.Event()
        self.gate.set()

    def hold(self, number, size):
        with self.lock:
            self.held[number] += size
            self.most = max(self.most, sum(self.held.values()))


class Numbered:
    """What `ReadAhead` sees of a row group."""

    def __init__(self, store, number, size, fault):
        self.store, self.number, self.size, self.fault = store, number, size, fault
        self.error = None
        self.finished = 0

    def plan(self):
        self.store.planned += 1
        if self.fault:
            raise TimeoutError(f"row group {self.number}")
        return requests([(0, self.size)], most=10)

    def read(self, part):
        with self.store.lock:
            self.store.reading += 1
        self.store.gate.wait()
        self.store.hold(self.number, part[1] - part[0])
        with self.store.lock:
            self.store.reading -= 1

    def finish(self):
        self.finished += 1

    def fail(self, error):
        self.error = error


@given(
    st.lists(st.integers(0, 60), max_size=40), st.integers(1, 100), st.integers(1, 5), st.sets(st.integers(0, 40)),
    st.integers(0, 2**32), st.integers(1, 3),
)  # fmt: skip
def test_row_groups_come_whole_in_order_and_within_the_bound(sizes, limit, threads, faults, seed, together):
    store = Store(sizes, faults)
    items = [store.row_groups[first : first + together] for first in range(0, len(sizes), together)]
    pool = ReadAhead(limit, threads=threads)
    fetches = pool.over(iter(range(len(items))), lambda item: [*items[item], None])
    seen, waiting = [], []
    rng = random.Random(seed)

    def decode():
        """As decoding threads do: in their order, while others are read."""
        for each in waiting:
            each.wait()
            seen.append(each.item)
            for row_group in items[each.item]:
                whole = row_group.size if row_group.number not in faults else 0
                assert store.held.pop(row_group.number, 0) == whole
                assert (row_group.error is not None) == (row_group.number in faults)
            fetches.release(each)
        waiting.clear()

    for fetch in fetches:
        waiting.append(fetch)
        if rng.random() < 0.5:
            decode()
    decode()
    assert seen == list(range(len(items)))
    largest = max((sum(each.size for each in item if each.number not in faults) for item in items), default=0)
    assert store.most <= pool.peak <= max(limit, largest)
    fetches.close()
    pool.close()


@pytest.mark.parametrize(
    ("limit", "threads", "held", "files"),
    [(100, 24, 100, 34), (1, 8, 10, 9)],
    ids=["many bytes", "no room but for one"],
)
def test_row_groups_are_read_and_files_opened_before_anybody_waits(limit, threads, held, files):
    """So many files are open as were admitted, and as there are threads."""
    store = Store([10] * 50)
    pool = ReadAhead(limit, threads=threads)
    fetches = pool.over(iter(range(50)), lambda item: [store.row_groups[item]])
    next(fetches).wait()
    until(lambda: store.most == held and store.planned == files)
    fetches.close()
    pool.close()
    assert (store.most, store.planned, pool.peak) == (held, files, held)


def test_nobody_waits_for_what_an_ended_pool_does_not_read():
    """Python ends all pools before it ends, while threads still decode."""
    store = Store([10] * 3)
    pool = ReadAhead(10, threads=1)
    fetches = pool.over(iter(range(3)), lambda item: [store.row_groups[item]])
    first, *others = fetches
    first.wait()
    pool.close()
    fetches.release(first)
    for each in others:
        with pytest.raises(CancelledError):
            each.wait()
    fetches.close()


def test_closing_wakes_who_waits_and_ends_the_threads(begun):
    store = Store([10] * 50)
    store.gate.clear()
    pool = ReadAhead(35, threads=2)
    fetches = pool.over(iter(range(50)), lambda item: [store.row_groups[item]])
    waiting = [next(fetches) for _ in range(10)]
    ended = []

    def wait(fetch):
        try:
            fetch.wait()
        except BaseException as error:
            ended.append(type(error).__name__)
        fetches.release(fetch)

    threads = [threading.Thread(target=wait, args=(each,)) for each in waiting]
    for each in threads:
        each.start()
    until(lambda: store.reading == 2, "two row groups are read")
    still = []
    closing = threading.Thread(target=lambda: still.append(fetches.close() or store.reading))
    closing.start()
    for each in threads:
        each.join()  # though the store still holds back every answer
    store.gate.set()
    closing.join()
    pool.close()
    assert ended == ["CancelledError"] * 10
    assert still == [0]
    assert begun("fsdata-io") == []
    assert list(fetches) == []
