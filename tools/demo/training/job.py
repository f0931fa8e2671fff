"""Defines the job that the launcher gives to the ranks, and the outcome that it gets back."""

from dataclasses import dataclass
from pathlib import Path

from freescale_tools.demo.data import DemoData
from freescale_tools.demo.training.measure import Run
from fsdata import Polynomial


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The job of every rank. `out`: the file for rank 0's pickled `Outcome`."""

    data: DemoData
    steps: int
    seed: int
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Four runs of one job: plain, with balancing, with prioritized communication, and with both.

    `shared`: with balancing and shared histories, and with all three; empty if histories cannot be shared.
    """

    plain: Run
    balanced: Run
    prioritized: Run
    both: Run
    shared: tuple[Run, ...]
    cost: Polynomial

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.plain, self.balanced, self.prioritized, self.both, *self.shared

    @property
    def twins(self) -> list[tuple[Run, ...]]:
        """Pairs of runs that differ only in communication. Their results must be equal bit by bit."""
        return [(self.plain, self.prioritized), (self.balanced, self.both), *([self.shared] if self.shared else [])]
