"""Histories whose events are structs."""

import pyarrow as pa
from data_kit import read, write
from test_sources_paths import SESSIONS

from fsdata import AsOf, ParquetSource, Schema, Sequence


def test_histories_of_structs(tmp_path):
    times = [[{**event, "ts": 10 * n} for n, event in enumerate(session)] for session in SESSIONS]
    write(tmp_path / "events.parquet", {"user": [1, 2, 3, 4], "events": pa.array(times)})
    write(tmp_path / "rows.parquet", {"user": [4, 1], "now": [15, 5]})
    columns = {"item_id": "events.item_id", "ts": "events.ts", "price": "events.price"}
    as_of = AsOf(
        ParquetSource(tmp_path / "events.parquet", columns=columns),
        on="user",
        at="now",
        time="ts",
        fields=("item_id", "price"),
    )
    schema = Schema(sequences=(Sequence("uih", ("item_id",), floats=("price",)),), context=("user",))
    assert read(ParquetSource(tmp_path / "rows.parquet", join=as_of), schema) == [
        {"user": 4, "item_id": [4, 5], "price": [3.5, 3.5]},
        {"user": 1, "item_id": [1], "price": [0.5]},
    ]
