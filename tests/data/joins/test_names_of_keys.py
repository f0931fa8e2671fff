"""Keys of joins with dots in their names."""

import fsspec
import pytest
from data_kit import column, read, write
from test_names import COLUMNS, INNER

from fsdata import Join, ParquetSource, Schema


@pytest.fixture(params=["pages", "pyarrow"])
def source(request, tmp_path):
    def made(table, **options):
        path = write(tmp_path / "f.parquet", table, group=1)
        if options.pop("remote", False):
            memory = fsspec.filesystem("memory")
            memory.pipe("/names.parquet", path.read_bytes())
            return ParquetSource("memory://names.parquet", decoder=request.param, **options)
        return ParquetSource(path, decoder=request.param, **options)

    return made


def test_keys_of_joins_with_dots(source, tmp_path):
    side = write(tmp_path / "side.parquet", {"a": INNER, "a.b": [3, 1, 2], "v": [30, 10, 20]})
    joined = source(COLUMNS["struct first"], join=[Join(ParquetSource(side), on="a.b", fields=("v",))])
    assert column(read(joined, Schema(context=("v",))), "v") == [10, 20, 30]
