"""What do profiles and collisions cost, against pyarrow doing no more than it must for the same columns?

Two sets of the reference layout (67 columns): 200 small files for footers, 4 files of 8 row groups of 4,096 rows for
lengths and collisions. Ways are timed in turn, best of several, all with as many threads as there are cores but
`pq.read_metadata`, which has one. Peak memory is that of a process of its own, above what it holds after imports.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from common.table import emit

from freescale_tools.collisions.estimate import estimate
from freescale_tools.console.terminal import Terminal
from freescale_tools.profile.measure import Columns, Settings, full, quick
from freescale_tools.profile.predict import Data, predict
from freescale_tools.profile.report import profile_report
from freescale_tools.report.page import page
from freescale_tools.scan.files import FileSet, open_files
from freescale_tools.write.synth.presets import reference_set
from fsranks.machine.cores import usable_cores

COLUMN = "item_ids"
COLUMNS = Columns(sequences=(COLUMN,))
REPEATS = 9
SMALL = {"files": 200, "rows_per_file": 400}
LARGE = {"files": 4, "rows_per_file": 32_768}
THICK = {"files": 2, "rows_per_file": 65_536, "row_group_rows": 65_536}
CORES = usable_cores()
MANY_FILES, MANY_LENGTHS = 100_000, 300_000


def main() -> None:
    """All measurements, one table."""
    with tempfile.TemporaryDirectory() as folder:
        small = reference_set(Path(folder, "small"), **SMALL)
        large = reference_set(Path(folder, "large"), **LARGE)
        thick = reference_set(Path(folder, "thick"), **THICK)
        rows = [*footers(small), *columns(large), *pages(large)]
        rows += [
            ["peak memory, lengths", peak(large, "lengths"), None, None, "< 1,000 MB"],
            ["peak memory, lengths, row groups of 65,536 rows", peak(thick, "lengths"), None, None, "< 1,000 MB"],
            ["peak memory, lengths and predictions", peak(large, "all"), None, None, "< 1,000 MB"],
        ]
    emit(
        "profile",
        f"Profiles and collisions of {COLUMN}",
        ["what", "ms or MB", "yardstick", "ratio", "goal"],
        rows,
        notes=[
            "quick: against pq.read_metadata, file after file, of the same 200 files. Ratio of times.",
            "full: against pyarrow decoding the column, a row group at a time on each core. Ratio of speeds.",
            "collisions: against the same decoding. Ratio of times. Two orders, all axes, 64 ranks x 128 samples.",
            f"page, inflated: {MANY_FILES:,} files and {MANY_LENGTHS:,} different lengths.",
        ],
        extra={"small": SMALL, "large": LARGE, "thick": THICK, "cores": CORES},
        data="files of the reference layout, made as it runs",
    )


def footers(paths: Sequence[Path]) -> list[list[Any]]:
    """Rows about reading footers."""
    names = [str(path) for path in paths]
    ms = best(
        {
            "metadata": lambda: [pq.read_metadata(path) for path in paths],
            "quick": lambda: quick(open_files(names), COLUMNS, paths=names),
        }
    )
    return [["quick, 200 files", ms["quick"], ms["metadata"], ms["quick"] / ms["metadata"], "<= 1.3"]]


def columns(paths: Sequence[Path]) -> list[list[Any]]:
    """Rows about reading one column."""
    files = opened(paths)
    ms = best(
        {
            "decode": lambda: decode(paths),
            "full": lambda: full(files, COLUMNS, paths=[]),
            "collisions": lambda: estimate(files, COLUMN, batch_size=128, ranks=64, max_length=None, dim=128),
        }
    )
    return [
        ["full profile", ms["full"], ms["decode"], ms["decode"] / ms["full"], ">= 3"],
        ["collisions", ms["collisions"], ms["decode"], ms["collisions"] / ms["decode"], "<= 1.5"],
    ]


def pages(paths: Sequence[Path]) -> list[list[Any]]:
    """Rows about the size of the page."""
    document = whole(opened(paths))
    rows = [["page", len(page(profile_report(document)).encode()) / 1e6, None, None, "< 8 MB"]]
    sequence = document["sequences"][COLUMN]
    sequence["per_file"] = [{**sequence["per_file"][0], "file": f"part-{n:06d}.parquet"} for n in range(MANY_FILES)]
    lengths = list(range(MANY_LENGTHS))
    sequence["histogram"] = {"lengths": lengths, "counts": [1 + length % 7 for length in lengths]}
    return [*rows, ["page, inflated", len(page(profile_report(document)).encode()) / 1e6, None, None, "< 8 MB"]]


def best(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds of the fastest of several runs, calls in turn."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEATS):
        for name, call in calls.items():
            gc.collect()
            start = time.perf_counter()
            call()
            found[name] = min(found[name], (time.perf_counter() - start) * 1e3)
    return found


def decode(paths: Sequence[Path]) -> None:
    """The column alone, nothing done with it."""

    def one(task: tuple[Path, int]) -> None:
        pq.ParquetFile(task[0]).read_row_group(task[1], columns=[COLUMN], use_threads=False)

    tasks = [(path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)]
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(one, tasks))


def opened(paths: Sequence[Path]) -> FileSet:
    return open_files([str(path) for path in paths])


def whole(files: FileSet) -> dict[str, Any]:
    """The document of `freescale profile`."""
    document = full(files, COLUMNS, paths=["data"])
    predict(document, Settings(batch_size=128), Data(files=files, time=None), bar=Terminal(json=True).progress)
    return document


def peak(paths: Sequence[Path], what: str) -> float:
    """MB that a fresh process needs at most, above what it holds after imports."""
    command = [sys.executable, "-m", "parts.profile_costs", what, *map(str, paths)]
    where = Path(__file__).parents[1]
    return float(json.loads(subprocess.run(command, cwd=where, check=True, stdout=subprocess.PIPE).stdout))


def measured(what: str, paths: Sequence[Path]) -> None:
    """The other end of `peak`."""
    files = opened(paths)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here: a fork inherits that of its parent
    before = resident("VmRSS")
    if what == "lengths":
        full(files, COLUMNS, paths=[])
    else:
        whole(files)
    print((resident("VmHWM") - before) / 1e6)


def resident(key: str) -> int:
    """Bytes: now (VmRSS), or at most since the peak was cleared (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


if __name__ == "__main__":
    measured(sys.argv[1], [Path(path) for path in sys.argv[2:]])
