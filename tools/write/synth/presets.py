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
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.files import write_whole
from freescale_tools.scan.histogram import LengthHistogram

VERSION = 2
_MARK = b"freescale.synth"

ITEMS = 300_007  # prime, so that a multiplication maps popularity ranks to distinct ids
_SCATTER = 104_729
_FIRST_REQUEST = 1_750_000_000  # epoch seconds
_MEAN_GAP_S = 3_600.0
# Five actions, the view first. One random byte picks an entry.
_ACTIONS = np.repeat(np.array([1, 2, 3, 4, 5]), [160, 52, 26, 13, 5])
_Z95 = 1.6448536269514722  # the 95th percentile of the standard normal

Columns = dict[str, pa.Array]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lognormal history lengths given by two quantiles, clipped to 0..clip."""

    median: float = 180.0
    p95: float = 1_200.0
    clip: int = 21_000

    def __post_init__(self) -> None:
        if not 0 < self.median <= self.p95 <= self.clip:
            raise ValueError(f"need 0 < median <= p95 <= clip, got {self.median}, {self.p95}, {self.clip}")

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        sigma = math.log(self.p95 / self.median) / _Z95
        lengths = self.median * np.exp(sigma * rng.standard_normal(rows))
        return np.minimum(lengths, self.clip).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """Every row has `length` events."""

    length: int = 180

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"need a length of 0 or more, got {self.length}")

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.full(rows, self.length, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Lengths with the frequencies that a profile has found. `of`: the sequence they belong to."""

    histogram: LengthHistogram
    of: str

    def __repr__(self) -> str:
        digest = blake2b(self.histogram.lengths.tobytes() + self.histogram.counts.tobytes(), digest_size=8)
        return f"Measured({self.of}: {self.histogram.rows} rows, {digest.hexdigest()})"

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return self.histogram.draw(rng, rows)


Draws = Lengths | Constant | Measured
"""A distribution: `draw(rng, rows)` is int64 [rows], 0 or more. Its `repr` identifies it completely."""

_USUAL_LENGTHS = Lengths()


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
        schema = pa.table(self.draw(np.random.default_rng(0), 0, 0)).schema
        for file, path in enumerate(paths):
            recipe = {"version": VERSION, "table": self.name, "file": file, "rows": self.rows}
            recipe |= {"group": self.row_group_rows, "users": self.users, "seed": seed}
            recipe |= {"lengths": self.lengths} if self.lengths else {}
            mark = json.dumps(recipe).encode()
            if _mark_of(path) == mark:
                advance(self.rows)
                continue
            part = path.with_suffix(".part")
            marked = schema.with_metadata({_MARK: mark})
            try:
                with pq.ParquetWriter(part, marked, compression="zstd", write_page_checksum=True) as writer:
                    for index, start in enumerate(range(0, self.rows, self.row_group_rows)):
                        rng = np.random.default_rng([seed, *self.name.encode(), file, index])
                        count = min(self.row_group_rows, self.rows - start)
                        columns = self.draw(rng, file * self.rows + start, count)
                        writer.write_table(pa.table(columns, marked), row_group_size=count)
                        advance(count)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return paths


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
    advance: Advance = lambda rows: None,
) -> list[Path]:
    """Write the reference set (200,000 rows, 70 M events at full size) and return its files in order."""
    table = reference_table(folder, files=files, rows_per_file=rows_per_file, row_group_rows=row_group_rows)
    return table.write(seed, advance)


def reference_table(folder: str | Path, *, files: int = 8, rows_per_file: int, row_group_rows: int = 4_096) -> Table:
    shape: dict[str, Any] = {"files": files, "rows": rows_per_file, "row_group_rows": row_group_rows}
    return Table(folder=Path(folder), name="reference", draw=_reference_rows, **shape)


def demo_set(folder: str | Path, *, rows: int = 24_000, row_group_rows: int = 256, seed: int = 0) -> DemoSet:
    """Write both sources and the user table. Two thirds of the rows belong to the site."""
    tables = demo_tables(folder, rows=rows, row_group_rows=row_group_rows)
    site, partner, users = (table.write(seed, lambda rows: None) for table in tables)
    return DemoSet(site=tuple(site), partner=tuple(partner), users=users[0])


def demo_tables(folder: str | Path, *, rows: int, row_group_rows: int = 256) -> tuple[Table, Table, Table]:
    """Site, partner, users."""
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
    past, request = _histories(rng, first, rows, step_s=7)
    candidates = rng.integers(1, 51, rows)
    columns: Columns = {
        "user_id": pa.array(rng.integers(1, 2_000_000, rows)),
        "request_ts": pa.array(request),
        **past,
        **_candidates(rng, candidates),
    }
    for i in range(10):
        columns[f"context_{i}"] = pa.array(rng.integers(0, 4 ** (i + 1), rows))
        columns[f"dense_{i}"] = pa.array(rng.standard_normal(rows, dtype=np.float32))
    for i in range(20):
        columns[f"unused_int_{i}"] = pa.array(rng.integers(0, 1 << (i + 2), rows))
    for i in range(10):
        columns[f"unused_float_{i}"] = pa.array(rng.standard_normal(rows, dtype=np.float32))
        short = rng.integers(0, 6, rows)
        columns[f"unused_list_{i}"] = _lists(short, rng.integers(0, 1_000, int(short.sum())))
    return columns


def _site_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past, request = _histories(rng, first, rows, step_s=60)
    return {
        "user_id": pa.array(rng.integers(1, users + 1, rows)),
        **past,
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "hour": pa.array((request // 3_600 % 24).astype(np.float32)),
        "request_ts": pa.array(request),
    }


def _partner_rows(rng: np.random.Generator, first: int, rows: int, users: int) -> Columns:
    past, request = _histories(rng, first, rows, step_s=120)
    return {
        "uid": pa.array(rng.integers(1, users + 1, rows).astype(np.int32)),
        "items": past["item_ids"].cast(pa.large_list(pa.int32())),
        "events": past["actions"].cast(pa.list_(pa.int32())),
        "times": past["timestamps"],
        "age": pa.array(rng.gamma(2.0, 200.0, rows)),
        "when": pa.array(request),
    }


def _user_rows(rng: np.random.Generator, first: int, rows: int) -> Columns:
    return {
        "user_id": pa.array(np.arange(first + 1, first + rows + 1)),
        "segment": pa.array(rng.integers(1, 13, rows).astype(np.int16)),
    }


def _source_rows(rng: np.random.Generator, first: int, rows: int, lengths: Draws) -> Columns:
    past, request = _histories(rng, first, rows, step_s=60, drawn=lengths)
    return {
        "user_id": pa.array(rng.integers(1, 1_000_000, rows)),
        **past,
        **_candidates(rng, rng.integers(1, 51, rows)),
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "request_ts": pa.array(request),
    }


def _histories(
    rng: np.random.Generator, first: int, rows: int, *, step_s: int, drawn: Draws = _USUAL_LENGTHS
) -> tuple[Columns, np.ndarray]:
    """(`item_ids`, `actions`, `timestamps` of `rows` rows; int64 [rows], a request later than every event of its row).

    There is one request in every `step_s` seconds. `first`: the number of the first row.
    """
    lengths = drawn.draw(rng, rows)
    events = int(lengths.sum())
    request = _FIRST_REQUEST + step_s * np.arange(first, first + rows) + rng.integers(0, step_s, rows)
    gaps = 1 + (rng.standard_exponential(events, dtype=np.float32) * np.float32(_MEAN_GAP_S)).astype(np.int64)
    since_start = np.cumsum(gaps)
    # The last event of a row is before its request, and times rise strictly.
    until = np.concatenate([[0], since_start])[np.cumsum(lengths)]
    times = np.repeat(request - until - 1, lengths) + since_start
    past = {
        "item_ids": _lists(lengths, _items(rng, events)),
        "actions": _lists(lengths, _ACTIONS[rng.integers(0, len(_ACTIONS), events, dtype=np.uint8)]),
        "timestamps": _lists(lengths, times),
    }
    return past, request


def _candidates(rng: np.random.Generator, counts: np.ndarray) -> Columns:
    """`candidate_ids` with their `candidate_labels`, a tenth of which are 1. counts: of every row."""
    total = int(counts.sum())
    return {
        "candidate_ids": _lists(counts, _items(rng, total)),
        "candidate_labels": _lists(counts, (rng.random(total) < 0.1).astype(np.float32)),
    }


def _items(rng: np.random.Generator, count: int) -> np.ndarray:
    """Item ids in 1..ITEMS-1. Popularity is about 1/rank (Zipf); popular ids lie anywhere in the range."""
    rank = np.exp(rng.random(count, dtype=np.float32) * np.float32(math.log(ITEMS))).astype(np.int64)
    return np.minimum(rank, ITEMS - 1) * _SCATTER % ITEMS


def _lists(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
    """One list a row; `values` are those of all rows."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
