"""Files damaged at random, through the loader and the commands: no abort, no hang, no traceback, little memory."""

import damaged
import pytest
from seeds import answers

BATCH = 250
MOST_MB = 300


@pytest.mark.parametrize("files", [100, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.timeout(3000)
def test_damaged_files_end_nothing(tmp_path, files, record_property):
    said, lost = [], []
    for first in range(0, files, BATCH):
        more, ended = answers(damaged.__file__, tmp_path, first, min(first + BATCH, files))
        said, lost = said + more, lost + ended
    faults = [f"seed {one['seed']}, {one['damage']}: {fault}" for one in said for fault in one["faults"]]
    peak_mb = max(one["peak_mb"] for one in said)
    refused = sum(one["found"].get("raise", "").startswith("CorruptFileError") for one in said)
    record_property(
        "summary",
        f"{files} damaged files: {len(lost)} aborts or hangs, {len(faults)} tracebacks, {refused} CorruptFileError, at "
        f"most {peak_mb:.0f} MB over imports",
    )
    assert not lost
    assert not faults, faults[0]
    assert len(said) == files
    assert max(one["bytes"] for one in said) < 1 << 20
    assert peak_mb <= MOST_MB
