"""Tables are joined by keys of text."""

import pyarrow as pa
import pytest
from data_kit import column, lists, read, write

from fsdata import AsOf, Join, Lookup, ParquetSource, Schema, Sequence, text_key


@pytest.mark.parametrize("kind", [Join, AsOf, Lookup])
def test_tables_are_joined_by_keys_of_text(tmp_path, kind):
    key = {"user": text_key("user")}
    rows = write(tmp_path / "rows.parquet", {"user": ["bob", None, "ann", "eve"], "now": [5, 5, 5, 5]})
    age = lists(pa.int64(), [30], [40]) if kind is AsOf else [30, 40]
    side = ParquetSource(
        write(tmp_path / "side.parquet", {"user": ["ann", "bob"], "age": age, "at": [[1], [2]]}), columns=key
    )
    if kind is AsOf:
        join = AsOf(side, on="user", at="now", time="at", fields=("age",))
        schema = Schema(sequences=(Sequence("uih", ("age",)),))
    elif kind is Join:
        side = ParquetSource(side.paths, columns=key, defaults={"age": 0})
        join, schema = Join(side, on="user", fields=("age",), missing="mask"), Schema(context=("age",))
    else:
        join, schema = Lookup(side, on="user", fields=("age",)), Schema(context=("user", "age"))
    defaults = {"user": -1} if kind is Lookup else {}
    source = ParquetSource(rows, columns=key, join=join, defaults=defaults)
    assert column(read(source, schema), "age") == ([[40], [], [30], []] if kind is AsOf else [40, 0, 30, 0])
