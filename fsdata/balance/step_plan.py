"""What all ranks know of a step before it is planned, and what a plan decides. Planning needs no exchange, so no torch.

Letters: N samples of the global batch, W ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWord:
    """What one rank says about its part of a step.

    The caller fills in the first four fields; the exchange adds the others.

    Attributes:
        epoch, step: position of the step; all ranks must agree on them.
        position: a number of the caller's (where its reading stands); the exchange only passes it on.
        ended: nothing follows the rows that this rank contributes to this step.
        rows: samples this rank contributes.
        longest: elements of the longest field of any of them.
        left: the rank left the loop here.
        failed: the rank's reading failed here; it sends the message next.
        compute_ns, compute_step: the last `report`, 0 and -1 if there is none since the last word.
        moving_ns: how long stage III of the step before took here.
    """

    epoch: int
    step: int
    position: int = 0
    ended: bool = False
    rows: int = 0
    longest: int = 0
    left: bool = False
    failed: bool = False
    compute_ns: int = 0
    compute_step: int = -1
    moving_ns: int = 0


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
