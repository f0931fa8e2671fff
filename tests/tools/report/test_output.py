"""Files that are whole or not there, and options that are read alike."""

import json

import numpy as np
import pytest

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import write_whole
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report import write as output
from freescale_tools.report.write import tell_skipped, write_report


def test_an_interrupted_write_leaves_the_file_of_before(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_whole(path, "before")

    class Interrupted(type(path)):
        def replace(self, target):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(Interrupted(path), "after")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.json", "before")]


def test_a_report_is_two_files(tmp_path, monkeypatch):
    monkeypatch.setattr("freescale_tools.report.page.render", lambda page: f"page of {page}")
    write_report({"kind": "profile", "counts": np.arange(2)}, "profile", tmp_path / "new" / "folder", "profile")
    found = {path.name: path.read_text() for path in (tmp_path / "new" / "folder").iterdir()}
    assert found.keys() == {"profile.json", "profile.html"}
    assert json.loads(found["profile.json"]) == {"kind": "profile", "counts": [0, 1]}
    assert found["profile.html"] == "page of profile"


def test_a_default_folder_keeps_earlier_reports(tmp_path, monkeypatch):
    monkeypatch.setattr("freescale_tools.report.page.render", lambda page: f"page of {page}")
    monkeypatch.chdir(tmp_path)
    said = [write_report({"run": run}, "page", None, "profile") for run in range(3)]
    assert said[2] == "written to freescale-report/profile-3.html and freescale-report/profile-3.json"
    found = {path.name: json.loads(path.read_text())["run"] for path in (tmp_path / "freescale-report").glob("*.json")}
    assert found == {"profile.json": 0, "profile-2.json": 1, "profile-3.json": 2}
    write_report({"run": 3}, "page", tmp_path / "freescale-report", "profile")
    assert json.loads((tmp_path / "freescale-report" / "profile.json").read_text()) == {"run": 3}


def test_reports_of_several_commands_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("freescale_tools.report.page.render", lambda page: f"page of {page}")
    for name in ("profile", "collisions", "simulation"):
        write_report({"kind": name}, name, tmp_path, name)
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert pages == {f"{name}.html": f"page of {name}" for name in ("profile", "collisions", "simulation")}


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CommandFailed, match=r"cannot write to .*file.below"):
        write_report({"kind": "profile"}, "page", tmp_path / "file" / "below", "profile")


def test_what_is_skipped_is_told(capsys):
    terminal = Terminal()
    tell_skipped(
        terminal,
        [
            {"file": "a.parquet", "row_group": None, "rows": 0, "reason": "cut"},
            {"file": "b.parquet", "row_group": 3, "rows": 1200, "reason": "damaged"},
        ],
    )
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


def test_output_names_nothing_that_is_heavy():
    """`freescale --help` imports it."""
    assert not {"plotly", "jinja2"} & set(vars(output))
