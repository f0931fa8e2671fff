"""Opening many files: seconds until a loader stands, and memory of a rank.

Every figure comes from fresh processes that have opened one small file before: imports and compiled kernels do not
count. Memory is what the process holds more afterwards, and at most in between.

1. a folder of many files of 2 row groups and 22 columns, opened by one rank, and by two ranks of one host at once;
2. the same from a catalog; what the catalog costs to make, and to bring up to date with nothing new;
3. as many `key=value` folders with a file each, whose key is a field or is not.

Run: python benchmarks/catalog.py [--files 100000] [--partitions 10000]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common.table import add_results_option, emit

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

COLUMNS = ["files", "way", "s", "MB", "MB at most"]
IN_A_FOLDER = 1_000
RUNS = 3


def files_in(folder: Path, number: int, partitions: int) -> None:
    """`number` files in folders of a thousand, and `partitions` folders with one file each. All have the same bytes."""
    rng = np.random.default_rng(0)
    columns = {f"c{n}": pa.array(rng.integers(0, 9, 20)) for n in range(19)}
    columns |= {"item": pa.array([[1, 2]] * 20), "user": pa.array(np.arange(20)), "ts": pa.array(np.arange(20))}
    pq.write_table(pa.table(columns), folder / "one.parquet", row_group_size=10)
    raw = (folder / "one.parquet").read_bytes()
    for n in range(number):
        path = folder / "flat" / f"{n // IN_A_FOLDER:04}" / f"part-{n:08}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    for n in range(partitions):
        path = folder / "hive" / f"day={n:05}" / "a.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(raw)


def opened(source: ParquetSource, *, day: bool = False, rank: int = 0, ranks: int = 1) -> FreeScaleDataLoader:
    context = ("user", "day") if day else ("user",)
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=context)
    return FreeScaleDataLoader(source, schema, batch_size=64, num_threads=1, rank=rank, world_size=ranks)


def memory() -> dict[str, float]:
    """MB of this process, now (`VmRSS`) and at most (`VmHWM`)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1e3 for words in lines if words[0] in ("VmRSS:", "VmHWM:")}


def one_rank(given: argparse.Namespace) -> None:
    """Open one file, wait for the word, open all, tell what it took, and wait until all have."""
    opened(ParquetSource(given.folder / "one.parquet")).close()
    before = memory()
    print("ready", flush=True)
    sys.stdin.readline()
    source = ParquetSource(catalog=given.source) if given.way == "catalog" else ParquetSource(given.source)
    begin = time.perf_counter()
    loader = opened(source, day=given.way == "day", rank=given.rank, ranks=given.ranks)
    seconds, after = time.perf_counter() - begin, memory()
    grown = [after["VmRSS"] - before["VmRSS"], after["VmHWM"] - before["VmRSS"]]
    print(json.dumps([seconds, *grown]), flush=True)
    sys.stdin.readline()
    loader.close()


def measured(folder: Path, source: Path, way: str, ranks: int = 1) -> list[float]:
    """Seconds until the last rank stands, and MB of the largest: the best of some runs."""
    found = []
    for _ in range(RUNS):
        command = [sys.executable, __file__, "--folder", str(folder), "--source", str(source), "--way", way]
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--ranks", str(ranks)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        answers: list[list[float]] = []
        for message in ("begin\n", "end\n"):
            lines = [process.stdout.readline() for process in processes if process.stdout]
            answers = [json.loads(line) for line in lines if line.startswith("[")]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(message)
                process.stdin.flush()
        for process in processes:
            process.communicate()
        found.append(np.max(answers, axis=0).tolist())
    return min(found)


def command_seconds(*arguments: str | Path) -> float:
    """Of `freescale catalog`, by its own clock."""
    command = [str(Path(sys.executable).with_name("freescale")), "catalog", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    for name in ("--folder", "--source"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    for name in ("--rank", "--ranks"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    add_results_option(parser)
    given = parser.parse_args()
    if given.way:
        one_rank(given)
        return
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="freescale-catalog-") as name:
        folder = Path(name)
        files_in(folder, given.files, given.partitions)
        flat, hive, catalog = folder / "flat", folder / "hive", folder / "flat.catalog"
        rows.append([given.files, "listed, 1 rank", *measured(folder, flat, "listed")])
        rows.append([given.files, "listed, 2 ranks of a host", *measured(folder, flat, "listed", 2)])
        rows.append([given.files, "freescale catalog", command_seconds(flat, "--out", catalog), None, None])
        again = command_seconds(flat, "--out", catalog, "--update")
        rows.append([given.files, "freescale catalog --update", again, None, None])
        rows.append([given.files, "from the catalog", *measured(folder, catalog, "catalog")])
        rows.append([given.partitions, "key=value folders", *measured(folder, hive, "listed")])
        rows.append([given.partitions, "key=value folders, key read", *measured(folder, hive, "day")])
        size = catalog.stat().st_size / 1e6
    notes = [
        f"Files of 2 row groups and 22 columns, in the page cache; one thread a rank; the best of {RUNS} runs.",
        f"The catalog of {given.files:,} files takes {size:.1f} MB on disk.",
    ]
    emit("catalog", "Opening many files", COLUMNS, rows, notes, results=given.results, data="files of made-up rows")


if __name__ == "__main__":
    main()
