"""Distributions of history lengths, by name or from a profile.

Each distribution draws from a numpy generator. The same generator gives the same lengths.
"""

import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram

_Z95 = 1.6448536269514722  # the 95th percentile of the standard normal


class Draws(Protocol):
    """A distribution of lengths. Its `repr` identifies it completely."""

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """int64 [rows], 0 or more."""
        ...


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
class Pareto:
    """Lengths with the tail of Zipf's law, P(length > n) ~ n^-a.

    Two quantiles define it; clipped to 0..clip.
    """

    median: float = 180.0
    p95: float = 1_200.0
    clip: int = 21_000

    def __post_init__(self) -> None:
        if not 0 < self.median < self.p95 <= self.clip:
            raise ValueError(f"need 0 < median < p95 <= clip, got {self.median}, {self.p95}, {self.clip}")

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        one_over_a = math.log(self.p95 / self.median) / math.log(0.5 / 0.05)
        lengths = self.median * (2 * (1 - rng.random(rows))) ** -one_over_a
        return np.minimum(lengths, self.clip).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    """Every length from 0 to `clip` is equally likely."""

    clip: int = 21_000

    def __post_init__(self) -> None:
        if self.clip < 1:
            raise ValueError(f"need clip of at least 1, got {self.clip}")

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.integers(0, self.clip + 1, rows)


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


def named(name: str, *, median: float | None, p95: float | None, longest: int | None) -> Draws:
    """The distribution of that name.

    Raises UsageError for values that it does not take or that contradict.
    """
    takes: dict[str, tuple[Any, dict[str, str]]] = {
        "lognormal": (Lengths, {"--median": "median", "--p95": "p95", "--max": "clip"}),
        "pareto": (Pareto, {"--median": "median", "--p95": "p95", "--max": "clip"}),
        "uniform": (Uniform, {"--max": "clip"}),
        "constant": (Constant, {"--median": "length"}),
    }
    kind, options = takes[name]
    given = {"--median": median, "--p95": p95, "--max": longest}
    for option, value in given.items():
        if value is not None and option not in options:
            raise UsageError(f"--lengths {name} takes {', '.join(options)}, not {option}")
    chosen = {options[option]: value for option, value in given.items() if value is not None}
    if "length" in chosen:
        chosen["length"] = round(chosen["length"])
    try:
        made: Draws = kind(**chosen)
    except ValueError as error:
        words = str(error).replace("clip", "--max").replace("median", "--median").replace("p95", "--p95")
        raise UsageError(f"--lengths {name}: {words}") from error
    return made


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
