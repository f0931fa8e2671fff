"""What the maps of a module did with one batch, ahead of its forward."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fscomm.report.report import Managed

UNKNOWN = -1


@dataclass(slots=True, kw_only=True)
class Record:
    """Of the maps of one module on this rank. N ids and F features of a sharding group.

    Attributes:
        hour: in which the batch was mapped, as policies of eviction read it; `UNKNOWN` if it ended meanwhile.
        hour_before: in which the twins mapped the batch before; None: there is none.
        asked: by sharding group, what they were given: ids int64[N] by feature, and inside a feature by rank; int64[F].
        evictions: by table, int64 rows of this rank whose id is another one now; None: the map evicted nothing.
        changes: by table, what `MapsAhead.publish` needs. counts: by table.
    """

    hour: int = UNKNOWN
    hour_before: int | None = None
    asked: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    evictions: dict[str, torch.Tensor | None] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Managed] = field(default_factory=dict)
