"""From files to batches, one node after another; a `FreeScaleDataLoader` is all of them.

    units = Units(sources, schema, shuffle=True)     which rows, in which order
    rows = Rows(units)                               windows of rows by reference: decode threads
    steps = Steps(rows, batch_size=512)              this rank's part of every step
    balanced = BalancedSteps(steps, Balance())       samples moved between ranks; or LocalSteps(steps)
    batches = Batches(balanced)                      tensors

Each is a `torchdata.nodes.BaseNode`, so that it stands in a graph of torchdata: behind it a `Prefetcher`, say.
`BalancedTensors` balances the batches of tensors of any node before it. All have one law of state, see `node`.

`units` opens files as a `dataset`; `rows` decodes pieces of it; `steps` takes rows from them; in `local_steps` ranks
meet, by a `status_exchange`, where they have to.
`batches` copies rows into tensors, of samples if rows `explode`. `loader_options` are checked before all of it.
"""

import importlib
from typing import Any

from fsdata.nodes.batches import Adapted, Batches
from fsdata.nodes.local_steps import LocalSteps
from fsdata.nodes.rows import Rows
from fsdata.nodes.steps import Part, Step, Steps
from fsdata.nodes.units import Units

__all__ = [
    "Adapted",
    "BalancedSteps",
    "BalancedTensors",
    "Batches",
    "Followed",
    "LocalSteps",
    "Part",
    "Rows",
    "Step",
    "Steps",
    "Units",
]


_OF_EXTENSIONS = {
    "BalancedSteps": "fsdata.balance.balanced_steps",
    "BalancedTensors": "fsdata.tensors.balanced_tensors",
    "Followed": "fsdata.growing.followed",
}


def __getattr__(name: str) -> Any:
    if name in _OF_EXTENSIONS:
        return getattr(importlib.import_module(_OF_EXTENSIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
