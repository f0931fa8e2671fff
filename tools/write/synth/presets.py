"""Writes the two sets of fixed shape.

`reference_set` is the wide table that loaders are measured on: 27 columns to read among 67. `demo_set` is
what a training job meets: two sources that disagree on column names and types, and a side table of users.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.write.synth.histories import Columns, candidate_ends, candidates, histories, list_array, past_lists
from freescale_tools.write.synth.table_files import Advance, quiet, write_table


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
    _positive(files=files, rows_per_file=rows_per_file, row_group_rows=row_group_rows)
    options: dict[str, Any] = {"row_group_rows": row_group_rows, "seed": seed, "advance": advance}
    return write_table(Path(folder), "reference", _reference_rows, files, rows_per_file, **options)


def demo_set(
    folder: str | Path, *, rows: int = 24_000, row_group_rows: int = 256, seed: int = 0, advance: Advance = quiet
) -> DemoSet:
    """Write both sources and the user table. Two thirds of the rows belong to the site."""
    _positive(rows=rows, row_group_rows=row_group_rows)
    folder = Path(folder)
    users = max(rows // 3, 1)

    def site(rng: np.random.Generator, first: int, count: int) -> Columns:
        return _site_rows(rng, first, count, users)

    def partner(rng: np.random.Generator, first: int, count: int) -> Columns:
        return _partner_rows(rng, first, count, users)

    per_file = -(-rows // 6)
    options: dict[str, Any] = {"row_group_rows": row_group_rows, "seed": seed, "users": users, "advance": advance}
    return DemoSet(
        site=tuple(write_table(folder, "site", site, 4, per_file, **options)),
        partner=tuple(write_table(folder, "partner", partner, 2, per_file, **options)),
        users=write_table(folder, "users", _user_rows, 1, users, row_group_rows=65_536, seed=seed, advance=advance)[0],
    )


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


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
