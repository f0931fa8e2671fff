"""Lists of structs, decoded from their pages."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from data_kit import load, read, write
from test_sources_paths import table

from fsdata import ParquetSource, Schema, Sequence


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet", table(), group=3)


@pytest.mark.parametrize("required", [False, True])
def test_sessions_are_decoded_from_their_pages(tmp_path, required):
    """Levels of three bits, in runs and in groups of eight, that no byte begins with; as by pyarrow."""
    rng = np.random.default_rng(0)
    lengths = [int(n) if n < 40 else 0 for n in rng.integers(0, 60, 400)]
    sessions = [
        None if rng.random() < 0.1 and not required else [{"item_id": i, "price": i / 2} for i in range(n)]
        for n in lengths
    ]
    event = pa.struct([pa.field("item_id", pa.int32(), not required), pa.field("price", pa.float64(), not required)])
    kind = pa.list_(pa.field("element", event, not required))
    schema = pa.schema([pa.field("session", kind, not required), ("row", pa.int64())])
    table = pa.table({"session": pa.array(sessions, kind), "row": range(400)}, schema)
    path = write(tmp_path / "a.parquet", table, group=130, data_page_size=512, compression="zstd")
    columns = {"item_id": "session.item_id", "price": "session.price"}
    defaults = {"item_id": 0, "price": 0}
    samples = Schema(sequences=(Sequence("session", ("item_id",), floats=("price",)),))
    for condition in (None, pl.col("row") % 97 < 9):
        ours, theirs = (
            ParquetSource(path, columns=columns, defaults=defaults, decoder=decoder, filter=condition)
            for decoder in ("pages", "pyarrow")
        )
        shuffled = {"batch_size": 64, "seed": 1, "shuffle": True}
        assert read(ours, samples, **shuffled) == read(theirs, samples, **shuffled)
    batches, loader = load(ParquetSource(path, columns=columns, defaults=defaults, decoder="pages"), samples)
    assert sum(map(len, batches)) == 400
    assert loader.describe()[0]["decoder"]["chunks"] == 8
