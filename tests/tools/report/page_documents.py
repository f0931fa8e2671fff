"""Documents for the tests of the page, made by the commands themselves: usual, small and degenerate ones."""

import copy
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tools_kit import answered, ragged, write

from freescale_tools.collisions.report import collisions_report
from freescale_tools.model import batches
from freescale_tools.profile.measure import Columns, full
from freescale_tools.profile.measure import quick as quick_profile
from freescale_tools.profile.report import profile_report
from freescale_tools.scan.files import open_files

HOSTILE = "<script>window.stolen = 1</script>&<b>\"'</b>%{x}.parquet"
OPTIONS = (
    "--sequence", "item_ids", "--candidates", "shown", "--time", "at", "--ranks", "16", "--batch-size", "16",
)  # fmt: skip
HOUR_US = 3_600_000_000


def _write(folder, rows=8000, files=4):
    """Lengths that differ so much that ranks wait, more of them later; 20,000 hours from 2024 on."""
    rng = np.random.default_rng(5)
    sizes = np.minimum(rng.lognormal(np.log(25), 1.2, rows), 2000).astype(int) * (np.arange(rows) % 50 > 0)
    for number, part in enumerate(np.array_split(sizes, files)):
        items = ragged(part, rng.integers(0, 10**5, part.sum()))
        times = pa.array((np.arange(len(part)) + number * len(part)) * HOUR_US, pa.timestamp("us"))
        table = {"item_ids": items, "shown": ragged([2] * len(part)), "at": times}
        write(folder / f"part-{number}.parquet", table, group=500)


@functools.cache
def _usual():
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        _write(Path(name))
        patch.setattr(batches, "_SAMPLES", 2048)
        return answered("profile", name, *OPTIONS, "--out", f"{name}/out")


@functools.cache
def _measured(rows, way=full):
    """As a profile begins, without predictions; `rows`: the lengths of every file."""
    with tempfile.TemporaryDirectory() as name:
        for number, sizes in enumerate(rows):
            write(Path(name, f"{number}.parquet"), {"a": ragged(sizes)})
        return json.loads(json.dumps(way(open_files([name]), Columns(sequences=("a",)), paths=["data"])))


def profile(**changes):
    return {**copy.deepcopy(_usual()), **changes}


def quick():
    return copy.deepcopy(_measured(((1, 2), (4,)), quick_profile))


def tiny():
    return copy.deepcopy(_measured(((0, 0, 1),)))


def no_events():
    return copy.deepcopy(_measured(((0, 0), (0,), ())))


def collisions_result():
    return {**tiny(), "kind": "collisions", "collisions": profile()["collisions"]}


def hostile():
    """Names and reasons that would be markup, or fields of a plot's template, if they were not escaped."""
    document = profile(paths=[HOSTILE])
    (sequence,) = document["sequences"].values()
    for one in (*sequence["per_file"], *sequence["longest"]):
        one["file"] = HOSTILE
    document["sequences"] = {HOSTILE: sequence}
    document["collisions"]["column"] = HOSTILE
    document["skipped"] = [{"file": HOSTILE, "row_group": None, "rows": 10, "reason": f"bad page: {HOSTILE}"}]
    return document


def report(document):
    """The report of a document, made by its command."""
    made = {"profile": profile_report, "collisions": collisions_report}
    return made[document["kind"]](document)


@functools.cache
def usual():
    return report(profile())
