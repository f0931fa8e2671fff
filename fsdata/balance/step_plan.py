"""What all ranks know of a step before it is planned, and what a plan decides. Planning needs no exchange, so no torch.

Letters: N samples of the global batch, W ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fsdata.order.status_word import StatusWord


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """What every rank knows of a step before planning it, the same on all.

    Attributes:
        number: counts the exchanges.
        lengths: group -> int64 [N], samples in order of (home rank, row).
        home: int64 [N], the rank that read each sample.
        statuses: W of them.
        places: sequence that samples share -> int64 [N], the number of the first event that each sees, among those of
            all histories.
    """

    number: int
    lengths: dict[str, np.ndarray]
    home: np.ndarray
    statuses: tuple[StatusWord, ...]
    places: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where each sample of the global batch goes.

    Attributes:
        rank: int [N], without the samples that `rows` leaves out. Must be the same on every rank.
        rows: only the first `rows` samples of every home rank take part, the others are carried over to the next step;
            None: all take part.
        straggler_before, straggler_after: planned share of waiting, 1 - mean / max of the ranks' time.
    """

    rank: np.ndarray
    rows: int | None = None
    straggler_before: float | None = None
    straggler_after: float | None = None


Planner = Callable[[GlobalBatch], Assignment]
"""Decides from what all ranks know alone, so that all come to the same answer."""
