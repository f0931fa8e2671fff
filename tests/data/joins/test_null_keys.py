"""Columns of type null in side tables, and in files that come later."""

import pyarrow as pa
import pytest
from data_kit import read, write

from fsdata import Follow, Join, ParquetSource, Schema, SchemaError


def test_keys_and_fields_of_side_tables(tmp_path):
    for number, key in enumerate((pa.array([1, 2]), pa.nulls(2))):
        write(tmp_path / "main" / f"{number}.parquet", {"key": key})
        write(tmp_path / "side" / f"{number}.parquet", {"key": [2 * number + 1, 2 * number + 2], "city": key})
    join = Join(ParquetSource(tmp_path / "side", defaults={"city": -1}), on="key", fields=("city",))
    samples = read(ParquetSource(tmp_path / "main", join=join), Schema(context=("city",)))
    assert samples == [{"city": 1}, {"city": 2}, {"city": -1}, {"city": -1}]


def test_new_files_cannot_make_text_of_what_was_null(tmp_path):
    """The batches that were made of earlier files have integers."""
    for name, column in (("a", pa.nulls(1)), ("b", pa.array(["x"]))):
        write(tmp_path / f"{name}.parquet", {"row": [1], "name": column})
    source = ParquetSource(tmp_path, follow=Follow(idle="0.1s", every="0.01s", at_most=1), nulls={"name": "drop"})
    schema = Schema(context=("row",), passthrough=("name",))
    with pytest.raises(SchemaError, match="name: is string in some files and null in the first: one of both is needed"):
        read(source, schema, batch_size=1)
