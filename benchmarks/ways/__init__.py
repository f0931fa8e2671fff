"""The ways of reading a set that `loader.py` compares: ours, the yardstick, and what people use today.

Every module has one generator function per way. It takes a `Run` and yields `Delivered` batches (the yardstick: row
counts), each with a KeyedJaggedTensor, the dense features [B, D] and the label.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to read an epoch.

    Attributes:
        name: as printed.
        function: `module:function` inside this package.
        shuffle: what is permuted.
        options: keyword arguments of the function.
        workers: worker processes, whose memory is added.
        role: "raw" (the yardstick), "ours" or "peer".
        note: what a reader of the table must know.
    """

    name: str
    function: str
    shuffle: str = "no"
    options: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    role: str = "peer"
    note: str = ""

    def load(self) -> Callable[..., Iterator[Any]]:
        """Import the module with all that it needs, before the clock starts."""
        module, function = self.function.split(":")
        return getattr(importlib.import_module(f"ways.{module}"), function)


WAYS = (
    Way(name="raw decode", function="raw:row_groups", role="raw", note="2 threads, a row group each; results dropped"),
    Way(name="FreeScale", function="freescale:batches", role="ours"),
    Way(
        name="FreeScale shuffled",
        function="freescale:batches",
        shuffle="rows in 4 row groups",
        options={"shuffle": True},
        role="ours",
    ),
    Way(name="HF datasets, streaming, arrow", function="huggingface:streaming"),
    Way(
        name="HF datasets, arrow cache",
        function="huggingface:cached_shuffled",
        shuffle="all rows",
        note="cache of decoded columns written beforehand, not counted; memory is mapped file pages",
    ),
    Way(
        name="torchdata.nodes, Table.take",
        function="nodes_take:batches",
        shuffle="rows in a row group",
        note="2 threads decode and take, 1 converts",
    ),
    Way(name="TorchEasyRec-style", function="easyrec:batches", shuffle="batches"),
    Way(
        name="TorchEasyRec-style, 2 workers",
        function="easyrec:batches",
        shuffle="batches",
        options={"workers": 2},
        workers=2,
    ),
    Way(name="DataLoader, numpy rows", function="torch_rows:batches", shuffle="rows in a row group"),
    Way(
        name="DataLoader, numpy rows, 2 workers",
        function="torch_rows:batches",
        shuffle="rows in a row group",
        options={"workers": 2},
        workers=2,
    ),
)
