"""The lengths of all samples of a step, as planners get them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fsdata import Polynomial
from fsdata.balance.step_plan import GlobalBatch
from fsdata.order.status_word import StatusWord

COST = Polynomial(linear=1, quadratic=1, candidate=1)


def global_batch(
    lengths: Any, home: Any, *, step: int = 0, first_events: Mapping[str, np.ndarray] | None = None, **status: int
) -> GlobalBatch:
    """Samples that rank home[n] has read. lengths: of "uih", or by sequence. status: what every rank says of itself."""
    lengths = lengths if isinstance(lengths, dict) else {"uih": lengths}
    return GlobalBatch(
        number=step,
        lengths={name: np.asarray(each) for name, each in lengths.items()},
        first_events=first_events or {},
        home=np.asarray(home),
        statuses=(StatusWord(epoch=0, step=step, **status),) * (int(np.max(home)) + 1),
    )
