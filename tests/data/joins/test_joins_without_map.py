"""Joins that take no `map`."""

import pytest
from test_sources import same

from fsdata import AsOf, Join, ParquetSource, SchemaError


def test_joins_that_take_no_map():
    with pytest.raises(SchemaError, match="the source of this AsOf has no map"):
        AsOf(ParquetSource("a.parquet", map=same), on="user", at="at", time="time", fields=("item",))
    with pytest.raises(SchemaError, match="the source of this Join has no map"):
        Join(ParquetSource("a.parquet", map=same), on="user", fields=("age",), bucketed=4)
