"""Files that are whole or not there, and options that are read alike."""

import json

import numpy as np
import pytest

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import write_report, write_whole
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report.blocks import Report


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
