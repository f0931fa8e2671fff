"""Files damaged at random: each is refused or read rightly, with no abort, no hang, no traceback and little memory.

Pages are decoded by FreeScale and by pyarrow: the same rows, or a CorruptFileError. Some files are read in this
process, the many of the long tier in others, which tell what they read when they end.
"""

import contextlib
import json
import os
import subprocess
import sys

import damaged
import pytest
from data_kit import read, write
from patience import PATIENCE_S

from fsdata import Schema, Sequence
from fsdata.errors import CorruptFileError, FreeScaleError


def test_a_damaged_file_is_refused_or_read(tmp_path):
    (tmp_path / "schema.toml").write_text(damaged.SCHEMA)
    schema, path, refused = Schema.from_toml(tmp_path / "schema.toml"), tmp_path / "one.parquet", 0
    for seed in range(40):
        path.write_bytes(damaged.damaged(seed)[1])
        refused += 1
        with contextlib.suppress(FreeScaleError):
            read(path, schema)
            refused -= 1
    assert 10 < refused < 40


def test_damaged_pages_are_told_or_read_as_pyarrow_reads_them(tmp_path):
    path, refused = tmp_path / "one.parquet", 0
    for seed in (*range(60), 5356, 5532):  # a delta that the page cuts, a header of another kind: faults once
        damage, raw = damaged.damaged(seed, pages=True)
        path.write_bytes(raw)
        ours, theirs = (damaged.read_with(path, decoder) for decoder in ("pages", "pyarrow"))
        assert damaged.fault(ours, theirs, raw) is None, f"seed {seed}, {damage}"
        assert damage != "none" or ours[0] == "rows"
        refused += ours[0] == "CorruptFileError"
    assert 15 < refused < 52  # the damage is neither too rough nor too mild


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("what", "files", "batch", "most_mb", "checked"),
    [("files", 2000, 250, 300, False), ("pages", 40_000, 5000, 150, False), ("pages", 20_000, 5000, 150, True)],
    ids=["files", "pages", "pages with bounds checked"],
)
def test_no_damage_ends_anything(tmp_path, what, files, batch, most_mb, checked, record_property):
    """The program says one line before and one after each file."""
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "compiled")} if checked else {}
    said = []
    for first in range(0, files, batch):
        words = [sys.executable, damaged.__file__, what, str(tmp_path), str(first), str(min(first + batch, files))]
        done = subprocess.run(
            words, env=os.environ | checks, capture_output=True, text=True, timeout=PATIENCE_S + batch
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, f"status {done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
        said += [line for line in lines if "found" in line]
    faults = [f"seed {one['seed']}, {one['damage']}: {fault}" for one in said for fault in one["faults"]]
    peak_mb = max(one["peak_mb"] for one in said)
    found = [one["found"] for one in said]
    refused = sum(any(each.startswith("CorruptFileError") for each in one.values()) for one in found)
    too_strict = sum(one.get("pages") == "CorruptFileError" and one["pyarrow"] == "rows" for one in found)
    record_property(
        "summary",
        f"{files} files, damaged {what}: {len(faults)} faults, {refused} refused, {too_strict} of them only by us, at "
        f"most {peak_mb:.0f} MB",
    )
    assert not faults, faults[0]
    assert len(said) == files
    assert peak_mb <= most_mb
    assert files / 4 < refused < files
    assert too_strict <= 0.03 * files


def test_a_damaged_page_of_deltas_is_named(tmp_path):
    """A kernel of their own decodes them; where it fails, nothing more of the column is read."""
    rows = {"row": [list(range(100 * n, 100 * n + 100)) for n in range(20)]}
    options = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED", "compression": "none"}
    path = write(tmp_path / "rows.parquet", rows, write_page_checksum=False, **options)
    before, head, after = path.read_bytes().partition(b"\x80\x02\x04")
    assert head
    path.write_bytes(before + b"\x81\x02\x04" + after)  # a block of 257 values
    with pytest.raises(CorruptFileError, match=r"page 0: values that end too early, or contradict themselves"):
        read(path, Schema(sequences=Sequence("row list", ("row",))))
