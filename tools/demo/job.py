"""What the launcher hands to the ranks, and what it gets back."""

from dataclasses import dataclass
from pathlib import Path

from fsdata import Polynomial

from .data import DemoData
from .measure import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the launcher hands to every rank. `out`: where rank 0 leaves a pickled `Outcome`."""

    data: DemoData
    steps: int
    seed: int
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    plain: Run
    balanced: Run
    cost: Polynomial
