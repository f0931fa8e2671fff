"""Rows of a `RowSource`, joined and balanced: as rows of files."""

from pathlib import Path
from typing import Any

import pytest
from data_kit import assert_same, loader_on, write
from test_row_source import GROUP, Rows, table_of
from worlds import shared_world

from fsdata import Balance, Join, ParquetSource, Schema, Sequence

SCHEMA = Schema(context=("user", "group"), sequences=(Sequence("uih", fields=("item", "action"), max_length=4),))


def both_read(rank: int, world_size: int, folder: Path, options: dict[str, Any]) -> int:
    table = table_of(200)
    side = ParquetSource(folder / "users.parquet", defaults={"group": 7})
    given: dict[str, Any] = {
        "defaults": {"user": -1},
        "nulls": {"item": "drop", "action": "drop"},
        "join": [Join(side, on="user", fields=("group",))],
    }
    rows = loader_on(ParquetSource(rows=Rows(table), **given), SCHEMA, shuffle=True, **options)
    files = loader_on(ParquetSource(folder / "rows.parquet", **given), SCHEMA, shuffle=True, **options)
    with rows, files:
        batches = list(rows)
        assert_same(batches, files)
    return len(batches)


@pytest.mark.parametrize("options", [{}, {"balance": Balance()}], ids=["kept", "balanced"])
def test_rows_are_joined_and_balanced_as_those_of_files(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path / "rows.parquet", table_of(200), group=GROUP)
    write(tmp_path / "users.parquet", {"user": list(range(0, 200, 3)), "group": list(range(67))})
    first, second = shared_world(2).run(both_read, tmp_path, options)
    assert first == second > 4
