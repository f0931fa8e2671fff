"""Types of files that come later."""

import polars as pl
import pyarrow as pa
import pytest
from data_kit import USERS, found, read, write
from test_sources_types import HASHED, IDS, files

from fsdata import Follow, ParquetSource, SchemaError

ONE_BY_ONE = Follow(idle="0.1s", every="0.01s", at_most=1)


def test_files_that_come_later_have_the_type_of_those_before(tmp_path):
    files(tmp_path, pa.int32(), pa.int64())
    with pytest.raises(SchemaError, match="'user' is int64 in some files and int32 in the first"):
        read(ParquetSource(tmp_path, columns=HASHED, follow=ONE_BY_ONE), USERS, batch_size=1)


def test_later_files_may_lack_a_column_whose_type_is_declared(tmp_path):
    write(tmp_path / "0.parquet", {"user": IDS, "shop": ["a", "b"]})
    write(tmp_path / "1.parquet", {"user": IDS})
    options = {"types": {"shop": "string"}, "columns": {"user": pl.col("user") + 1}}
    assert found(tmp_path, follow=ONE_BY_ONE, **options) == [-6, 6] * 2
