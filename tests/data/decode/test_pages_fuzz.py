"""Pages damaged at random, decoded by FreeScale and by pyarrow: the same rows, or a CorruptFileError; never another
exception, the end of the process, a hang, a read beyond a page, or much memory."""

import damaged_pages
import pytest
from seeds import answers

BATCH = 5000
MOST_MB = 150
MOST_TOO_STRICT = 0.03  # of the files, those that only pyarrow reads


def test_some_damaged_pages_are_told_or_read_as_pyarrow_reads_them(tmp_path):
    """The first files of the fuzz, in this process."""
    path, refused = tmp_path / "one.parquet", 0
    for seed in range(60):
        damage, some_empty, raw = damaged_pages.damaged(seed)
        path.write_bytes(raw)
        ours, theirs = (damaged_pages.read_with(path, decoder) for decoder in ("pages", "pyarrow"))
        assert damaged_pages.fault(ours, theirs, some_empty) is None, f"seed {seed}, {damage}"
        assert damage != "none" or ours[0] == "rows"
        refused += ours[0] == "CorruptFileError"
    assert 15 < refused < 45  # the damage is neither too rough nor too mild


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "checked"), [(40_000, False), (20_000, True)], ids=["40000", "20000 with bounds checked"]
)
@pytest.mark.timeout(3000)
def test_damaged_pages_are_told_or_read_as_pyarrow_reads_them(tmp_path, files, checked, record_property):
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "compiled")} if checked else {}
    said, lost = [], []
    for first in range(0, files, BATCH):
        more, ended = answers(damaged_pages.__file__, tmp_path, first, min(first + BATCH, files), **checks)
        said, lost = said + more, lost + ended
    faults = [f"seed {one['seed']}, {one['damage']}: {fault}" for one in said for fault in one["faults"]]
    peak_mb = max(one["peak_mb"] for one in said)
    refused = sum(one["found"] == "CorruptFileError" for one in said)
    too_strict = sum(one["found"] == "CorruptFileError" and one["arrow"] == "rows" for one in said)
    record_property(
        "summary",
        f"{files} files of damaged pages: {len(lost)} aborts or hangs, {len(faults)} wrong answers, {refused} refused, "
        f"{too_strict} of them only by us, at most {peak_mb:.0f} MB",
    )
    assert not lost
    assert not faults, faults[0]
    assert len(said) == files
    assert peak_mb <= MOST_MB
    assert files / 4 < refused < 3 * files / 4  # the damage is neither too rough nor too mild
    assert too_strict <= MOST_TOO_STRICT * files
