"""What the launcher hands to the ranks, and what it gets back."""

from dataclasses import dataclass
from pathlib import Path

from freescale_tools.demo.data import DemoData
from freescale_tools.demo.training.measure import Run
from fsdata import Polynomial


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the launcher hands to every rank. `out`: where rank 0 leaves a pickled `Outcome`."""

    data: DemoData
    steps: int
    seed: int
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Four runs of the same job: with neither, with one, and with both of balancing and prioritized communication."""

    plain: Run
    balanced: Run
    prioritized: Run
    both: Run
    cost: Polynomial

    @property
    def runs(self) -> tuple[Run, Run, Run, Run]:
        return self.plain, self.balanced, self.prioritized, self.both

    @property
    def twins(self) -> tuple[tuple[Run, Run], ...]:
        """Pairs that differ in communication alone, so must be equal to the bit."""
        return (self.plain, self.prioritized), (self.balanced, self.both)
