"""What a filter saves where pages without a row that it keeps are not unpacked.

One file of one row group is sorted by time. It is written with pages of version 1 and 2, with and without a page index,
and read with filters that keep some of its rows: next to each other, or here and there.

    python benchmarks/skipped_pages.py [--rounds 7] [--rows 40000]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from common.table import add_results_option, emit

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

SCHEMA = Schema(sequences=[Sequence("uih", fields=("items",), floats=("costs",))], context=("user", "at"))
AT = pl.col("at")
WAYS = {
    "pyarrow": ("1.0", True, "pyarrow"),
    "version 1, no index": ("1.0", False, "pages"),
    "version 1, page index": ("1.0", True, "pages"),
    "version 2, no index": ("2.0", False, "pages"),
}
COLUMNS = ["filter", "file", "rows", "CPU ms", "of no index", "least", "most", "pages skipped"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=40_000)
    add_results_option(parser)
    arguments = parser.parse_args()
    rows, table = arguments.rows, made(arguments.rows)
    filters = {
        "a tenth": AT.is_between(rows // 2, rows // 2 + rows // 10),
        "a hundredth": AT.is_between(rows // 2, rows // 2 + rows // 100),
        "every thousandth": AT % 1000 == 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, condition in filters.items():
            runs: dict[str, list[tuple[float, int, int]]] = {way: [] for way in WAYS}
            for _ in range(arguments.rounds + 1):
                for way, (version, index, decoder) in WAYS.items():
                    path = written(table, Path(folder), version=version, index=index)
                    runs[way].append(read(path, condition, decoder))
            lines += [line(name, way, runs) for way in WAYS]
    emit(
        "skipped_pages",
        f"A loader over {rows} rows in one row group, sorted by time, with a filter of their time",
        COLUMNS,
        lines,
        notes=[
            f"Processor time of the process, median of {arguments.rounds} rounds; ratios are taken within a round.",
            "Lists of 200 values on average, zstd, page checksums, pages of 256 KB.",
        ],
        results=arguments.results,
        data="one file of made-up rows",
    )


def made(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(50, 350, rows))])
    count = int(offsets[-1])

    def lists(elements: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(elements))

    return pa.table(
        {
            "at": pa.array(np.arange(rows)),
            "user": pa.array(rng.integers(0, 1 << 40, rows)),
            "items": lists((rng.zipf(1.3, count) % 500_000).astype(np.int64)),
            "costs": lists(rng.random(count).astype(np.float32)),
        }
    )


def written(table: pa.Table, folder: Path, *, version: str, index: bool) -> Path:
    path = folder / f"{version} {index}.parquet"
    if not path.exists():
        pq.write_table(
            table,
            path,
            row_group_size=table.num_rows,
            compression="zstd",
            data_page_version=version,
            data_page_size=1 << 18,
            write_page_index=index,
            write_page_checksum=True,
        )
    return path


def read(path: Path, condition: pl.Expr, decoder: str) -> tuple[float, int, int]:
    """(CPU seconds, rows, pages skipped)."""
    begin = time.process_time()
    source = ParquetSource(path, filter=condition, decoder=decoder)  # type: ignore[arg-type]
    with FreeScaleDataLoader(source, SCHEMA, batch_size=64, rank=0, world_size=1) as loader:
        rows = sum(len(batch.origin) for batch in loader)
        return time.process_time() - begin, rows, loader.describe()[0]["decoder"].get("skipped_pages", 0)


def line(name: str, way: str, runs: dict[str, list[tuple[float, int, int]]]) -> list[object]:
    """The first round only warms up."""
    mine, other = runs[way][1:], runs["version 1, no index"][1:]
    ratios = [a[0] / b[0] for a, b in zip(mine, other, strict=True)]
    middle = statistics.median(cpu_s for cpu_s, _, _ in mine)
    return [name, way, mine[0][1], 1000 * middle, statistics.median(ratios), min(ratios), max(ratios), mine[0][2]]


if __name__ == "__main__":
    main()
