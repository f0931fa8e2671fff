"""What a check says of histories: everything that a loader would stop at, with its rows."""

import pytest
from test_check import find, places
from tools_kit import write

from fsdata import AsOf, ParquetSource, Schema, Sequence

SCHEMA = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("row",))


def found(folder, requests=None, **columns):
    """(kind, field, rows) of all findings. columns: of the histories of users 0 to 3, instead of good ones."""
    rows = {"row": [0, 1, 2], "user": [0, 1, 9], "at": [10, 20, 30]} | (requests or {})
    table = {
        "user": [0, 1, 2, 3],
        "item": [[1, 2], [3], [], [4]],
        "action": [[1, 1], [1], [], [1]],
        "ts": [[5, 6], [7], [], [8]],
    }
    main = write(folder / "requests.parquet", rows)
    histories = ParquetSource(write(folder / "histories.parquet", table | columns, group=2))
    join = AsOf(histories, on="user", at="at", time="ts", fields=("item", "action"))
    findings = find(ParquetSource(main, join=join), schema=SCHEMA)
    return [(kind, field, rows) for kind, field, _, _, rows in places(findings)]


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
        "unsorted", "unsorted and far apart", "ragged", "key twice", "null key", "null item", "future", "future in ms",
        "text",
    ],
)  # fmt: skip
def test_faults_of_histories(tmp_path, columns, expected):
    listed = found(tmp_path, {"at": [1000 * PAST if "ms" in str(columns) else 10, 20, 30]}, **columns)
    assert [one for one in listed if one[0] != "data"] == expected


def test_good_histories_pass_and_a_request_needs_a_time(tmp_path):
    assert found(tmp_path) == []
    assert found(tmp_path, {"at": [10, None, 30]}) == [("null", "at", [1])]


def test_events_as_rows_are_checked_with_the_lists_that_only_they_are_made_of(tmp_path):
    """The tables of a source are read by other rules in a check, so its joins are not those that it was made with."""
    columns = {"user": [0, 1], "item": [[1, 2], [3]], "kind": [[4, 5], [6]], "y": [[1, None], [0]]}
    histories = ParquetSource(write(tmp_path / "histories.parquet", columns), defaults={"y": 2})
    join = AsOf(histories, on="user", at="position", fields=("item",))
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("user", "position", "of"), labels=("y",))
    source = join.anchors(columns={"of": "kind"})
    assert find(source, schema=schema) == []
    join = AsOf(ParquetSource(histories.path_list), on="user", at="position", fields=("item",))
    (fault,) = find(join.anchors(columns={"of": "kind"}), schema=schema)
    assert (fault.kind, fault.field) == ("null element", "y")
