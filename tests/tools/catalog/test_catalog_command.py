"""The command `freescale catalog`."""

import json

import numpy as np
import polars as pl
import pytest

from fsdata import FreeScaleDataLoader, ParquetSource, Schema

COMMAND = "catalog"


@pytest.fixture
def lake(tmp_path):
    for number in range(6):
        folder = tmp_path / "lake" / f"day={number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"row": np.arange(10 * number, 10 * number + 5)}).write_parquet(folder / f"{number}.parquet")
    return tmp_path / "lake"


def rows(path):
    with FreeScaleDataLoader(ParquetSource(catalog=path), Schema(context=("row",)), batch_size=100) as loader:
        return sorted(row for batch in loader for row in batch.features["row"].values().tolist())


def test_a_catalog_is_written_and_brought_up_to_date(call, lake, tmp_path):
    out = tmp_path / "made" / "lake.catalog"
    done = call(lake, "--out", out)
    assert done.exit_code == 0, done.output
    assert "6 files, 6 row groups, 30 rows, 1 schemas; 6 files are new, 0 changed, 0 gone" in done.stdout
    assert len(rows(out)) == 30
    (lake / "day=0" / "0.parquet").unlink()
    pl.DataFrame({"row": [1000]}).write_parquet(lake / "day=1" / "1.parquet")
    pl.DataFrame({"row": [2000, 2001]}).write_parquet(lake / "day=1" / "9.parquet")
    done = call(lake, "--out", out, "--update", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["files"], said["new"], said["changed"], said["gone"], said["rows"]) == (6, 1, 1, 1, 23)
    assert rows(out)[-3:] == [1000, 2000, 2001]


def test_files_without_a_footer_are_left_out_and_named(call, lake, tmp_path):
    (lake / "day=1" / "3.parquet").write_bytes(b"PAR1 half of it")
    done = call(lake, "--out", tmp_path / "lake.catalog")
    assert (done.exit_code, "left out: day=1/3.parquet" in done.stderr) == (1, True)
    assert len(rows(tmp_path / "lake.catalog")) == 25


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nowhere"], 2, "nowhere: no such file"),
        (["lake", "lake/day=0"], 2, "named twice"),
        (["lake", "--update"], 2, "not a whole catalog"),
        (["unreadable"], 1, "none of 1 files is readable"),
    ],
    ids=["no files", "twice", "update of something else", "no readable file"],
)
def test_what_cannot_be_done_is_said(call, lake, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "a.parquet").write_bytes(b"nothing")
    (tmp_path / "out").write_text("something else")
    done = call(*arguments, "--out", "out")
    assert (done.exit_code, text in done.stderr) == (status, True), done.stderr
    assert (tmp_path / "out").read_text() == "something else"
