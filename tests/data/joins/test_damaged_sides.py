"""Damage in the files of a side table."""

import pyarrow.parquet as pq
import pytest
from data_kit import load, rows_of, users, write
from test_damage import flip

from fsdata import Join, ParquetSource, Schema


@pytest.fixture
def flipped(tmp_path):
    """Three row groups of 1,000 rows, the second damaged near its end."""
    pages = {"use_dictionary": False, "data_page_size": 800, "write_batch_size": 100}
    path = users(tmp_path, "a.parquet", *range(3000), group=1000, **pages)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 40)
    return path


def test_a_side_tables_losses_are_listed_too(tmp_path, flipped):
    path = write(tmp_path / "main.parquet", {"user": [5, 1005]})
    side = ParquetSource(flipped, columns={"age": "user"}, defaults={"age": -1}, on_error="skip")
    join = Join(side, on="user", fields=("age",))
    batches, loader = load(ParquetSource(path, join=[join]), Schema(context=("user", "age")))
    assert rows_of(batches, "age") == [5, -1]
    assert [entry.row_group for entry in loader.skipped] == [1]
