"""Of remote files, only the leaves that are needed are read."""

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from data_kit import as_python, load, write
from test_sources_paths import table

from fsdata import ParquetSource, Schema, Sequence


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet", table(), group=3)


@pytest.mark.parametrize("decoder", ["pages", "pyarrow"])
def test_of_a_remote_file_only_leaves_that_are_needed_are_read(tmp_path, decoder):
    rng = np.random.default_rng(0)
    sessions = [[{"item_id": n, "image": rng.bytes(1 << 20), "price": n / 2}] * 2 for n in range(3)]
    path = write(tmp_path / "a.parquet", {"session": sessions, "row": range(3)}, use_dictionary=False)
    memory = fsspec.filesystem("memory")
    memory.pipe("/leaves/a.parquet", path.read_bytes())
    columns = {"item_id": "session.item_id", "price": "session.price"}
    source = ParquetSource("memory://leaves/a.parquet", columns=columns, decoder=decoder)
    schema = Schema(sequences=(Sequence("session", ("item_id",), floats=("price",)),))
    (batch,), loader = load(source, schema)
    remote = loader.stats()["remote"]
    memory.rm("/leaves", recursive=True)
    assert as_python(batch) == [{"item_id": [n, n], "price": [n / 2, n / 2]} for n in range(3)]
    chunks = [pq.read_metadata(path).row_group(0).column(leaf) for leaf in (0, 2)]
    assert remote["bytes"] == sum(chunk.total_compressed_size for chunk in chunks)
    assert remote["unplanned_reads"] == 0
