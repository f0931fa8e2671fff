"""The three sets that can be written, and how the files of their tables are written, row group by row group.

`reference_set` is the wide table that loaders are measured on: 27 columns to read among 67. `demo_set` is
what a training job meets: two sources that disagree on column names and types, and a side table of users.
`source_tables` are any number of sources of any shape: histories, candidates with labels, context, dense features.

Every row group is drawn from its own generator, seeded by (seed, table, file, row group). The values do not
depend on what was written before, and memory holds one row group. A file that already carries the same recipe
is left alone.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.files import write_whole
from freescale_tools.write.synth.histories import (
    Columns,
    Draws,
    candidate_ends,
    candidates,
    histories,
    list_array,
    past_lists,
)

VERSION = 2
_MARK = b"freescale.synth"

Advance = Callable[[int], None]  # called with the number of rows that were written

_SCHEMA = """[schema]
context = ["user_id", "country"]
dense = ["age_days"]
labels = ["candidate_labels"]
time = "request_ts"

[[schema.sequences]]
name = "uih"
fields = ["item_ids", "actions", "timestamps"]

[schema.candidates]
fields = ["candidate_ids"]
"""


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
        columns = self.draw(np.random.default_rng(0), 0, 0)
        schema = pa.table(columns).schema.with_metadata({_MARK: mark})
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            for index, start in enumerate(range(0, self.rows, self.row_group_rows)):
                rng = np.random.default_rng([seed, *self.name.encode(), file, index])
                count = min(self.row_group_rows, self.rows - start)
                columns = self.draw(rng, file * self.rows + start, count)
                writer.write_table(pa.table(columns, schema), row_group_size=count)
                advance(count)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceColumns:
    """The columns of the reference set that a loader reads: 16 integer keys, 10 dense, one list label.

    It skips the other 40.
    """

    sequence: tuple[str, ...] = ("item_ids", "actions", "timestamps")
    candidates: tuple[str, ...] = ("candidate_ids",)
    label: str = "candidate_labels"
    context: tuple[str, ...] = ("user_id", "request_ts", *(f"context_{i}" for i in range(10)))
    dense: tuple[str, ...] = tuple(f"dense_{i}" for i in range(10))
    time: str = "request_ts"

    @property
    def read(self) -> tuple[str, ...]:
        """All 27 columns."""
        return (*self.sequence, *self.candidates, self.label, *self.context, *self.dense)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSet:
    """Files of the demo set. The two sources hold the same kind of sample under different names and types."""

    # user_id, item_ids, actions, timestamps: int64; country; age_days, hour; request_ts
    site: tuple[Path, ...]
    partner: tuple[Path, ...]  # uid, items (large_list), events: int32; times; age; when. No country, no hour
    users: Path  # user_id, segment: one row per user


def reference_set(
    folder: str | Path,
    *,
    files: int = 8,
    rows_per_file: int = 25_000,
    row_group_rows: int = 4_096,
    seed: int = 0,
    advance: Advance = quiet,
) -> list[Path]:
    """Write the reference set (200,000 rows, 70 M events at full size) and return its files in order."""
    table = reference_table(folder, files=files, rows_per_file=rows_per_file, row_group_rows=row_group_rows)
    return table.write(seed, advance)


def reference_table(
    folder: str | Path, *, files: int = 8, rows_per_file: int = 25_000, row_group_rows: int = 4_096
) -> Table:
    shape: dict[str, Any] = {"files": files, "rows": rows_per_file, "row_group_rows": row_group_rows}
    return Table(folder=Path(folder), name="reference", draw=_reference_rows, **shape)


def demo_set(
    folder: str | Path, *, rows: int = 24_000, row_group_rows: int = 256, seed: int = 0, advance: Advance = quiet
) -> DemoSet:
    """Write both sources and the user table. Two thirds of the rows belong to the site."""
    tables = demo_tables(folder, rows=rows, row_group_rows=row_group_rows)
    site, partner, users = (table.write(seed, advance) for table in tables)
    return DemoSet(site=tuple(site), partner=tuple(partner), users=users[0])


def demo_tables(folder: str | Path, *, rows: int = 24_000, row_group_rows: int = 256) -> tuple[Table, Table, Table]:
    """Site, partner, users."""
    positive(rows=rows)
    folder, users = Path(folder), max(rows // 3, 1)

    def table(name: str, draw: Callable[..., Columns], files: int) -> Table:
        drawn = functools.partial(draw, users=users)
        shape: dict[str, Any] = {"files": files, "rows": -(-rows // 6), "row_group_rows": row_group_rows}
        return Table(folder=folder, name=name, draw=drawn, users=users, **shape)

    of_users = Table(folder=folder, name="users", draw=_user_rows, files=1, rows=users, row_group_rows=65_536)
    return table("site", _site_rows, 4), table("partner", _partner_rows, 2), of_users


def source_tables(
    folder: Path, *, lengths: Draws, sources: int = 1, files: int = 4, rows: int = 4_000, row_group_rows: int = 512
) -> list[Table]:
    """Folders `source-0`, `source-1`, ... of `files` files of `rows` rows each. `lengths`: of the histories."""
    positive(sources=sources)
    shape: dict[str, Any] = {"files": files, "rows": rows, "row_group_rows": row_group_rows}
    draw = functools.partial(_source_rows, lengths=lengths)
    names = [f"source-{source}" for source in range(sources)]
    return [Table(folder=folder / name, name=name, draw=draw, lengths=repr(lengths), **shape) for name in names]


def write_schema(folder: Path, sources: int) -> Path:
    """Describe sources and fields in `schema.toml`, for `freescale check`, `Schema.from_toml`, `sources_from_toml`."""
    described = "".join(f'\n[[sources]]\npaths = "source-{source}"\n' for source in range(sources))
    write_whole(folder / "schema.toml", _SCHEMA + described)
    return folder / "schema.toml"


def _reference_rows(rng: np.random.Generator, first: int, rows: int) -> Columns:
    past = histories(rng, first, rows, step_s=7)
    ends = candidate_ends(rng, rows)
    columns: Columns = {
        "user_id": pa.array(rng.integers(1, 2_000_000, rows)),
        "request_ts": pa.array(past.request),
        **past_lists(past),
        **candidates(rng, ends),
    }
    for i in range(10):
        columns[f"context_{i}"] = pa.array(rng.integers(0, 4 ** (i + 1), rows))
        columns[f"dense_{i}"] = pa.array(rng.standard_normal(rows, dtype=np.float32))
    for i in range(20):
        columns[f"unused_int_{i}"] = pa.array(rng.integers(0, 1 << (i + 2), rows))
    for i in range(10):
        columns[f"unused_float_{i}"] = pa.array(rng.standard_normal(rows, dtype=np.float32))
        short = np.zeros(rows + 1, np.int32)
        np.cumsum(rng.integers(0, 6, rows), out=short[1:])
        columns[f"unused_list_{i}"] = list_array(short, rng.integers(0, 1_000, int(short[-1])))
    return columns


def _site_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past = histories(rng, first, rows, step_s=60)
    return {
        "user_id": pa.array(rng.integers(1, users + 1, rows)),
        **past_lists(past),
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "hour": pa.array((past.request // 3_600 % 24).astype(np.float32)),
        "request_ts": pa.array(past.request),
    }


def _partner_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past = histories(rng, first, rows, step_s=120)
    items = pa.LargeListArray.from_arrays(
        pa.array(past.offsets.astype(np.int64)), pa.array(past.items.astype(np.int32))
    )
    return {
        "uid": pa.array(rng.integers(1, users + 1, rows).astype(np.int32)),
        "items": items,
        "events": list_array(past.offsets, past.actions.astype(np.int32)),
        "times": list_array(past.offsets, past.times),
        "age": pa.array(rng.gamma(2.0, 200.0, rows)),
        "when": pa.array(past.request),
    }


def _user_rows(rng: np.random.Generator, first: int, rows: int) -> Columns:
    return {
        "user_id": pa.array(np.arange(first + 1, first + rows + 1)),
        "segment": pa.array(rng.integers(1, 13, rows).astype(np.int16)),
    }


def _source_rows(rng: np.random.Generator, first: int, rows: int, lengths: Draws) -> Columns:
    past = histories(rng, first, rows, step_s=60, drawn=lengths)
    return {
        "user_id": pa.array(rng.integers(1, 1_000_000, rows)),
        **past_lists(past),
        **candidates(rng, candidate_ends(rng, rows)),
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "request_ts": pa.array(past.request),
    }
