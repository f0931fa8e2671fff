"""Writes the files of a table, row group by row group.

Every row group is drawn from its own generator, seeded by (seed, table, file, row group). The values do not
depend on what was written before, and memory holds one row group. A file that already carries the same recipe
is left alone.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.write.synth.histories import Columns

VERSION = 2

Advance = Callable[[int], None]  # called with the number of rows that were written
RowGroup = Callable[[np.random.Generator, int, int], Columns]  # generator, first row, rows -> columns


def quiet(rows: int) -> None:
    """Tells nobody how far the writing is."""


def write_table(
    folder: Path,
    table: str,
    draw: RowGroup,
    files: int,
    rows: int,
    *,
    row_group_rows: int,
    seed: int,
    users: int = 0,
    lengths: str = "",
    advance: Advance = quiet,
) -> list[Path]:
    """Write `<table>-<i>-of-<n>.parquet`. Each file gets its name when it is complete.

    `users` and `lengths` describe what `draw` draws from. Files that were made with other values are written
    again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in range(files):
        path = folder / f"{table}-{file:05d}-of-{files:05d}.parquet"
        paths.append(path)
        recipe = {"table": table, "file": file, "rows": rows, "group": row_group_rows, "users": users, "seed": seed}
        recipe |= {"lengths": lengths} if lengths else {}
        mark = {b"freescale.synth": json.dumps({"version": VERSION} | recipe).encode()}
        if _carries(path, mark):
            advance(rows)
            continue
        part = path.with_suffix(".part")
        try:
            _write_file(part, draw, table, file, rows, row_group_rows, seed, mark, advance)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return paths


def _carries(path: Path, mark: dict[bytes, bytes]) -> bool:
    if not path.exists():
        return False
    try:
        found = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError):
        return False
    return all(found.get(key) == value for key, value in mark.items())


def _write_file(
    path: Path,
    draw: RowGroup,
    table: str,
    file: int,
    rows: int,
    group: int,
    seed: int,
    mark: dict[bytes, bytes],
    advance: Advance,
) -> None:
    writer = None
    try:
        for index, start in enumerate(range(0, rows, group)):
            rng = np.random.default_rng([seed, *table.encode(), file, index])
            count = min(group, rows - start)
            batch = pa.table(draw(rng, file * rows + start, count)).replace_schema_metadata(mark)
            if writer is None:
                writer = pq.ParquetWriter(path, batch.schema, compression="zstd", write_page_checksum=True)
            writer.write_table(batch, row_group_size=count)
            advance(count)
    finally:
        if writer is not None:
            writer.close()
