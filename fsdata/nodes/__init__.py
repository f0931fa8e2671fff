"""From files to batches, one node after another; a `FreeScaleDataLoader` is all of them.

    units = Units(sources, schema, shuffle=True)     which rows, in which order
    rows = Rows(units)                               windows of rows by reference: decode threads
    steps = Steps(rows, batch_size=512)              this rank's part of every step
    dealt = Dealt(steps, Balance())                  samples moved between ranks; or Kept(steps)
    batches = Batches(dealt)                         tensors

Each is a `torchdata.nodes.BaseNode`, so that it stands in a graph of torchdata: behind it a `Prefetcher`, say, or
before `Dealt` any node that gives batches of tensors. All have one law of state, see `node`.

`units` opens files as a `dataset`; `rows` decodes pieces of it; `steps` takes rows from them; `dealt` lets ranks meet.
`batches` copies rows into tensors, of samples if rows `explode`. `loader_options` are checked before all of it.
"""

import importlib
from typing import Any

from fsdata.nodes.batches import Adapted, Batches
from fsdata.nodes.dealt import Dealt, Kept
from fsdata.nodes.rows import Rows
from fsdata.nodes.steps import Part, Step, Steps
from fsdata.nodes.units import Units

__all__ = ["Adapted", "Batches", "Dealt", "Followed", "Kept", "Part", "Rows", "Step", "Steps", "Units"]


def __getattr__(name: str) -> Any:
    if name == "Followed":  # of an extension
        return importlib.import_module("fsdata.growing.followed").Followed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
