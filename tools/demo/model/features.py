"""What the model has to know about a data set."""

from dataclasses import dataclass
from typing import Literal

_SMALL = 1_024  # rows up to which a table is replicated
TIME_BUCKETS = 64  # of log2 seconds; more than a 63-bit gap can reach


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One key of the batch and the table it is looked up in.

    kind: `item` is what is predicted, `id` any other id, `time` a rising time stamp that becomes the logarithm of the
    gap to the event before. `rows`: ids are taken modulo the rows of the table.
    """

    name: str
    kind: Literal["item", "id", "time"]
    rows: int

    @property
    def small(self) -> bool:
        """Its table is replicated, not sharded; that of the item never is, as negatives are looked up in it too."""
        return self.kind != "item" and self.rows <= _SMALL


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Everything the model needs to know about the data, and its sizes."""

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
