"""A table that processes share takes no `map`."""

import pytest
from test_sources import same

from fsdata import AsOf, ParquetSource, SchemaError


def test_a_table_that_processes_share_takes_no_map():
    with pytest.raises(SchemaError, match="the source of this AsOf takes no map"):
        AsOf(ParquetSource("a.parquet", map=same), on="user", at="at", time="time", fields=("item",))
