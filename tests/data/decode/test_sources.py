"""Sources: their arguments, their fingerprints, and what reading needs."""

import math
import subprocess
import sys

import polars as pl
import pyarrow as pa
import pytest
from parquet import write
from user_files import USERS, found, users

from fsdata.decode.opened_source import open_source
from fsdata.errors import SchemaError
from fsdata.sources import ParquetSource


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defaults": {"user": None}}, "must be a number"),
        ({"defaults": {"user": math.nan}}, "must be finite"),
        ({"defaults": {"user": True}}, "must be a number"),
        ({"nulls": {"user": "keep"}}, "must be one of error, default, drop, got 'keep'"),
        ({"nulls": {"user": "default"}}, "needs the value"),
        ({"weight": 0}, "positive"),
        ({"on_error": "ignore"}, "'raise' or 'skip', got 'ignore'"),
        ({"columns": ["user"]}, "maps field names"),
        ({"join": ["x"]}, "takes Join objects"),
        ({"filter": "user > 3"}, "polars expression"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(SchemaError, match=message):
        ParquetSource("a.parquet", **options)


def test_no_paths():
    with pytest.raises(SchemaError, match="one or more paths"):
        ParquetSource([])


def test_options_for_fields_that_do_not_exist(tmp_path):
    path = users(tmp_path, "a.parquet", 1)
    with pytest.raises(SchemaError, match="defaults names contry"):
        found(path, defaults={"contry": 1})


def test_a_default_of_text_for_a_number(tmp_path):
    path = users(tmp_path, "a.parquet", 1)
    with pytest.raises(SchemaError, match="the default 'x' is text, which only passthrough fields take"):
        found(path, defaults={"user": "x"})


def test_fingerprints_know_content_and_arguments_but_not_places(tmp_path):
    for place in ("here", "there"):
        users(tmp_path, f"{place}/a.parquet", 1, 2)
        users(tmp_path, f"{place}/b.parquet", 3)
    users(tmp_path, "other/a.parquet", 1, 3)
    users(tmp_path, "other/b.parquet", 3)

    def fingerprint(place, **options):
        return open_source(ParquetSource(tmp_path / place, **options), USERS).fingerprint

    plain = fingerprint("here")
    assert fingerprint("there") == plain
    assert fingerprint("other")["footers"] != plain["footers"]
    assert fingerprint("here/a.parquet")["files"] != plain["files"]
    changed = [
        fingerprint("here", **options)["arguments"]
        for options in (
            {"columns": {"user": pl.col("user") + 1}},
            {"columns": {"user": pl.col("user") + 2}},
            {"filter": pl.col("user") > 1},
            {"defaults": {"user": 1}},
            {"defaults": {"user": 2}},
            {"on_error": "skip"},
            {"weight": 2.0},
        )
    ]
    assert len({plain["arguments"], *changed}) == 8
    assert fingerprint("here", columns={"user": pl.col("user") + 1})["arguments"] == changed[0]


@pytest.mark.long
def test_reading_needs_no_pandas(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1, None], pa.int32())})
    code = (
        "import sys; from fsdata import Schema, ParquetSource; from fsdata.decode.opened_source import open_source\n"
        "from fsdata.decode.row_layout import layout_of; s = Schema(context=('user',))\n"
        f"o = open_source(ParquetSource({str(path)!r}, defaults={{'user': 0}}), s)\n"
        "o.read(o.groups[0], layout_of(s), 0, 2); print('pandas' in sys.modules, 'polars' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
