"""What do lengths of lists cost from the levels of their pages, against pyarrow decoding the same leaf column?

Processor time of one thread, best of several runs in turn, summed over the row groups. First the reference set as it is
(zstd, pages of version 1, checksums, dictionaries that overflow); then one of its files, written anew in other ways.
pyarrow verifies checksums, too. Run: python benchmarks/levels.py [--data FOLDER OF A REFERENCE SET]
"""

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from common.table import add_results_option, emit

from freescale_tools.scan.columns import Leaf, leaf
from freescale_tools.scan.files import open_files
from freescale_tools.scan.rows import Rows
from freescale_tools.write.synth.presets import reference_set
from fsdata.catalog.footers import Footer

COLUMNS = ("item_ids", "timestamps", "actions", "candidate_ids", "unused_list_0")
REPEATS = 7
ROW_GROUPS = 4  # of a file
WAYS = list(itertools.product(("1.0", "2.0"), ("zstd", "snappy", "none"), (True, False)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a reference set; default: one is made")
    add_results_option(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.data is None:
            paths: Sequence[Path] = reference_set(Path(folder, "set"), files=1, rows_per_file=ROW_GROUPS * 4096)
        else:
            paths = sorted(given.data.glob("*.parquet"))
        rows = measured("reference set", paths[0])
        table = pq.ParquetFile(paths[0]).read_row_groups(range(ROW_GROUPS), columns=list(COLUMNS))
        for version, codec, checksums in WAYS:
            path = Path(folder, "a.parquet")
            pq.write_table(
                table, path, row_group_size=4096, data_page_version=version, compression=codec,
                write_page_checksum=checksums,
            )  # fmt: skip
            rows += measured(f"version {version[0]}, {codec}{', checksums' if checksums else ''}", path)
    emit(
        "levels",
        "Lengths of lists",
        ["pages", "column", "MB stored", "pyarrow, ms", "levels, ms", "ratio"],
        rows,
        notes=["Goal: a ratio of 3 or more. Checksums are those of all bytes, levels or not."],
        extra={"row_groups": ROW_GROUPS, "repeats": REPEATS},
        results=given.results,
        data="the reference set",
    )


def measured(name: str, path: Path) -> list[list[Any]]:
    """One row for every column."""
    (footer,) = open_files([str(path)]).footers
    rows = []
    for column in COLUMNS:
        place = leaf(footer, column)
        assert isinstance(place, Leaf), place
        groups = range(min(ROW_GROUPS, footer.metadata.num_row_groups))
        stored = sum(footer.metadata.row_group(group).column(place.index).total_compressed_size for group in groups)
        arrow, levels = best(lambda: decode(footer, groups, place), lambda: lengths(footer, groups, column, place))  # noqa: B023
        rows.append([name, column, stored / 1e6, arrow, levels, arrow / levels])
    return rows


def decode(footer: Footer, groups: range, place: Leaf) -> None:
    with pq.ParquetFile(footer.file.path, metadata=footer.metadata, page_checksum_verification=True) as file:
        for group in groups:
            file.read_row_group(group, columns=[place.path], use_threads=False)


def lengths(footer: Footer, groups: range, column: str, place: Leaf) -> None:
    with Rows(footer) as reading:
        for group in groups:
            reading.lengths(group, column, place)


def best(*calls: Callable[[], None]) -> list[float]:
    """Milliseconds of processor time of the fastest of several runs, calls in turn."""
    found = [float("inf")] * len(calls)
    for _ in range(REPEATS):
        for number, call in enumerate(calls):
            gc.collect()
            start = time.thread_time()
            call()
            found[number] = min(found[number], (time.thread_time() - start) * 1e3)
    return found


if __name__ == "__main__":
    main()
