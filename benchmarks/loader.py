"""What does loading cost over decoding, and what do others pay?

    python benchmarks/loader.py [--set flat] [--rounds 5] [--only TEXT] [--data FOLDER]

Every way of `ways/` reads an epoch of the reference set (8 files, 200,000 rows, 27 of 67 columns), or of a set of flat
rows (32 files, 1.6 million rows in row groups of 6,144, 40 of 200 columns), in a process of its own, all ways once per
round, rounds in alternating order. Ratios are taken against raw decode *of the same round*, so a
machine that slows down for a while spoils neither; the table gives their median, [least..most]. Peers take part in the
first rounds only. In round 1 a second, untimed epoch is hashed: all ways must have delivered the same samples.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.reference import written
from common.table import argument_parser, emit
from ways import WAYS, Way
from ways.common import SET

HERE = Path(__file__).parent
PEER_ROUNDS = 2
BATCHES = {"reference": (512, 128), "flat": (4096,)}
"""Of ours; the first is that of all."""
# No OpenMP threads anywhere: they spin while waiting, which would be counted as loading.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
COLUMNS = (
    "way", "shuffled", "batch", "CPU s", "CPU / raw", "CPU range", "wall s", "wall / raw", "wall range", "rows/s",
    "first batch s", "peak MiB",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of the table."""

    way: Way
    batch_size: int
    rounds: int
    runs: list[dict[str, Any]] = field(default_factory=list)

    def median(self, key: str) -> float:
        return statistics.median(run[key] for run in self.runs)

    def ratios(self, key: str, raw: "Entry") -> list[float]:
        """Own value / the yardstick's of the same round, per round."""
        yard = {run["round"]: run[key] for run in raw.runs}
        return [run[key] / yard[run["round"]] for run in self.runs]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", choices=sorted(BATCHES), default="reference")
    parser.add_argument("--data", type=Path, help="where the set is written, unless it is there")
    parser.add_argument("--only", default="", help="ways whose name contains this, and raw decode; not for the record")
    arguments = parser.parse_args()
    batches, rounds = BATCHES[arguments.set], arguments.rounds
    entries = list(_entries(rounds, arguments.only, batches, flat=arguments.set == "flat"))
    if any(entry.way.name.startswith("HF") for entry in entries) and importlib.util.find_spec("datasets") is None:
        parser.error("Hugging Face datasets are missing: pip install -e '.[bench]', or pass --only FreeScale")
    data = (arguments.data or Path(tempfile.gettempdir()) / f"freescale-{arguments.set}").resolve()
    print(f"the {arguments.set} set in {data} ...", file=sys.stderr)
    paths = [str(path) for path in written(arguments.set, data)]
    child = Child(paths=paths, cache=str(data / f"hf-cache-{len(paths)}"), set=arguments.set)
    for path in paths:
        Path(path).read_bytes()  # into the page cache
    if any(entry.way.shuffle == "all rows" for entry in entries):
        child.call("-m", "ways.huggingface", child.cache, *paths)
    for way in {entry.way.name: entry.way for entry in entries}.values():
        child.run(way, batches[0], "--only-first")  # into numba's cache, and Python's
    _play(entries, child, rounds)
    _check_equal(entries)
    name = "loader" if arguments.set == "reference" else f"loader_{arguments.set}"
    name += "-partial" if arguments.only else ""
    size = f"{len(paths)} files, {rounds} rounds"
    _report(entries, size, name=name, of=arguments.set, results=arguments.results)


def _entries(rounds: int, only: str, batches: Sequence[int], *, flat: bool) -> Iterator[Entry]:
    for way in WAYS:
        if way.shuffle == "all rows" and flat:  # it picks every value of a row by itself: 90 times raw decode
            continue
        if only.lower() not in way.name.lower() and way.role != "raw":
            continue
        for batch in batches if way.role == "ours" else batches[:1]:
            yield Entry(way=way, batch_size=batch, rounds=min(rounds, PEER_ROUNDS) if way.role == "peer" else rounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """Starts `ways/measured.py`."""

    paths: list[str]
    cache: str
    set: str

    def run(self, way: Way, batch_size: int, *options: str) -> Any:
        """The JSON line it printed."""
        command = ["-m", "ways.measured", way.name, "--batch-size", str(batch_size), "--cache", self.cache]
        out = self.call(*command, *options, "--paths", *self.paths)
        return json.loads(out.splitlines()[-1])

    def call(self, *command: str) -> str:
        """What a Python process printed. RuntimeError with the end of its stderr if it failed."""
        # HF writes locks below HF_HOME: keep them beside the data. Likewise the bytecode of libraries, which pip keeps
        # and not every environment does: without it, numba's modules are compiled while the first batch is made.
        beside = Path(self.cache)
        kept = {
            "HF_HOME": str(beside.with_name("hf-home")),
            "PYTHONPYCACHEPREFIX": str(beside.with_name("bytecode")),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        done = subprocess.run(
            [sys.executable, *command],
            cwd=HERE,
            env={**os.environ, **ENVIRONMENT, **kept, SET: self.set},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command} failed with status {done.returncode}:\n{done.stderr[-4000:]}")
        return done.stdout


def _play(entries: Sequence[Entry], child: Child, rounds: int) -> None:
    started = time.monotonic()
    for number in range(1, rounds + 1):
        for entry in entries if number % 2 else reversed(entries):
            if number > entry.rounds:
                continue
            hashed = number == 1 and entry.way.role != "raw"
            result = child.run(entry.way, entry.batch_size, *(["--checksum"] if hashed else []))
            entry.runs.append(result | {"round": number})
            print(
                f"[{time.monotonic() - started:5.0f} s] round {number}/{rounds} {entry.way.name}, "
                f"batch {entry.batch_size}: CPU {result['cpu_s']:.2f} s, wall {result['wall_s']:.2f} s",
                file=sys.stderr,
            )


def _check_equal(entries: Sequence[Entry]) -> None:
    """RuntimeError unless all ways delivered the same rows, and those that deliver batches the same samples."""
    for key in ("rows", "elements", "checksum"):
        found = {
            f"{entry.way.name}, batch {entry.batch_size}": run[key]
            for entry in entries
            for run in entry.runs
            if run.get(key) is not None
        }
        if len(set(found.values())) > 1:
            lines = "\n".join(f"  {name}: {value}" for name, value in found.items())
            raise RuntimeError(f"the ways did not deliver the same data; {key}:\n{lines}")


def _report(entries: Sequence[Entry], size: str, *, name: str, of: str, results: Path) -> None:
    raw = next(entry for entry in entries if entry.way.role == "raw")
    rows = []
    for entry in entries:
        cpu, wall = entry.ratios("cpu_s", raw), entry.ratios("wall_s", raw)
        rows.append((
            entry.way.name,
            entry.way.shuffle,
            None if entry.way.role == "raw" else entry.batch_size,
            entry.median("cpu_s"),
            statistics.median(cpu),
            _spread(cpu),
            entry.median("wall_s"),
            statistics.median(wall),
            _spread(wall),
            round(entry.runs[0]["rows"] / entry.median("wall_s")),
            entry.median("first_batch_s"),
            round(entry.median("peak_mib")),
        ))  # fmt: skip
    notes = [
        "Medians of the rounds. CPU: user + system, workers included. Peak: resident memory over what imports left.",
        *(f"{entry.way.name}: {entry.way.note}." for entry in entries if entry.way.note),
    ]
    extra = {"runs": [{"way": e.way.name, "batch_size": e.batch_size, **run} for e in entries for run in e.runs]}
    first = entries[0].runs[0]
    title = f"Loading the {of} set: {first['rows']:,} rows, {first['columns']} columns, {size}"
    emit(name, title, COLUMNS, rows, notes, extra, data=f"the {of} set", results=results)


def _spread(values: Sequence[float]) -> str:
    return f"[{min(values):.2f}..{max(values):.2f}]" if len(values) > 1 else ""


if __name__ == "__main__":
    main()
