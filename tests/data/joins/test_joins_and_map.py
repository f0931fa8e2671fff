"""A source with joins and a `map`."""

import pyarrow as pa
import pyarrow.compute as pc
from data_kit import read, write
from test_map import changed

from fsdata import Join, ParquetSource, Schema


def test_keys_of_joins_and_joined_fields(tmp_path):
    rows = write(tmp_path / "rows.parquet", {"key": pa.array([1, 2]), "row": pa.array([10, 20])})
    side = write(tmp_path / "side.parquet", {"key": pa.array([2, 4]), "age": pa.array([5, 6])})

    def of_rows(batch):
        return changed(batch, key=pc.multiply(batch["key"], 2), row=pc.add(batch["row"], 1))

    def of_side(batch):
        return changed(batch, age=pc.multiply(batch["age"], 100))

    join = Join(ParquetSource(side, map=of_side), on="key", fields=("age",))
    got = read(ParquetSource(rows, join=[join], map=of_rows), Schema(context=("row", "age")))
    assert got == [{"row": 11, "age": 500}, {"row": 21, "age": 600}]
