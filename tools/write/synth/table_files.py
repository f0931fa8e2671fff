"""Writes the files of a table, row group by row group.

Every row group is drawn from its own generator, seeded by (seed, table, file, row group). The values do not
depend on what was written before, and memory holds one row group. A file that already carries the same recipe
is left alone.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.write.synth.histories import Columns

VERSION = 2
_MARK = b"freescale.synth"

Advance = Callable[[int], None]  # called with the number of rows that were written


def quiet(rows: int) -> None:
    """Tells nobody how far the writing is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of `files` files of `rows` rows each, in row groups of `row_group_rows` rows.

    Attributes:
        draw: the columns of a row group, from its generator, the number of its first row, and its rows.
        users, lengths: what `draw` draws from. Files that were made with other values are written again.
    """

    folder: Path
    name: str
    draw: Callable[[np.random.Generator, int, int], Columns]
    files: int
    rows: int
    row_group_rows: int
    users: int = 0
    lengths: str = ""

    def __post_init__(self) -> None:
        positive(files=self.files, rows=self.rows, row_group_rows=self.row_group_rows)

    def write(self, seed: int, advance: Advance) -> list[Path]:
        """Write `<name>-<i>-of-<n>.parquet`. Each file gets its name when it is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = [self.folder / f"{self.name}-{file:05d}-of-{self.files:05d}.parquet" for file in range(self.files)]
        for file, path in enumerate(paths):
            recipe = {"version": VERSION, "table": self.name, "file": file, "rows": self.rows}
            recipe |= {"group": self.row_group_rows, "users": self.users, "seed": seed}
            recipe |= {"lengths": self.lengths} if self.lengths else {}
            mark = json.dumps(recipe).encode()
            if _mark_of(path) == mark:
                advance(self.rows)
                continue
            part = path.with_suffix(".part")
            try:
                self._write_file(part, file, seed, mark, advance)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return paths

    def _write_file(self, path: Path, file: int, seed: int, mark: bytes, advance: Advance) -> None:
        writer = None
        try:
            for index, start in enumerate(range(0, self.rows, self.row_group_rows)):
                rng = np.random.default_rng([seed, *self.name.encode(), file, index])
                count = min(self.row_group_rows, self.rows - start)
                columns = self.draw(rng, file * self.rows + start, count)
                group = pa.table(columns).replace_schema_metadata({_MARK: mark})
                if writer is None:
                    writer = pq.ParquetWriter(path, group.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(group, row_group_size=count)
                advance(count)
        finally:
            if writer is not None:
                writer.close()


def positive(**counts: int) -> None:
    """Raise ValueError for a count below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _mark_of(path: Path) -> bytes | None:
    """The mark of a file that this command has written; None for other files, or if there is no file."""
    try:
        found: bytes | None = (pq.read_schema(path).metadata or {}).get(_MARK)
    except (pa.ArrowInvalid, OSError):
        return None
    return found
