"""What a command reads from options, prints and writes, and how it ends."""

import json
import re

import numpy as np
import pytest
import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import write_report, write_whole
from freescale_tools.console.options import floats, numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report.blocks import Report


def test_json_alone_goes_to_standard_output(capsys):
    with Terminal(json=True) as terminal, terminal.progress("reading", rows=3) as progress:
        progress.advance(rows=3)
        terminal.say("for people")
        terminal.table("title", ["a"], [[1]])
        terminal.result({"a": np.arange(2), "b": np.float64(0.5)})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": [0, 1], "b": 0.5, "findings": []}
    assert err == ""


def test_findings_end_with_status_1_and_stand_in_the_document(capsys):
    def command() -> None:
        with Terminal(json=True) as terminal:
            terminal.finding("[x.parquet] is cut")
            terminal.result({})

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"findings": ["[x.parquet] is cut"]}
    assert "found: [x.parquet] is cut" in err


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("no [such] file"), 2), (CommandFailed("it broke"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_end_with_their_status(capsys, error, status):
    with pytest.raises(typer.Exit) as ended, Terminal():
        raise error
    assert ended.value.exit_code == status
    out, err = capsys.readouterr()
    assert out == ""
    assert (str(error) or "interrupted") in err


def test_other_errors_pass():
    with pytest.raises(LookupError), Terminal():
        raise LookupError


def test_people_get_tables_with_names_as_they_are(capsys):
    """Brackets and words between colons mean something to rich."""
    odd = "[red]a[/red] module:x: b"
    with Terminal() as terminal:
        terminal.say(odd)
        terminal.table(odd, ["rows", "share", odd], [[12345, 0.123456, odd], [None, 1e6, None]], notes=[odd])
        terminal.table("no columns", [], [])
        terminal.result({"not": "shown"})
    out, _ = capsys.readouterr()
    assert out.count(odd) == 5
    for text in ("12,345", "0.1235", "1,000,000", " - "):
        assert text in out
    assert "not" not in out


COLUMNS = ["file name", "rows", "events of all", "note", "MB"]
ROWS = [
    ["data/part-00000-of-00128.parquet", 123_456_789, 987_654_321_012, "read in one piece", 1234.5],
    ["b", 1, 2, None, 0.25],
]


def test_numbers_are_never_split_and_lines_fit(capsys, monkeypatch):
    for width in range(20, 141):
        monkeypatch.setenv("COLUMNS", str(width))
        Terminal().table("Files", COLUMNS, ROWS)
        shown = capsys.readouterr().out
        table = [line for line in shown.splitlines() if line[:1] in "┏┃┡│└"]
        assert all(len(line) <= width for line in table), shown
        left_out = re.search(r"Left out, as the window is narrow: (.*)\.", shown)
        gone = left_out[1].split(", ") if left_out else []
        for name, cell in (("rows", "123,456,789"), ("events of all", "987,654,321,012"), ("MB", "1,234")):
            assert (cell in shown) != (name in gone), (name, shown)
        assert [name for name in COLUMNS if name in gone] == COLUMNS[len(COLUMNS) - len(gone) :], "the last ones"
    assert gone == []


def test_a_pipe_is_at_least_120_wide(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    Terminal().table("Files", COLUMNS, ROWS)
    assert "data/part-00000-of-00128.parquet" in capsys.readouterr().out, "in one piece"


def test_floats_of_an_event_or_of_columns():
    for given, found in (
        (None, None),
        (["128"], 128),
        (["item=128"], {"item": 128}),
        (["item=128,action=16", "a=b=8"], {"item": 128, "action": 16, "a=b": 8}),
    ):
        assert floats(given) == found
    for given in (["x"], ["0"], ["1,2"], ["item=0"], ["item="], ["=8,item=8"], ["a=1", "a=2"], [""]):
        with pytest.raises(UsageError, match="as in item=128,action=16"):
            floats(given)


def test_an_interrupted_write_leaves_the_file_of_before(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "before")

    class Interrupted(type(path)):
        def replace(self, target):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(Interrupted(path), "after")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.json", "before")]


def test_reports_of_several_commands_share_a_folder(tmp_path):
    folder = tmp_path / "new" / "folder"
    for name in ("profile", "collisions"):
        write_report({"kind": name, "counts": np.arange(2)}, Report(title=f"page of {name}"), folder, name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "collisions.html", "collisions.json", "profile.html", "profile.json",
    ]  # fmt: skip
    assert json.loads((folder / "profile.json").read_text()) == {"kind": "profile", "counts": [0, 1]}
    assert "page of profile" in (folder / "profile.html").read_text()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CommandFailed, match=r"cannot write to .*file.below"):
        write_report({"kind": "profile"}, Report(title=""), tmp_path / "file" / "below", "profile")


def test_a_default_folder_keeps_earlier_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = [write_report({"run": run}, Report(title=""), None, "profile") for run in range(3)]
    assert said[2] == "written to freescale-report/profile-3.html and freescale-report/profile-3.json"
    found = {path.name: json.loads(path.read_text())["run"] for path in (tmp_path / "freescale-report").glob("*.json")}
    assert found == {"profile.json": 0, "profile-2.json": 1, "profile-3.json": 2}
    write_report({"run": 3}, Report(title=""), tmp_path / "freescale-report", "profile")
    assert json.loads((tmp_path / "freescale-report" / "profile.json").read_text()) == {"run": 3}


def test_what_is_skipped_is_told(capsys):
    skipped = [
        {"file": "a.parquet", "row_group": None, "rows": 0, "reason": "cut"},
        {"file": "b.parquet", "row_group": 3, "rows": 1200, "reason": "damaged"},
    ]
    Terminal().skipped(skipped)
    told = capsys.readouterr().err
    assert "a.parquet: cut\n" in told
    assert "b.parquet, row group 3: damaged (1,200 rows left out)" in told


def test_numbers():
    assert numbers(None, "--ranks") is None
    assert numbers(["64,8", "512", "8"], "--ranks") == [8, 64, 512]
    for wrong, message in (
        (["8,x"], "8,x: numbers joined"),
        (["0"], "must be at least 1, got 0"),
        (["8,"], "joined by commas"),
    ):
        with pytest.raises(UsageError, match=message):
            numbers(wrong, "--ranks")
