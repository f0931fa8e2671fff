"""Seeds, many of them in one process, whose end does not end the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S


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
