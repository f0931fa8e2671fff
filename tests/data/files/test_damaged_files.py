"""Files damaged at random: each is refused or read rightly, with no abort, no hang, no traceback and little memory.

Pages are decoded by FreeScale and by pyarrow: the same rows, or a CorruptFileError. Some files are read in this
process, the many of the long tier in one whose end does not end the test.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import damaged
import damaged_pages
import pytest
from patience import PATIENCE_S

from fsdata import FreeScaleDataLoader, ParquetSource, Schema
from fsdata.errors import FreeScaleError


def test_a_damaged_file_is_refused_or_read(tmp_path):
    (tmp_path / "schema.toml").write_text(damaged.SCHEMA)
    schema, path, refused = Schema.from_toml(tmp_path / "schema.toml"), tmp_path / "one.parquet", 0
    for seed in range(40):
        path.write_bytes(damaged.damaged(seed)[1])
        refused += 1
        with contextlib.suppress(FreeScaleError), FreeScaleDataLoader(ParquetSource(path), schema, batch_size=64) as of:
            list(of)
            refused -= 1
    assert 10 < refused < 40


def test_damaged_pages_are_told_or_read_as_pyarrow_reads_them(tmp_path):
    path, refused = tmp_path / "one.parquet", 0
    for seed in range(60):
        damage, raw = damaged_pages.damaged(seed)
        path.write_bytes(raw)
        ours, theirs = (damaged_pages.read_with(path, decoder) for decoder in ("pages", "pyarrow"))
        assert damaged_pages.fault(ours, theirs, seed) is None, f"seed {seed}, {damage}"
        assert damage != "none" or ours[0] == "rows"
        refused += ours[0] == "CorruptFileError"
    assert 15 < refused < 45  # the damage is neither too rough nor too mild


def answers(script: str, folder: Path, first: int, last: int, **environment: str) -> tuple[list[dict], list[str]]:
    """What `script FOLDER FIRST LAST` said about seeds first, ..., last - 1, and which of them ended their process or
    never came to an end. It says one JSON line before and one after each; that one has `found`."""
    said, lost = [], []
    while first < last:
        limit_s = PATIENCE_S + (last - first)  # a second for each seed
        with (folder / "said").open("w+") as out, (folder / "errors").open("w+") as err:
            arguments = [sys.executable, script, str(folder), str(first), str(last)]
            process = subprocess.Popen(arguments, stdout=out, stderr=err, env=os.environ | environment)
            try:
                how = f"status {process.wait(limit_s)}"
            except subprocess.TimeoutExpired:
                how = f"not done after {limit_s:.0f} s"
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            lines = [json.loads(line) for line in out.read().splitlines()]
            errors = err.read()
        said += [line for line in lines if "found" in line]
        if how == "status 0":
            break
        assert lines, f"no file was read: {how}, {errors[-2000:]}"
        lost.append(f"{lines[-1]}: {how}, {errors[-2000:]}")
        first = lines[-1]["seed"] + 1
    return said, lost


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("script", "files", "batch", "most_mb", "checked"),
    [
        (damaged.__file__, 2000, 250, 300, False),
        (damaged_pages.__file__, 40_000, 5000, 150, False),
        (damaged_pages.__file__, 20_000, 5000, 150, True),
    ],
    ids=["files", "pages", "pages with bounds checked"],
)
def test_no_damage_ends_anything(tmp_path, script, files, batch, most_mb, checked, record_property):
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "compiled")} if checked else {}
    said, lost = [], []
    for first in range(0, files, batch):
        more, ended = answers(script, tmp_path, first, min(first + batch, files), **checks)
        said, lost = said + more, lost + ended
    faults = [f"seed {one['seed']}, {one['damage']}: {fault}" for one in said for fault in one["faults"]]
    peak_mb = max(one["peak_mb"] for one in said)
    found = [one["found"] for one in said]
    refused = sum(any(each.startswith("CorruptFileError") for each in one.values()) for one in found)
    too_strict = sum(one.get("pages") == "CorruptFileError" and one["pyarrow"] == "rows" for one in found)
    record_property(
        "summary",
        f"{files} damaged files by {Path(script).name}: {len(lost)} aborts or hangs, {len(faults)} faults, {refused} "
        f"refused, {too_strict} of them only by us, at most {peak_mb:.0f} MB",
    )
    assert not lost
    assert not faults, faults[0]
    assert len(said) == files
    assert peak_mb <= most_mb
    assert files / 4 < refused < files
    assert too_strict <= 0.03 * files
