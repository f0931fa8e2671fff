"""Files damaged at random, through the loader and the commands: no abort, no hang, no traceback, little memory."""

import json
import subprocess
import sys
from pathlib import Path

import damaged
import pytest

BATCH = 250
START_S, FILE_S = 60, 1.0  # a batch may take this long to start, and this long per file
MOST_MB = 300


def answers(folder: Path, first: int, last: int) -> tuple[list[dict], list[str]]:
    """What was said about seeds first, ..., last - 1, and which of them ended their process or never came to an end."""
    said, lost = [], []
    while first < last:
        limit_s = START_S + FILE_S * (last - first)
        with (folder / "said").open("w+") as out, (folder / "errors").open("w+") as err:
            arguments = [sys.executable, damaged.__file__, str(folder), str(first), str(last)]
            process = subprocess.Popen(arguments, stdout=out, stderr=err)
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


@pytest.mark.parametrize("files", [100, pytest.param(2000, marks=pytest.mark.full)])
@pytest.mark.timeout(3000)
def test_damaged_files_end_nothing(tmp_path, files, record_property):
    said, lost = [], []
    for first in range(0, files, BATCH):
        more, ended = answers(tmp_path, first, min(first + BATCH, files))
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
