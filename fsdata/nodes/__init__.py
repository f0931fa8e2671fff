"""The nodes from files to batches; `FreeScaleDataLoader` composes all of them.

    units = Units(sources, schema, shuffle=True)     the rows of this rank, in order
    rows = Rows(units)                               windows of rows by reference: decode threads
    steps = Steps(rows, batch_size=512)              this rank's part of every step
    balanced = BalancedSteps(steps, Balance())       samples are moved between ranks; or LocalSteps(steps)
    batches = Batches(balanced)                      tensors

Each is a `torchdata.nodes.BaseNode` and can be part of a graph of torchdata: before a `Prefetcher`, for example.
`BalancedTensors` balances batches of tensors of any node. All nodes have the same state, see `node`.

`units` opens files as a `dataset`, `rows` decodes pieces of it, `steps` takes rows from them. In `local_steps` ranks
exchange status words, if they need to, by a `status_exchange`. `batches` copies rows into tensors; `explode` makes
samples of rows. `loader_options` checks arguments. `prefetching_loader` runs the nodes ahead of a training loop.
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
