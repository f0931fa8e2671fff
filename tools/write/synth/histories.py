"""Draws histories: their lengths from a distribution or a profile, their events, and candidates with labels.

The same numpy generator gives the same values.
"""

import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram

ITEMS = 300_007  # prime, so that a multiplication maps popularity ranks to distinct ids
_SCATTER = 104_729
_FIRST_REQUEST = 1_750_000_000  # epoch seconds
_MEAN_GAP_S = 3_600.0
# Five actions, the view first. One random byte picks an entry.
_ACTIONS = np.repeat(np.array([1, 2, 3, 4, 5]), [160, 52, 26, 13, 5])
_Z95 = 1.6448536269514722  # the 95th percentile of the standard normal

Columns = dict[str, pa.Array]


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


def named(name: str, *, median: float | None, p95: float | None, longest: int | None) -> Draws:
    """The distribution of that name, `lognormal` or `constant`.

    Raises UsageError for values that it does not take or that contradict.
    """
    given = {"median": median, "p95": p95, "clip": longest}
    chosen: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    try:
        if name != "constant":
            return Lengths(**chosen)
        if p95 is not None or longest is not None:
            raise UsageError(f"--lengths constant takes --median, not {'--max' if p95 is None else '--p95'}")
        return Constant() if median is None else Constant(length=round(median))
    except ValueError as error:
        words = str(error).replace("clip", "--max").replace("median", "--median").replace("p95", "--p95")
        raise UsageError(f"--lengths {name}: {words}") from error


def from_profile(path: Path, sequence: str | None) -> Measured:
    """The lengths that `freescale profile` found for one sequence; by default the first.

    Raises UsageError if the file is no profile, lacks the sequence, or was made with --quick.
    """
    file = path / "profile.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--lengths-from {file}: {error}") from error
    sequences = document.get("sequences") if isinstance(document, dict) else None
    if not isinstance(sequences, dict) or not sequences:
        raise UsageError(f"--lengths-from {file}: not a profile with sequences: write it with freescale profile")
    name = sequence or next(iter(sequences))
    if name not in sequences:
        raise UsageError(f"--lengths-from {file}: no sequence {name!r}; there are {', '.join(sequences)}")
    histogram = sequences[name].get("histogram")
    if not histogram:
        raise UsageError(f"--lengths-from {file}: a quick profile has no histogram: profile again without --quick")
    return Measured(histogram=LengthHistogram.from_dict(histogram), of=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """One row group of aligned histories. offsets int32 [rows + 1]; the others int64 [events]."""

    offsets: np.ndarray
    items: np.ndarray
    actions: np.ndarray
    times: np.ndarray
    request: np.ndarray  # int64 [rows], later than every event of its row


def histories(rng: np.random.Generator, first: int, rows: int, step_s: int, drawn: Draws | None = None) -> Histories:
    """Of `rows` rows, with one request in every `step_s` seconds. `first`: the number of the first row."""
    lengths = (drawn or Lengths()).draw(rng, rows)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    events = int(offsets[-1])
    request = _FIRST_REQUEST + step_s * np.arange(first, first + rows) + rng.integers(0, step_s, rows)
    gaps = 1 + (rng.standard_exponential(events, dtype=np.float32) * np.float32(_MEAN_GAP_S)).astype(np.int64)
    since_start = np.cumsum(gaps)
    # The last event of a row is before its request, and times rise strictly.
    until = np.concatenate([[0], since_start])[offsets[1:]]
    times = np.repeat(request - until - 1, lengths) + since_start
    return Histories(
        offsets=offsets.astype(np.int32),
        items=_items(rng, events),
        actions=_ACTIONS[rng.integers(0, len(_ACTIONS), events, dtype=np.uint8)],
        times=times,
        request=request,
    )


def _items(rng: np.random.Generator, count: int) -> np.ndarray:
    """Item ids in 1..ITEMS-1. Popularity is about 1/rank (Zipf); popular ids lie anywhere in the range."""
    rank = np.exp(rng.random(count, dtype=np.float32) * np.float32(math.log(ITEMS))).astype(np.int64)
    return np.minimum(rank, ITEMS - 1) * _SCATTER % ITEMS


def list_array(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def past_lists(past: Histories) -> Columns:
    """`item_ids`, `actions` and `timestamps`."""
    columns = {"item_ids": past.items, "actions": past.actions, "timestamps": past.times}
    return {name: list_array(past.offsets, values) for name, values in columns.items()}


def candidate_ends(rng: np.random.Generator, rows: int) -> np.ndarray:
    """int32 [rows + 1]: where the 1 to 50 candidates of every row begin."""
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(1, 51, rows), out=ends[1:])
    return ends


def candidates(rng: np.random.Generator, ends: np.ndarray) -> Columns:
    """`candidate_ids` with their `candidate_labels`, a tenth of which are 1."""
    count = int(ends[-1])
    return {
        "candidate_ids": list_array(ends, _items(rng, count)),
        "candidate_labels": list_array(ends, (rng.random(count) < 0.1).astype(np.float32)),
    }
