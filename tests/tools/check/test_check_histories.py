"""What a check says of histories: everything that a loader would stop at, with its rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.check.source_check import SourceCheck
from freescale_tools.console.terminal import Terminal
from fsdata import AsOf, ParquetSource, Schema, Sequence

SCHEMA = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("row",))


def found(folder: Path, requests: dict[str, Any] | None = None, **columns: Any) -> list[tuple[str, str | None, Any]]:
    """(kind, field, rows) of all findings. columns: of the histories of users 0 to 3, instead of good ones."""
    rows = {"row": [0, 1, 2], "user": [0, 1, 9], "at": [10, 20, 30]} | (requests or {})
    table = {
        "user": [0, 1, 2, 3],
        "item": [[1, 2], [3], [], [4]],
        "action": [[1, 1], [1], [], [1]],
        "ts": [[5, 6], [7], [], [8]],
    }
    pq.write_table(pa.table(rows), folder / "requests.parquet")
    pq.write_table(pa.table(table | columns), folder / "histories.parquet", row_group_size=2)
    join = AsOf(ParquetSource(folder / "histories.parquet"), on="user", at="at", time="ts", fields=("item", "action"))
    check = SourceCheck(ParquetSource(folder / "requests.parquet", join=join), SCHEMA, index=0)
    with Terminal().progress("checking") as progress:
        listed = check.run(progress)
    check.close()
    return [(one.kind, one.field, None if one.rows is None else one.rows.tolist()) for one in listed]


def test_good_histories_pass(tmp_path: Path) -> None:
    assert found(tmp_path) == []


PAST, FUTURE = 1_600_000_000, 5_000_000_000  # the years 2020 and 2128


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"ts": [[6, 5], [1], [], [8]]}, [("unsorted", "ts", [0])]),
        ({"ts": [[2**62, -(2**62) - 1], [1], [], [8]]}, [("unsorted", "ts", [0])]),
        ({"ts": [[5, 6], [7, 8], [], [8]]}, [("ragged", "histories", [1])]),
        ({"user": [0, 1, 1, 3]}, [("key", "user", None)]),
        ({"user": [0, None, 2, 3]}, [("key", "user", [1])]),
        ({"item": [[1, None], [3], [], [4]]}, [("null element", "item", [0])]),
        ({"ts": [[PAST, FUTURE], [PAST], [], [PAST]]}, [("future", "ts", [0])]),
        ({"ts": [[1000 * PAST, 1000 * FUTURE], [1000 * PAST], [], [1000 * PAST]]}, [("future", "ts", [0])]),
        ({"action": ["a", "b", "c", "d"]}, [("mismatch", "action", None)]),
    ],
    ids=[
        "unsorted",
        "unsorted and far apart",
        "ragged",
        "key twice",
        "null key",
        "null item",
        "future",
        "future in ms",
        "text",
    ],
)
def test_faults_of_histories(tmp_path: Path, columns: dict[str, Any], expected: list[Any]) -> None:
    listed = found(tmp_path, {"at": [1000 * PAST if "ms" in str(columns) else 10, 20, 30]}, **columns)
    assert [one for one in listed if one[0] != "data"] == expected


def test_a_request_without_a_time(tmp_path: Path) -> None:
    assert found(tmp_path, {"at": [10, None, 30]}) == [("null", "at", [1])]
