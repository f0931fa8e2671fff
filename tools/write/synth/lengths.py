"""Distributions of history lengths, by name or from a profile.

Each distribution draws from a numpy generator. The same generator gives the same lengths.
"""

import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram

_Z95 = 1.6448536269514722  # the 95th percentile of the standard normal


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
    options = {"--median": ("median", median), "--p95": ("p95", p95), "--max": ("clip", longest)}
    given = {option: value for option, (_, value) in options.items() if value is not None}
    other = [option for option in given if option != "--median"]
    if name == "constant" and other:
        raise UsageError(f"--lengths constant takes --median, not {other[0]}")
    try:
        if name == "constant":
            return Constant() if median is None else Constant(length=round(median))
        return Lengths(**{options[option][0]: value for option, value in given.items()})
    except ValueError as error:
        words = str(error)
        for option, (field, _) in options.items():
            words = words.replace(field, option)
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
