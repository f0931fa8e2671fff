"""Tables that are wider than the window: text is folded, numbers are whole, columns that have no room are named."""

import re

import pytest

from freescale_tools.console.terminal import Terminal

COLUMNS = ["file name", "rows", "events of all", "note", "MB"]
ROWS = [
    ["data/part-00000-of-00128.parquet", 123_456_789, 987_654_321_012, "read in one piece", 1234.5],
    ["b", 1, 2, None, 0.25],
]


def printed(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    Terminal().table("Files", COLUMNS, ROWS)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 80, 100, 140])
def test_numbers_are_never_split_and_lines_fit(capsys, monkeypatch, width):
    shown = printed(capsys, monkeypatch, width)
    table = [line for line in shown.splitlines() if line[:1] in "┏┃┡│└"]
    assert all(len(line) <= max(width, 20) for line in table), shown
    left_out = re.search(r"Left out, as the window is narrow: (.*)\.", shown)
    gone = left_out[1].split(", ") if left_out else []
    for name, cell in (("rows", "123,456,789"), ("events of all", "987,654,321,012"), ("MB", "1,234")):
        assert (cell in shown) != (name in gone), (name, shown)
    assert [name for name in COLUMNS if name in gone] == COLUMNS[len(COLUMNS) - len(gone) :], "the last ones"
    assert (width >= 80) == (not gone), shown


def test_a_pipe_is_at_least_120_wide(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    Terminal().table("Files", COLUMNS, ROWS)
    shown = capsys.readouterr().out
    assert "data/part-00000-of-00128.parquet" in shown, "in one piece"


def test_a_table_without_rows_or_columns_is_no_error(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    Terminal().table("None", [], [])
    Terminal().table("Empty", COLUMNS, [])
    assert "file" in capsys.readouterr().out
