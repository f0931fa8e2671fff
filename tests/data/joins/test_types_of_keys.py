"""Keys of joined tables are hashes of one type."""

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, lists, read, write

from fsdata import AsOf, Join, ParquetSource, Schema, SchemaError, Sequence


@pytest.mark.parametrize("join", [Join, AsOf])
def test_keys_of_joined_tables_are_hashes_of_one_type(tmp_path, join):
    key = {"user": pl.col("user").hash(seed=3).reinterpret(signed=True)}
    rows = write(tmp_path / "rows.parquet", {"user": ["7", None, "5"], "now": [9, 9, 9]})
    write(tmp_path / "side.parquet", {"user": pa.array([5, 7]), "age": lists(pa.int64(), [50], [70]), "at": [[1], [1]]})

    def ages(types):
        side = ParquetSource(tmp_path / "side.parquet", columns=key, types=types)
        if join is AsOf:
            with_side = AsOf(side, on="user", at="now", time="at", fields=("age",))
        else:
            with_side = Join(side, on="user", fields=("age",))
        schema = Schema(sequences=(Sequence("ages", ("age",)),), context=("now",))
        source = ParquetSource(rows, columns=key, join=with_side)
        return column(read(source, schema), "age")

    with pytest.raises(
        SchemaError, match=r"key 'user' is a hash, and its column 'user' is text in the rows and .*int64"
    ):
        ages({})
    if join is AsOf:
        assert ages({"user": "string"}) == [[70], [], [50]]  # the null key has no history
