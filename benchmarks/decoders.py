"""What loading costs from pages and by pyarrow, against raw decoding of the same files.

    python benchmarks/decoders.py [--rounds 5] [--data FOLDER] [--events FOLDER ...]

The reference set, the same after `freescale optimize`, and histories of public event logs. One process: a first epoch
of every way is not counted, then all ways take turns; ratios are taken inside a round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from common.table import add_results_option, emit
from optimize import rewrite
from ways.freescale import SCHEMA
from ways.raw import THREADS

from freescale_tools.write.synth.presets import ReferenceColumns, reference_set
from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

Way = Callable[[], int]
"""One epoch -> its rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "freescale-reference")
    parser.add_argument(
        "--events", type=Path, nargs="*", default=[], metavar="FOLDER", help="oss_events, online_retail"
    )
    add_results_option(parser)
    arguments = parser.parse_args()
    pa.set_cpu_count(THREADS)
    before = reference_set(arguments.data)
    after, _, _ = rewrite(before, Path(tempfile.gettempdir()) / "freescale-optimized")
    sets = [("reference set", before, SCHEMA), ("the same, optimized", after, SCHEMA)]
    for folder in arguments.events:
        files = sorted(folder.glob("interactions-*.parquet"))
        sets.append((folder.name, files, _schema(files[0])))
    runs = {name: _rounds(_ways(files, schema), arguments.rounds) for name, files, schema in sets}
    reference = statistics.median(one["raw"] for one in runs["reference set"])
    emit(
        "decoders",
        "CPU of an epoch, batches of 512, not shuffled",
        [
            "data",
            "raw, CPU s",
            "raw / raw of the reference set",
            "by pyarrow / raw",
            "from pages / raw",
            "least",
            "most",
        ],
        [_row(name, measured, reference) for name, measured in runs.items()],
        notes=[f"raw: pyarrow, {THREADS} threads, read_row_group of the columns that the loader reads; dropped."],
        extra={"runs": runs},
        results=arguments.results,
        data="the reference set, oss_events, online_retail",
    )


def _schema(file: Path) -> Schema:
    """The lists of a log are one sequence, its labels if they are floats; all other columns are context."""
    fields = pq.read_schema(file)
    lists = {one.name: one.type.value_type for one in fields if pa.types.is_list(one.type)}
    labels = tuple(name for name, kind in lists.items() if pa.types.is_floating(kind))
    return Schema(
        sequences=(Sequence("uih", fields=tuple(name for name in lists if name not in labels), labels=labels),),
        context=tuple(one.name for one in fields if one.name not in lists),
    )


def _ways(files: list[Path], schema: Schema) -> dict[str, Way]:
    paths = [str(file) for file in files]
    columns = list(ReferenceColumns().read) if schema is SCHEMA else None

    def raw() -> int:
        rows = 0
        for path in paths:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    rows += file.read_row_group(group, columns=columns, use_threads=True).num_rows
        return rows

    def loaded(decoder: Any) -> int:
        source = ParquetSource(paths, decoder=decoder)
        with FreeScaleDataLoader([source], schema, batch_size=512, num_threads=THREADS, rank=0, world_size=1) as loader:
            return sum(batch.features.stride() for batch in loader)

    return {"raw": raw, "pyarrow": lambda: loaded("pyarrow"), "pages": lambda: loaded("pages")}


def _rounds(ways: dict[str, Way], count: int) -> list[dict[str, float]]:
    """CPU seconds of each way, in alternating order."""
    rows = {name: way() for name, way in ways.items()}
    assert len(set(rows.values())) == 1, rows
    runs = []
    for number in range(count):
        run = {}
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            start = time.process_time()
            ways[name]()
            run[name] = time.process_time() - start
        runs.append(run)
    return runs


def _row(name: str, runs: list[dict[str, float]], reference: float) -> list[Any]:
    raw = statistics.median(run["raw"] for run in runs)
    pages = [run["pages"] / run["raw"] for run in runs]
    arrow = statistics.median(run["pyarrow"] / run["raw"] for run in runs)
    return [name, raw, raw / reference, arrow, statistics.median(pages), min(pages), max(pages)]


if __name__ == "__main__":
    main()
