"""The columns of a history that no option names: which, why, and where none can be told."""

import pytest
from tools_kit import write

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.discover import discover
from freescale_tools.scan.files import open_files

ROWS, SECONDS = 20, 1_700_000_000
LONG, SHORT = [list(range(row % 7)) for row in range(ROWS)], [[1] * (row % 3) for row in range(ROWS)]


def found(folder, sequence=None, **columns):
    write(folder / "a.parquet", columns, group=8)
    return discover(open_files([str(folder)]), sequence)


def test_the_longest_lists_are_the_history_and_the_item_comes_first(tmp_path):
    seen = found(
        tmp_path,
        user_id=range(ROWS),
        user_country=["a", "b"] * (ROWS // 2),
        ts=[SECONDS + row for row in range(ROWS)],
        updated_time=[SECONDS] * ROWS,
        when=LONG,
        item_ids=LONG,
        price=[[each / 2 for each in row] for row in LONG],
        bought=SHORT,
    )
    assert seen.sequences == ("item_ids", "when", "price")
    assert (seen.time, seen.key) == ("ts", "user_id")
    history, aligned, others, of_time, of_key = seen.notes
    assert history == "history: item_ids, the longest lists"
    assert aligned == "aligned with item_ids: when, price, lists of equal length in all 20 rows, 0 to 6 long, mean 2.9"
    assert others == "other lists, not as long as those of item_ids: bought"
    assert (of_time[:5], of_time.rpartition("; ")[2]) == ("time:", "others that could be it: updated_time")
    assert (of_key[:4], of_key.rpartition("; ")[2]) == ("key:", "others that could be it: user_country")


def test_fields_of_structs_have_paths(tmp_path):
    events = [[{"ts": SECONDS, "item_id": each} for each in row] for row in LONG]
    users = [{"userId": row % 3} for row in range(ROWS)]
    seen = found(tmp_path, session=events, who=users, candidates=[[1] * 9] * ROWS)
    assert (seen.sequences, seen.time, seen.key) == (("session.item_id", "session.ts"), None, "who.userId")


def test_of_lists_that_are_about_as_long_the_one_of_items_counts(tmp_path):
    reverse = LONG[::-1]
    seen = found(tmp_path, views=LONG, items=reverse)
    assert seen.sequences == ("items",)
    assert seen.notes[0] == "history: items, by its name; others are about as long"
    assert seen.notes[1] == "other lists, not as long as those of items: views"
    text = (
        r"^name the history with --sequence: .* about as long. views: lists, .*; clicked: lists, 0 to 6 long, mean 2.9$"
    )
    with pytest.raises(UsageError, match=text):
        found(tmp_path, views=LONG, clicked=reverse)


def test_lists_aligned_with_a_named_one(tmp_path):
    columns = {"views": LONG, "items": LONG, "bought": SHORT, "amounts": SHORT}
    assert found(tmp_path, "bought", **columns).sequences == ("bought", "amounts")
    assert found(tmp_path, "views", **columns).sequences == ("views", "items")


def test_files_without_a_history(tmp_path):
    with pytest.raises(UsageError, match=r"^no column is the list of a history: user: whole numbers, .* --sequence$"):
        found(tmp_path, user=range(ROWS))
    write(tmp_path / "b.parquet", {"name": ["a"], "item": [1]})
    with pytest.raises(UsageError, match=r"^the history cannot be found: .* several sources.* Or name the history"):
        found(tmp_path, user=range(ROWS), items=LONG, others=LONG)


def test_an_only_list_column_is_the_history_whatever_it_holds(tmp_path):
    bits = [[bytes(row)] for row in range(ROWS)]
    seen = found(tmp_path, user=range(ROWS), what=bits)
    assert (seen.sequences, seen.key) == (("what",), "user")
    assert seen.notes[0] == "history: what, the only list column"
    write(tmp_path / "b.parquet", {"user": range(ROWS), "what": LONG})
    seen = found(tmp_path, user=range(ROWS), what=bits)
    assert (seen.sequences, seen.key) == (("what",), None)
    assert seen.notes[0].startswith("history: what, the only list column; of others nothing is known: ")
