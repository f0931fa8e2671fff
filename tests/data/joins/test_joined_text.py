"""Text in the keys of joins, and in joined fields."""

import pyarrow as pa
import pytest
from data_kit import read, write

from fsdata import Join, ParquetSource, Schema, SchemaError


def test_a_join_key_can_be_passed_through_and_a_joined_field_cannot(tmp_path):
    rows = write(tmp_path / "rows.parquet", {"id": pa.array([5, 7, 5])})
    side = write(tmp_path / "side.parquet", {"id": pa.array([7, 5]), "age": pa.array([70, 50])})
    schema = Schema(context=("age",), passthrough=("id",))
    join = Join(ParquetSource(side), on="id", fields=("age",))
    assert read(ParquetSource(rows, join=[join]), schema) == [{"age": age, "id": age // 10} for age in (50, 70, 50)]
    with pytest.raises(SchemaError, match="Join brings id, and passthrough fields are columns of the rows themselves"):
        read(ParquetSource(rows, join=[Join(ParquetSource(side), on="age", fields=("id",))]), schema)
