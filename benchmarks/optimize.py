"""What `freescale optimize` changes: size, and time to decode the 27 columns that a loader reads.

    python benchmarks/optimize.py [--rounds 5] [--data FOLDER]

The reference set is rewritten, then both are decoded on one thread in turn; ratios are taken inside a round, so a
machine that slows down for a while spoils neither.
"""

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from common.table import argument_parser, emit

from freescale_tools.console.terminal import Terminal
from freescale_tools.scan.files import open_files
from freescale_tools.write.optimize.layout import Settings
from freescale_tools.write.optimize.rewrite import optimize_all
from freescale_tools.write.synth.presets import ReferenceColumns, reference_set

READ = ReferenceColumns()
GROUPS: dict[str, list[str]] = {
    "27 columns of the loader": list(READ.read),
    "3 history lists": list(READ.sequence),
    "candidates and labels": [*READ.candidates, READ.label],
    "22 single values": [*READ.context, *READ.dense],
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "freescale-reference")
    arguments = parser.parse_args()
    before = reference_set(arguments.data)
    with tempfile.TemporaryDirectory(prefix="freescale-optimized-") as out:
        after, rewriting_s, source_mb = rewrite(before, Path(out))
        measured = {name: rounds(before, after, columns, arguments.rounds) for name, columns in GROUPS.items()}
        rows = [row(name, measured[name], before, after) for name in GROUPS]
    emit(
        "optimize",
        f"Reference set, {len(before)} files, before and after freescale optimize",
        ["columns", "decode s before", "decode s after", "after / before", "least", "most", "MB before", "MB after"],
        rows,
        notes=[
            f"Processor seconds of one thread, iter_batches(512) per row group, median of {arguments.rounds} rounds.",
            f"Rewriting with its comparison value by value: {rewriting_s:.0f} s, {source_mb / rewriting_s:.1f} MB/s.",
        ],
        extra={"runs": measured},
        data="the reference set",
        results=arguments.results,
    )


def rewrite(paths: list[Path], out: Path) -> tuple[list[Path], float, float]:
    """The new files, seconds and megabytes that went in."""
    files, settings = open_files([str(path) for path in paths]), Settings()
    start = time.perf_counter()
    with Terminal() as terminal, terminal.progress("rewriting", rows=files.rows, bytes=files.bytes) as progress:
        done = optimize_all(files, out, settings, progress, terminal.finding)["files"]
    return [Path(one["out"]) for one in done], time.perf_counter() - start, files.bytes / 1e6


def rounds(before: list[Path], after: list[Path], columns: list[str], count: int) -> list[dict[str, float]]:
    """Seconds of both, in alternating order."""
    runs = []
    for number in range(count):
        order = [("before", before), ("after", after)][:: 1 if number % 2 == 0 else -1]
        runs.append({name: sum(decode(path, columns) for path in paths) for name, paths in order})
    return runs


def decode(path: Path, columns: list[str]) -> float:
    with contextlib.closing(pq.ParquetFile(path)) as file:
        start = time.thread_time()
        for group in range(file.num_row_groups):
            for _ in file.iter_batches(512, row_groups=[group], columns=columns, use_threads=False):
                pass
        return time.thread_time() - start


def row(name: str, runs: list[dict[str, float]], before: list[Path], after: list[Path]) -> list[Any]:
    ratios = [run["after"] / run["before"] for run in runs]
    columns = GROUPS[name]
    return [
        name,
        statistics.median(run["before"] for run in runs),
        statistics.median(run["after"] for run in runs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        megabytes(before, columns),
        megabytes(after, columns),
    ]


def megabytes(paths: list[Path], columns: list[str]) -> float:
    """As stored, of these columns."""
    total = 0
    for path in paths:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            chunks = [row_group.column(index) for index in range(row_group.num_columns)]
            total += sum(one.total_compressed_size for one in chunks if one.path_in_schema.split(".")[0] in columns)
    return total / 1e6


if __name__ == "__main__":
    main()
