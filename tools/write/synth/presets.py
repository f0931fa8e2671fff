"""The three sets that can be written.

`reference_set` is the wide table that loaders are measured on: 27 columns to read among 67. `demo_set` is
what a training job meets: two sources that disagree on column names and types, and a side table of users.
`source_tables` are any number of sources of any shape: histories, candidates with labels, context, dense features.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from freescale_tools.console.files import write_whole
from freescale_tools.write.synth.histories import Columns, candidate_ends, candidates, histories, list_array, past_lists
from freescale_tools.write.synth.lengths import Draws
from freescale_tools.write.synth.table_files import Advance, Table, positive, quiet

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceColumns:
    """The columns of the reference set that a loader reads: 16 integer keys, 10 dense, one list label."""

    sequence: tuple[str, ...]
    candidates: tuple[str, ...]
    label: str
    context: tuple[str, ...]
    dense: tuple[str, ...]
    time: str

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


def reference_columns() -> ReferenceColumns:
    """Names of the 27 columns that a loader reads. It skips the other 40."""
    return ReferenceColumns(
        sequence=("item_ids", "actions", "timestamps"),
        candidates=("candidate_ids",),
        label="candidate_labels",
        context=("user_id", "request_ts", *(f"context_{i}" for i in range(10))),
        dense=tuple(f"dense_{i}" for i in range(10)),
        time="request_ts",
    )


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
    shape: dict[str, int] = {"files": files, "rows": rows_per_file, "row_group_rows": row_group_rows}
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
        shape: dict[str, int] = {"files": files, "rows": -(-rows // 6), "row_group_rows": row_group_rows}
        return Table(folder=folder, name=name, draw=drawn, users=users, **shape)

    of_users = Table(folder=folder, name="users", draw=_user_rows, files=1, rows=users, row_group_rows=65_536)
    return table("site", _site_rows, 4), table("partner", _partner_rows, 2), of_users


def source_tables(
    folder: Path, *, lengths: Draws, sources: int = 1, files: int = 4, rows: int = 4_000, row_group_rows: int = 512
) -> list[Table]:
    """Folders `source-0`, `source-1`, ... of `files` files of `rows` rows each. `lengths`: of the histories."""
    positive(sources=sources)
    shape: dict[str, int] = {"files": files, "rows": rows, "row_group_rows": row_group_rows}
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
