"""The input and the result of a step's plan. Planning needs no exchange, so this file needs no torch.

Letters: N samples of the global batch, W ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fsdata.order.status_word import StatusWord


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The gathered facts from which a step is planned, equal on all ranks.

    Attributes:
        number: of the exchange, counted from 0.
        lengths: group -> int64 [N], samples in order of (home rank, row).
        home: int64 [N], the rank that read each sample.
        statuses: [W].
        first_events: shared sequence -> int64 [N], the number of the first event that each sample sees, among all
            events of all histories.
    """

    number: int
    lengths: dict[str, np.ndarray]
    home: np.ndarray
    statuses: tuple[StatusWord, ...]
    first_events: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The plan of a step: the destination of each sample.

    Attributes:
        rank: int [N], only of the samples that take part. Must be equal on every rank.
        rows: the first `rows` samples of every home rank take part, the others are carried over to the next step;
            None: all take part.
        straggler_before, straggler_after: planned share of idle time, 1 - mean / max of the ranks' time.
    """

    rank: np.ndarray
    rows: int | None = None
    straggler_before: float | None = None
    straggler_after: float | None = None


Planner = Callable[[GlobalBatch], Assignment]
"""A pure function of the gathered batch: every rank calls it, and all must get the same plan."""
