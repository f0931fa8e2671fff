"""Seeded, heavy-tailed Parquet sets for the demo and the benchmarks.

Two presets. `reference_set` is the wide table that loaders are measured on: 27 columns to read among 67. `demo_set` is
what a training job really meets: two sources that disagree on column names and types, and a side table of users.

Every row group is drawn from its own generator, seeded by (seed, table, file, row group): the values do not depend on
what was written before, memory holds one row group, and a file that already carries the same recipe is left alone.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.synth.lengths import Draws, Lengths

VERSION = 2
ITEMS = 300_007  # prime, so that multiplying popularity ranks scatters them over all ids without a clash
_SCATTER = 104_729
_FIRST_REQUEST = 1_750_000_000  # epoch seconds
_MEAN_GAP_S = 3_600.0
# Five actions, view first: one byte of randomness picks an entry.
_ACTIONS = np.repeat(np.array([1, 2, 3, 4, 5]), [160, 52, 26, 13, 5])

_LENGTHS = Lengths()

Columns = dict[str, pa.Array]
Advance = Callable[[int], None]  # told how many rows more are there
RowGroup = Callable[[np.random.Generator, int, int], Columns]  # generator, first row, rows -> columns


def _quiet(rows: int) -> None:
    pass


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
        """All 27 of them."""
        return (*self.sequence, *self.candidates, self.label, *self.context, *self.dense)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSet:
    """Files of the demo set. The two sources hold the same kind of sample under different names and types."""

    site: tuple[Path, ...]  # user_id, item_ids, actions, timestamps: int64; country; age_days, hour; request_ts
    partner: tuple[Path, ...]  # uid, items (large_list), events: int32; times; age; when. No country, no hour
    users: Path  # user_id, segment: one row per user


def reference_columns() -> ReferenceColumns:
    """Names of the 27 columns that count; the other 40 are there to be skipped."""
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
    advance: Advance = _quiet,
) -> list[Path]:
    """Write the reference set (200,000 rows, 70 M events at full size) and return its files in order."""
    _positive(files=files, rows_per_file=rows_per_file, row_group_rows=row_group_rows)
    options: dict[str, Any] = {"row_group_rows": row_group_rows, "seed": seed, "advance": advance}
    return write_table(Path(folder), "reference", _reference_rows, files, rows_per_file, **options)


def demo_set(
    folder: str | Path, *, rows: int = 24_000, row_group_rows: int = 256, seed: int = 0, advance: Advance = _quiet
) -> DemoSet:
    """Write both sources and the users; two thirds of the rows are the site's."""
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
    advance: Advance = _quiet,
) -> list[Path]:
    """Write `<table>-<i>-of-<n>.parquet`, each through a temporary name, so that a stopped run leaves no half file.

    `users` and `lengths` are part of what `draw` draws from: files that were made with others are made again.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Histories:
    """One row group of aligned histories. offsets int32 [rows + 1]; the others int64 [events]."""

    offsets: np.ndarray
    items: np.ndarray
    actions: np.ndarray
    times: np.ndarray
    request: np.ndarray  # int64 [rows], later than every event of its row


def _histories(rng: np.random.Generator, first: int, rows: int, step_s: int, drawn: Draws = _LENGTHS) -> _Histories:
    lengths = drawn.draw(rng, rows)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    events = int(offsets[-1])
    request = _FIRST_REQUEST + step_s * np.arange(first, first + rows) + rng.integers(0, step_s, rows)
    gaps = 1 + (rng.standard_exponential(events, dtype=np.float32) * np.float32(_MEAN_GAP_S)).astype(np.int64)
    since_start = np.cumsum(gaps)
    # The last event of a row falls one gap before its request, so times rise strictly and stay in the past.
    until = np.concatenate([[0], since_start])[offsets[1:]]
    times = np.repeat(request - until - 1, lengths) + since_start
    return _Histories(
        offsets=offsets.astype(np.int32),
        items=_items(rng, events),
        actions=_ACTIONS[rng.integers(0, len(_ACTIONS), events, dtype=np.uint8)],
        times=times,
        request=request,
    )


def _items(rng: np.random.Generator, count: int) -> np.ndarray:
    """Item ids in 1..ITEMS-1, popularity about 1/rank (Zipf), the popular ones scattered over the range."""
    rank = np.exp(rng.random(count, dtype=np.float32) * np.float32(math.log(ITEMS))).astype(np.int64)
    return np.minimum(rank, ITEMS - 1) * _SCATTER % ITEMS


def _list(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def history_columns(
    rng: np.random.Generator, first: int, rows: int, *, step_s: int, lengths: Draws
) -> tuple[Columns, np.ndarray]:
    """`item_ids`, `actions`, `timestamps`, and int64 [rows], the time of the request, one every `step_s` seconds."""
    past = _histories(rng, first, rows, step_s, lengths)
    return _past_lists(past), past.request


def candidate_columns(rng: np.random.Generator, rows: int) -> Columns:
    """1 to 50 `candidate_ids` a row with their `candidate_labels`, a tenth of them 1."""
    return _candidates(rng, _candidate_ends(rng, rows))


def _past_lists(past: _Histories) -> Columns:
    columns = {"item_ids": past.items, "actions": past.actions, "timestamps": past.times}
    return {name: _list(past.offsets, values) for name, values in columns.items()}


def _candidate_ends(rng: np.random.Generator, rows: int) -> np.ndarray:
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(1, 51, rows), out=ends[1:])
    return ends


def _candidates(rng: np.random.Generator, ends: np.ndarray) -> Columns:
    count = int(ends[-1])
    return {
        "candidate_ids": _list(ends, _items(rng, count)),
        "candidate_labels": _list(ends, (rng.random(count) < 0.1).astype(np.float32)),
    }


def _reference_rows(rng: np.random.Generator, first: int, rows: int) -> Columns:
    past = _histories(rng, first, rows, step_s=7)
    ends = _candidate_ends(rng, rows)
    columns: Columns = {
        "user_id": pa.array(rng.integers(1, 2_000_000, rows)),
        "request_ts": pa.array(past.request),
        **_past_lists(past),
        **_candidates(rng, ends),
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
        columns[f"unused_list_{i}"] = _list(short, rng.integers(0, 1_000, int(short[-1])))
    return columns


def _site_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past = _histories(rng, first, rows, step_s=60)
    return {
        "user_id": pa.array(rng.integers(1, users + 1, rows)),
        **_past_lists(past),
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "hour": pa.array((past.request // 3_600 % 24).astype(np.float32)),
        "request_ts": pa.array(past.request),
    }


def _partner_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past = _histories(rng, first, rows, step_s=120)
    items = pa.LargeListArray.from_arrays(
        pa.array(past.offsets.astype(np.int64)), pa.array(past.items.astype(np.int32))
    )
    return {
        "uid": pa.array(rng.integers(1, users + 1, rows).astype(np.int32)),
        "items": items,
        "events": _list(past.offsets, past.actions.astype(np.int32)),
        "times": _list(past.offsets, past.times),
        "age": pa.array(rng.gamma(2.0, 200.0, rows)),
        "when": pa.array(past.request),
    }


def _user_rows(rng: np.random.Generator, first: int, rows: int) -> Columns:
    return {
        "user_id": pa.array(np.arange(first + 1, first + rows + 1)),
        "segment": pa.array(rng.integers(1, 13, rows).astype(np.int16)),
    }
