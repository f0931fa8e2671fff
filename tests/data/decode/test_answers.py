"""What a file system does behind our back: every answer is right, or an error that names the file.

A played store answers reads with fewer bytes than were asked for, with none, or as if all had come although the end of
the memory was left as it was, which Arrow's S3 does. A played disk loses the end of a file, or puts zeros into it,
before or while it is read.
"""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from fsdata import FreeScaleDataLoader, ParquetSource, Retry, Schema, Sequence
from fsdata.catalog import footers, retry
from fsdata.catalog.listing.remote_file import RemoteFile

ROWS, GROUP = 60, 20
SCHEMA = Schema(sequences=(Sequence("uih", ("item",)), Sequence("few", ("tag",))), context=("row",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("answers")
    rows = np.arange(ROWS)
    table = pa.table(
        {
            "row": rows,
            "item": pa.array([np.arange(row, row + 40) for row in rows]),
            "tag": pa.array([[row, row + 1] for row in rows]),
        }
    )
    # no room is left between pages that a checksum covers
    pq.write_table(table, made / "a.parquet", row_group_size=GROUP, data_page_size=400, write_page_checksum=True)
    return made


def whole(batches):
    """The rows; every one of them has what was written."""
    rows = [row for batch in batches for row in batch.features["row"].values().tolist()]
    for batch in batches:
        mine = batch.features["row"].values().numpy()
        assert np.array_equal(batch.features["item"].values().numpy(), (mine[:, None] + np.arange(40)).ravel())
        assert np.array_equal(batch.features["tag"].values().numpy(), (mine[:, None] + np.arange(2)).ravel())
    return rows


class Answers:
    """How reads are answered, one after another; `all` that are left without a fault.

    A fault: "short" or "stale", and the part of the bytes that come.
    """

    def __init__(self, faults):
        self.left = iter(faults)

    def of(self, data):
        """(the bytes that come, whether as many are said to have come as were asked for)"""
        kind, part = next(self.left, ("", 1.0))
        return data[: min(int(part * len(data)), len(data) - 1)] if kind else data, kind != "short"


class Handle:
    """Of Arrow, with this store's answers."""

    def __init__(self, inner, answers):
        self.inner, self.answers = inner, answers
        self.size, self.close = inner.size, inner.close

    def get_stream(self, offset, count):
        data, said = self.answers.of(self.inner.read_at(count, offset))
        return Stream(data, count if said else len(data))


class Stream:
    def __init__(self, data, said):
        self.data, self.said = data, said

    def readinto(self, memory):
        memory[: len(self.data)] = self.data
        return self.said


class Store(LocalFileSystem):
    """Of fsspec, with this store's answers; it says truly how much came."""

    protocol = "played"
    cachable = False

    def cat_file(self, path, start=None, end=None, **options):
        return self.answers.of(super().cat_file(path, start, end, **options))[0]


faults = st.one_of(st.just(("", 1.0)), st.tuples(st.sampled_from(["short", "stale"]), st.sampled_from([0.0, 0.5, 1.0])))


@given(
    st.lists(faults, max_size=12),
    st.booleans(),
    st.sampled_from(["arrow", "fsspec"]),
    st.sampled_from(["pages", "pyarrow"]),
    st.sampled_from([0, "1MB"]),
    st.sampled_from(["raise", "skip"]),
)
def test_a_store_that_answers_short(folder, given_faults, goes_on, system, decoder, read_ahead, on_error):
    """What does not go on is made good by reading again; no row of a healthy file is left out."""
    goes_on = goes_on and any(kind for kind, _ in given_faults)
    answers = Answers(itertools.cycle(given_faults) if goes_on else given_faults)
    if system == "arrow":
        place = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
        path = "a.parquet"
    else:
        place, path = Store(), f"{folder}/a.parquet"
        place.answers = answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "_FIRST_WAIT_S", 1e-6)
        patch.setattr(retry, "_GROWTH", 1)
        patch.setattr(footers, "RemoteFile", lambda file, handle: RemoteFile(file, Handle(handle, answers)))
        source = ParquetSource(path, filesystem=place, decoder=decoder, on_error=on_error, retry=Retry(tries=30))
        said = ""
        try:
            with FreeScaleDataLoader(source, SCHEMA, batch_size=7, num_threads=1, read_ahead=read_ahead) as loader:
                assert whole(list(loader)) == list(range(ROWS))
                assert loader.skipped == []
        except ConnectionError as error:
            said = str(error)
    assert not said or (goes_on and "a.parquet: cannot be read after 30 tries" in said)


@given(
    st.integers(0, 1 << 20),
    st.sampled_from(["cut", "zeros", "empty"]),
    st.integers(1, 300),
    st.sampled_from(["before", "open", "read"]),
    st.sampled_from(["pages", "pyarrow"]),
    st.sampled_from(["raise", "skip"]),
)
def test_a_disk_that_loses_bytes(folder, at, kind, size, when, decoder, on_error):
    raw, path = (folder / "a.parquet").read_bytes(), folder / "b.parquet"
    path.write_bytes(raw)
    at %= len(raw)

    def lose():
        with path.open("r+b") as file:
            if kind == "zeros":
                file.seek(at)
                file.write(bytes(min(size, len(raw) - at)))
            else:
                file.truncate(at if kind == "cut" else 0)

    def read():
        if when == "before":
            lose()
        source = ParquetSource(path, decoder=decoder, on_error=on_error)
        with FreeScaleDataLoader(source, SCHEMA, batch_size=7, num_threads=1, prefetch=1) as loader:
            if when == "open":
                lose()
            loop = iter(loader)
            batches = list(itertools.islice(loop, 1))
            if when == "read":
                lose()
            return whole(batches + list(loop)), loader.skipped

    try:
        rows, skipped = read()
    except OSError as error:
        said = str(error)
    else:
        left = {each.row_group for each in skipped}
        assert on_error == "skip" or not left
        assert rows == [row for row in range(ROWS) if row // GROUP not in left]
        return
    assert "b.parquet" in said
    assert on_error == "raise" or "none of its 1 files" in said
