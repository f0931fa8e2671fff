"""What `freescale histories` costs: seconds and peak memory of a fresh process, and whether the table is right.

1. `--data FOLDER`: the histories of `oss_events` are taken apart into one event per row, shuffled, and written to
   files. The table built of them, at once and by an update with the last of the files, must be the original lists:
   times are compared with the originals, and all columns with a stable sort of the shuffled events.
2. `--events N`: N synthetic events of N / 20 users, most of them of a few users. The table is read back: keys and
   times must ascend, and sums of all columns must be those of the events. Up to 20 million events polars' streaming
   engine is the yardstick: it is asked for the same table by a sort and a group_by, and holds all events in memory.

Peak memory is what the kernel has noted as the peak of the new process, imports included.

Run: python benchmarks/histories_build.py --data FOLDER [--events 20000000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common.table import add_results_option, emit

COLUMNS = ["events", "what", "s", "peak MB", "table MB", "buckets", "right"]
FILES, FILE_ROWS, YARDSTICK_EVENTS = 8, 2_500_000, 20_000_000
NAMES = {"item_ids": "item_id", "timestamps": "ts", "actions": "action"}  # list -> column of the events
OPTIONS = ["--by", "user_id", "--time", "ts", "--json"]
MEASURED = """
import sys
try:
    {work}
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(int(peak.split()[1]) / 1000, file=sys.stderr)
"""
COMMAND = "from freescale_tools.cli import app; app(sys.argv[1:], standalone_mode=False)"
POLARS = """import polars as pl
    events = pl.scan_parquet(sys.argv[1] + "/*.parquet")
    table = events.sort("user_id", "ts", maintain_order=True).group_by("user_id", maintain_order=True).agg(pl.all())
    table.sink_parquet(sys.argv[2], engine="streaming")"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="oss_events")
    parser.add_argument("--events", type=int, action="append", default=[], metavar="N", help="synthetic events")
    parser.add_argument("--buckets", type=int, default=8, help="of the tables with more than one file")
    add_results_option(parser)
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.events:
        parser.error("give --data or --events: there is nothing to measure")
    rows = []
    with tempfile.TemporaryDirectory(prefix="freescale-histories-") as folder:
        if arguments.data is not None:
            rows += real(arguments.data, Path(folder, "real"), arguments.buckets)
        for events in arguments.events:
            rows += synthetic(events, Path(folder, str(events)), arguments.buckets)
    emit(
        "histories_build",
        "freescale histories: a table from event logs",
        COLUMNS,
        rows,
        notes=["s and peak MB: of a fresh process, with its start and imports."],
        results=arguments.results,
        data="oss_events, made-up events",
    )


def real(data: Path, folder: Path, buckets: int) -> list[list[Any]]:
    """Rows about the events of `oss_events`."""
    lists = pa.concat_tables([pq.read_table(path) for path in sorted(data.glob("interactions-*.parquet"))])
    events = exploded(lists)
    paths = write_shuffled(events, folder / "log")
    rows = []
    for files in (1, buckets):
        out = folder / f"at-once-{files}"
        cost = measured(COMMAND, "histories", *paths, "--out", out, "--buckets", files, *OPTIONS)
        rows.append([len(events), f"build of {FILES} shuffled files", *cost, size_mb(out), files])
        rows[-1].append(verdict(equals(out, lists, events)))
    out = folder / "updated"
    measured(COMMAND, "histories", *paths[:-1], "--out", out, "--buckets", buckets, *OPTIONS)
    cost = measured(COMMAND, "histories", paths[-1], "--out", out, "--update", *OPTIONS)
    rows.append([len(events), "update with the last of the files", *cost, size_mb(out), buckets])
    rows[-1].append(verdict(equals(out, lists, events)))
    return rows


def exploded(lists: pa.Table) -> pa.Table:
    """One event per row, in an order without meaning."""
    first = lists["timestamps"].combine_chunks()
    lengths = np.asarray(first.value_lengths())
    columns = {"user_id": np.repeat(lists["user_id"].to_numpy(), lengths)}
    columns |= {name: lists[of].combine_chunks().flatten().to_numpy() for of, name in NAMES.items()}
    order = np.random.default_rng(0).permutation(len(columns["user_id"]))
    return pa.table({name: values[order] for name, values in columns.items()})


def write_shuffled(events: pa.Table, folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    per_file = -(-len(events) // FILES)
    paths = [folder / f"events-{n:05d}.parquet" for n in range(FILES)]
    for n, path in enumerate(paths):
        pq.write_table(events.slice(n * per_file, per_file), path, compression="zstd")
    return paths


def equals(out: Path, lists: pa.Table, events: pa.Table) -> bool:
    """Whether the table has the histories of `lists`, and the events of a tie in the order of `events`."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(out.iterdir())]).sort_by("user_id")
    lists = lists.sort_by("user_id")
    order = np.lexsort((np.arange(len(events)), events["ts"].to_numpy(), events["user_id"].to_numpy()))
    same = [table["user_id"].equals(lists["user_id"])]
    for of, name in NAMES.items():
        found, original = table[name].combine_chunks(), lists[of].combine_chunks()
        same.append(np.array_equal(found.value_lengths(), original.value_lengths()))
        same.append(np.array_equal(found.flatten(), events[name].to_numpy()[order]))
        same.append(found.type.value_type == original.type.value_type)
    same.append(np.array_equal(table["ts"].combine_chunks().flatten(), lists["timestamps"].combine_chunks().flatten()))
    return all(same)


def synthetic(events: int, folder: Path, buckets: int) -> list[list[Any]]:
    """Rows about `events` synthetic events."""
    sums = write_synthetic(events, folder / "log")
    rows = []
    for files in (1, buckets):
        out = folder / f"table-{files}"
        cost = measured(COMMAND, "histories", folder / "log", "--out", out, "--buckets", files, *OPTIONS)
        rows.append([events, "build, synthetic", *cost, size_mb(out), files])
        rows[-1].append(verdict(sorted_sums(out) == sums))
    if events <= YARDSTICK_EVENTS:
        (folder / "polars").mkdir()
        cost = measured(POLARS, folder / "log", folder / "polars" / "table.parquet")
        rows.append([events, "polars, sort and group_by", *cost, size_mb(folder / "polars"), 1, None])
    return rows


def write_synthetic(events: int, folder: Path) -> list[int]:
    """Sums of all columns: user, item, time, action."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    sums = np.zeros(4, np.int64)
    for file, start in enumerate(range(0, events, FILE_ROWS)):
        count = min(FILE_ROWS, events - start)
        columns = {
            "user_id": (rng.random(count) ** 3 * (events / 20)).astype(np.int64) * 7919,
            "item_id": rng.integers(0, 1_000_000, count),
            "ts": rng.integers(1_600_000_000, 1_700_000_000, count),
            "action": rng.integers(1, 5, count).astype(np.int32),
        }
        sums += [int(values.sum(dtype=np.int64)) for values in columns.values()]
        pq.write_table(pa.table(columns), folder / f"events-{file:05d}.parquet", row_group_size=500_000)
    return sums.tolist()


def sorted_sums(out: Path) -> list[int] | None:
    """Sums over all events of user, item, time and action; None if keys or times do not ascend."""
    sums = np.zeros(4, np.int64)
    for path in sorted(out.iterdir()):
        last = -1
        for batch in row_groups(path):
            keys = batch["user_id"].to_numpy()
            flat = {name: batch[name].combine_chunks() for name in NAMES.values()}
            lengths = np.asarray(flat["ts"].value_lengths())
            falls = np.flatnonzero(np.diff(flat["ts"].flatten().to_numpy()) < 0) + 1
            if keys[0] <= last or (np.diff(keys) <= 0).any() or not np.isin(falls, lengths.cumsum()).all():
                return None
            last = keys[-1]
            values = [flat[name].flatten().to_numpy() for name in ("item_id", "ts", "action")]
            sums += [int((keys * lengths).sum()), *(int(one.sum(dtype=np.int64)) for one in values)]
    return sums.tolist()


def row_groups(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        yield from (file.read_row_group(group) for group in range(file.num_row_groups))


def measured(work: str, *arguments: Any) -> list[float]:
    """[seconds, peak memory in MB] of a new Python process that does `work`."""
    command = [sys.executable, "-c", MEASURED.format(work=work), *map(str, arguments)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{arguments}: {done.stderr}")
    return [seconds, float(done.stderr.splitlines()[-1])]


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def verdict(right: bool) -> str:
    return "yes" if right else "NO"


if __name__ == "__main__":
    main()
