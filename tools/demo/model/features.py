"""Describes the features of a data set for the model."""

from dataclasses import dataclass
from typing import Literal

HISTORY = "history"  # name of the sequence in a batch
_SMALL = 1_024  # rows up to which a table is replicated
TIME_BUCKETS = 64  # buckets of log2 seconds, enough for a 63-bit gap


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One key of the batch and the table it is looked up in.

    kind: `item` is predicted; `id` is any other id; `time` is a rising time stamp, of which the model sees
    the logarithm of the gap to the event before. `rows`: rows of the table; ids are taken modulo this number.
    """

    name: str
    kind: Literal["item", "id", "time"]
    rows: int

    @property
    def small(self) -> bool:
        """Whether the table is replicated instead of sharded.

        The item table is sharded: it also serves negatives.
        """
        return self.kind != "item" and self.rows <= _SMALL


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The features of the data, and the sizes of the model."""

    history: tuple[Feature, ...]  # aligned fields of an event, the item first
    context: tuple[Feature, ...] = ()  # one id per sample
    dense: int = 0
    width: int = 64
    heads: int = 2
    layers: int = 2
    negatives: int = 16

    def __post_init__(self) -> None:
        if not self.history or self.history[0].kind != "item":
            raise ValueError(f"the first field of the history must be the item, got {self.history}")

    @property
    def item(self) -> Feature:
        return self.history[0]
