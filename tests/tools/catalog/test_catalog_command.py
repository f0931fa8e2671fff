"""The command `freescale catalog`."""

import numpy as np
import polars as pl
import pytest
from tools_kit import answered, ran, refused, write

from fsdata import FreeScaleDataLoader, ParquetSource, Schema


@pytest.fixture
def lake(tmp_path):
    for number in range(6):
        path = tmp_path / "lake" / f"day={number % 2}" / f"{number}.parquet"
        write(path, {"row": np.arange(10 * number, 10 * number + 5)})
    return tmp_path / "lake"


def rows(path):
    with FreeScaleDataLoader(ParquetSource(catalog=path), Schema(context=("row",)), batch_size=100) as loader:
        return sorted(row for batch in loader for row in batch.features["row"].values().tolist())


def test_a_catalog_is_written_and_brought_up_to_date(lake, tmp_path):
    out = tmp_path / "made" / "lake.catalog"
    shown = ran("catalog", lake, "--out", out).stdout
    assert "6 files, 6 row groups, 30 rows, 1 schemas; 6 files are new, 0 changed, 0 gone" in shown
    assert len(rows(out)) == 30
    (lake / "day=0" / "0.parquet").unlink()
    pl.DataFrame({"row": [1000]}).write_parquet(lake / "day=1" / "1.parquet")
    pl.DataFrame({"row": [2000, 2001]}).write_parquet(lake / "day=1" / "9.parquet")
    said = answered("catalog", lake, "--out", out, "--update")
    assert (said["files"], said["new"], said["changed"], said["gone"], said["rows"]) == (6, 1, 1, 1, 23)
    assert rows(out)[-3:] == [1000, 2000, 2001]


def test_files_without_a_footer_are_left_out_and_named(lake, tmp_path):
    (lake / "day=1" / "3.parquet").write_bytes(b"PAR1 half of it")
    done = ran("catalog", lake, "--out", tmp_path / "lake.catalog", status=1)
    assert "left out: day=1/3.parquet" in done.stderr
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
def test_what_cannot_be_done_is_said(lake, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "a.parquet").write_bytes(b"nothing")
    (tmp_path / "out").write_text("something else")
    assert text in refused("catalog", *arguments, "--out", "out", status=status)
    assert (tmp_path / "out").read_text() == "something else"
