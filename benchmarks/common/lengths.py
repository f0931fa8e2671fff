"""History lengths of simulated global batches."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lognormal lengths, rounded and clipped."""

    median: float
    sigma: float = 0.55
    shortest: int = 1
    longest: int = 21_000

    def batch(self, samples: int, seed: int) -> np.ndarray:
        """int64[samples]."""
        drawn = np.random.default_rng(seed).lognormal(np.log(self.median), self.sigma, samples)
        return np.clip(np.rint(drawn), self.shortest, self.longest).astype(np.int64)


LOGNORMAL = Lengths(median=2000)
"""The quadratic case on which packing methods are compared."""

PAPER_LIKE = Lengths(median=4000)
"""Reproduces the paper's straggler share: 22 % unbalanced, 2.4 % with FBS, at 64 ranks of 128 samples."""

REFERENCE = Lengths(median=180, sigma=1.153, shortest=0)
"""The very long-tailed set of the reading benchmark: single samples are dearer than what a mean rank holds."""
