"""Encrypted files: what a catalog says of them."""

import pytest
from data_kit import found, read
from test_encrypted import SECRET, write_encrypted

from fsdata import CorruptFileError, ParquetSource
from fsdata.catalog.catalog import EMPTY, updated
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.lake.catalog_file import write_catalog


@pytest.fixture
def path(tmp_path):
    write_encrypted(tmp_path / "a.parquet", ["secret"])
    return tmp_path / "a.parquet"


def test_a_catalog_knows_encrypted_columns(path):
    files = discover([str(path)], None)
    out = path.with_name("catalog")
    write_catalog(updated(EMPTY, files, threads=1, retry=Retrying(), bounds_of=["user"]).catalog, out)
    assert found(catalog=out) == [1, 2, 3]
    with pytest.raises(CorruptFileError, match="column 'secret' is encrypted"):
        read(ParquetSource(catalog=out), SECRET)
