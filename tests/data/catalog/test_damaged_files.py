"""Files damaged at random, through the loader and the commands: no abort, no hang, no traceback, little memory."""

import contextlib

import damaged
import pytest
from seeds import answers

from fsdata import FreeScaleDataLoader, ParquetSource, Schema
from fsdata.errors import FreeScaleError

FILES, BATCH = 2000, 250
MOST_MB = 300


def test_a_damaged_file_is_refused_or_read(tmp_path):
    """Some of them, through the loader alone: what else it raises fails this test."""
    (tmp_path / "schema.toml").write_text(damaged.SCHEMA)
    schema, path, refused = Schema.from_toml(tmp_path / "schema.toml"), tmp_path / "one.parquet", 0
    for seed in range(40):
        path.write_bytes(damaged.damaged(seed)[1])
        refused += 1
        with contextlib.suppress(FreeScaleError), FreeScaleDataLoader(ParquetSource(path), schema, batch_size=64) as of:
            list(of)
            refused -= 1
    assert 10 < refused < 40


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_damaged_files_end_nothing(tmp_path, record_property):
    said, lost = [], []
    for first in range(0, FILES, BATCH):
        more, ended = answers(damaged.__file__, tmp_path, first, min(first + BATCH, FILES))
        said, lost = said + more, lost + ended
    faults = [f"seed {one['seed']}, {one['damage']}: {fault}" for one in said for fault in one["faults"]]
    peak_mb = max(one["peak_mb"] for one in said)
    refused = sum(one["found"].get("raise", "").startswith("CorruptFileError") for one in said)
    record_property(
        "summary",
        f"{FILES} damaged files: {len(lost)} aborts or hangs, {len(faults)} tracebacks, {refused} CorruptFileError, at "
        f"most {peak_mb:.0f} MB over imports",
    )
    assert not lost
    assert not faults, faults[0]
    assert len(said) == FILES
    assert max(one["bytes"] for one in said) < 1 << 20
    assert peak_mb <= MOST_MB
