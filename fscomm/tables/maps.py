"""What fscomm asks of tables behind managed collision: which row an id has is said by maps that training writes.

Ids get their rows one batch ahead, by *twins* of the maps. What a batch changed is a *record*; it is *published* into
the module's own maps at the forward, so these are always what the plain loop would have left.

N ids, F features and T tables of a sharding group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from fscomm.report.report import Managed

UNKNOWN = -1


@dataclass(slots=True, kw_only=True)
class Record:
    """What the maps of one module on this rank did with a batch.

    Attributes:
        hour: in which they did, as policies of eviction read it; `UNKNOWN` if it ended meanwhile.
        hour_before: in which the twins met the batch before; None: there is none.
        asked: by sharding group, what they were given: ids int64[N] by feature, and inside a feature by rank; int64[F].
        evictions: by table, int64 rows of this rank whose id is another one now; None: the map evicted nothing.
        changes: by table, what `Maps.publish` needs. counts: by table.
    """

    hour: int = UNKNOWN
    hour_before: int | None = None
    asked: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    evictions: dict[str, torch.Tensor | None] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Managed] = field(default_factory=dict)


class Maps(Protocol):
    """Of one module. `renew`, `remap` and `remap_again` are for the ids worker, all else for the training thread."""

    @property
    def writes(self) -> bool:
        """Whether a forward changes the maps now: whether the module is in training mode."""

    def hour(self) -> int:
        """As policies of eviction read it; 0 if they read none."""

    def versions(self) -> list[object]:
        """What changes when somebody writes to the module's maps in place, or sets one of them otherwise."""

    def snapshot(self) -> Mapping[str, Any]:
        """Copies of the module's maps as they are now."""

    def renew(self, maps: Mapping[str, Any]) -> None:
        """These are the twins from now on."""

    def remap(self, record: Record, group: int, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """int64[N] the row of this rank that each id has from now on; fills `record`. As in `Record.asked`."""

    def remap_again(self, record: Record) -> Record:
        """What `record` says was asked is asked of the twins once more."""

    def evicted(self, record: Record, group: int) -> list[np.ndarray]:
        """[T] the rows that were evicted."""

    def first_rows(self, group: int) -> np.ndarray:
        """int64[T] the first row of each table that this rank owns."""

    def publish(self, record: Record) -> None:
        """The module's maps become what they are after its forward of this batch."""

    def evict(self, record: Record) -> None:
        """Rows with another id become new, as in the module's own forward: weights, and what is reset of optimizers.
        Draws random numbers."""
