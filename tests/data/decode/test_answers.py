"""A disk that loses the end of a file, or puts zeros into it: every answer is right, or an error that names the file.

`test_read_ahead.py` and `test_object_store.py` have stores that answer with fewer bytes than were asked for.
"""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import DECODERS
from hypothesis import given
from hypothesis import strategies as st

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

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


@given(
    st.integers(0, 1 << 20),
    st.sampled_from(["cut", "zeros", "empty"]),
    st.integers(1, 300),
    st.sampled_from(["before", "open", "read"]),
    st.sampled_from(DECODERS),
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
