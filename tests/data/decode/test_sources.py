"""Sources: their arguments, their fingerprints, parts of their rows, and what reading needs."""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from data_kit import USERS, as_python, fingerprint, load, users, write
from hypothesis import given
from hypothesis import strategies as st

from fsdata import ParquetSource, Schema, SchemaError, Sequence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paths": []}, "one or more paths"),
        ({"paths": ()}, "one or more paths"),
        ({"paths": {"a.parquet", "b.parquet"}}, "one or more paths, in order, got {'"),
        ({"paths": 3}, r"got 3|got \(3,\)"),
        ({"defaults": {"user": None}}, "must be a number"),
        ({"defaults": {"user": math.nan}}, "must be finite"),
        ({"defaults": {"user": True}}, "must be a number"),
        ({"nulls": {"user": "keep"}}, "must be one of error, default, drop, got 'keep'"),
        ({"nulls": {"user": "default"}}, "needs the value"),
        ({"weight": -1}, "positive"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'skip', got 'ignore'"),
        ({"columns": ["user"]}, "maps field names"),
        ({"join": ["x"]}, "takes Join objects"),
        ({"join": 3}, "takes Join objects"),
        ({"filter": "user > 3"}, "polars expression"),
        ({"map": 3}, r"map takes a function of a pyarrow.RecordBatch, got 3"),
        ({"skip": -1}, "skip must be an integer"),
        ({"skip": 1.5}, "skip must be an integer"),
        ({"skip": None}, "skip must be an integer"),
        ({"limit": 0}, "limit must be an integer"),
        ({"limit": "all"}, "limit must be an integer"),
        ({"catalog": "b"}, "paths or a catalog"),
        ({"paths": (), "catalog": 3}, "names one file"),
        ({"table": "delta:x"}, "one of the three"),
        ({"paths": (), "table": "delta:x", "catalog": "y"}, "one of the three"),
        ({"paths": (), "table": "delta:x", "filesystem": object()}, "takes no filesystem"),
        ({"paths": (), "table": "hudi:x"}, "table is 'delta:PATH' or 'iceberg:PATH', with @VERSION .*, got 'hudi:x'"),
        ({"paths": (), "table": "delta:"}, "table is 'delta:PATH'"),
        ({"paths": (), "table": Path("x")}, "table is 'delta:PATH'"),
        ({"retry": 3}, "takes a Retry"),
        ({"split": 3}, "split names one column, got 3"),
        ({"split": "user", "keep": (0.5, 0.5)}, r"0 <= low < high <= 1, got \(0.5, 0.5\)"),
        ({"split": "user", "keep": (0, 1.5)}, r"got \(0.0, 1.5\)"),
        ({"split": "user", "keep": 0.5}, "two numbers, got 0.5"),
        ({"split": "user", "salt": 1.5}, "a text or an integer, got 1.5"),
        ({"keep": (0, 0.5)}, "belong to split="),
        ({"keep": 0.5}, "belong to split="),
        ({"salt": "x"}, "belong to split="),
        *(
            ({"types": {"user": kind}}, r"types={'user': ...} is the Arrow name of one type")
            for kind in ("text", "list", "large_list<int64>", 3, "binary", "")
        ),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(SchemaError, match=message):
        ParquetSource(**{"paths": "a.parquet"} | options)


def test_a_filesystem_of_another_kind(tmp_path):
    with pytest.raises(SchemaError, match="pyarrow or fsspec filesystem"):
        load(ParquetSource("a", filesystem=3), USERS)


def same(batch):
    return batch


class CallableMap:
    def __call__(self, batch):
        return batch


def test_fingerprints_know_content_and_arguments_but_not_places(tmp_path):
    for place in ("here", "there"):
        users(tmp_path, f"{place}/a.parquet", 1, 2)
        users(tmp_path, f"{place}/b.parquet", 3)
    users(tmp_path, "other/a.parquet", 1, 3)
    users(tmp_path, "other/b.parquet", 3)

    def of(place, **options):
        return fingerprint(ParquetSource(tmp_path / place, **options), USERS)

    plain = of("here")
    assert of("there") == plain
    assert of("other")["source 0 footers"] != plain["source 0 footers"]
    assert of("here/a.parquet")["source 0 files"] != plain["source 0 files"]

    def options():
        yield from ({"columns": {"user": pl.col("user") + number}} for number in (1, 2))
        yield from ({"defaults": {"user": number}} for number in (1, 2))
        yield from ({"filter": pl.col("user") > 1}, {"on_error": "skip"}, {"weight": 2.0}, {"limit": 2}, {"skip": 1})
        yield from ({"map": function} for function in (same, print, partial(same), CallableMap()))

    changed, again = ([of("here", **each)["source 0 arguments"] for each in options()] for _ in range(2))
    assert changed == again
    assert len({plain["source 0 arguments"], *changed}) == 1 + len(changed)


@pytest.mark.long
def test_reading_needs_no_pandas(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1, None], pa.int32())})
    code = (
        "import sys; from fsdata import FreeScaleDataLoader, ParquetSource, Schema\n"
        f"source = ParquetSource({str(path)!r}, defaults={{'user': 0}})\n"
        "with FreeScaleDataLoader(source, Schema(context=('user',)), batch_size=2) as loader: list(loader)\n"
        "print('pandas' in sys.modules, 'polars' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# Parts: `skip` and `limit`

SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("row",), time="ts")
SIZES = (7, 0, 12, 1, 20)
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, first = tmp_path_factory.mktemp("part"), 0
    for number, size in enumerate(SIZES):
        rows = np.arange(first, first + size)
        items = pl.Series([[row] * (row % 4) for row in rows.tolist()], dtype=pl.List(pl.Int64))
        table = pl.DataFrame({"row": rows, "ts": 10 * rows, "item": items})
        table.write_parquet(folder / f"{number}.parquet", row_group_size=5)
        first += size
    return folder


def read(sources, **options):
    samples = [sample for batch in load(sources, SCHEMA, batch_size=4, **options)[0] for sample in as_python(batch)]
    assert all(sample["item"] == [sample["row"]] * (sample["row"] % 4) for sample in samples)
    return [sample["row"] for sample in samples]


@given(
    skip=st.integers(0, TOTAL + 3), limit=st.none() | st.integers(1, TOTAL + 3), shuffle=st.booleans(),
    filtered=st.booleans(),
)  # fmt: skip
def test_a_part_is_as_if_the_files_had_no_other_rows(folder, skip, limit, shuffle, filtered):
    condition = pl.col("row") % 3 != 1 if filtered else None
    source = ParquetSource(folder, skip=skip, limit=limit, filter=condition)
    part = range(TOTAL)[skip : None if limit is None else skip + limit]
    found = read(source, shuffle=shuffle)
    assert (sorted(found) if shuffle else found) == [row for row in part if not filtered or row % 3 != 1]
    assert read(source, shuffle=shuffle) == found


def test_parts_are_mixed_by_time(folder, tmp_path):
    parts = [ParquetSource(folder, skip=skip, limit=9, filter=pl.col("row") != 11) for skip in (3, 8, 25)]
    wanted = sorted(row for skip in (3, 8, 25) for row in range(skip, skip + 9) if row != 11)
    assert read(parts, mix="time") == wanted
    pl.DataFrame({"row": [1, 2, 3], "ts": [1, 2, None], "item": [[1], [1], [1]]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row group 0, row 2: ts is null"):  # its row in the file
        read([ParquetSource(tmp_path, skip=1), ParquetSource(folder)], mix="time")
