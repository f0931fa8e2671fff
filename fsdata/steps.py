"""The steps of one epoch on one rank: rows in, batches out.

Three ways to make a step, by what the ranks have to tell each other:
- `PlannedSteps`: nothing. Row counts are known from the footers, so are the sizes of every rank's batches.
- `AgreedSteps`: rows can drop out while reading; the ranks exchange one status word per step.
- `BalancedSteps`: the global batch is dealt out anew (PAPER section 1, Algorithm 1).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fsdata.assemble import assemble
from fsdata.batch import Batch, StepStats
from fsdata.layout import Layout
from fsdata.reading.reader import Reader
from fsdata.rows import RowTable
from fsdata.state import Progress

Uneven = Literal["drop", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank has to deliver in the rest of an epoch.

    Attributes:
        rank, world_size, batch_size: of the job; `batch_size` samples per rank and step.
        left: int64 [W], planned rows that each rank still has to pass.
        progress: where the job stands before the first of these steps.
    """

    rank: int
    world_size: int
    batch_size: int
    left: np.ndarray
    progress: Progress

    @property
    def full_steps(self) -> int:
        return int(self.left.sum()) // (self.world_size * self.batch_size)

    def counts(self, step: int) -> np.ndarray:
        """int64 [W]: samples of every rank in step `step` of this stretch, if no row drops out.

        All global batches are full but the last, whose samples are dealt out evenly: counts differ by at most one.
        """
        ahead = np.maximum(self.left - step * self.batch_size, 0)
        return np.minimum(ahead, self.batch_size) if step < self.full_steps else ahead


class Steps(ABC):
    """An iterator over (batch, progress after it)."""

    def __init__(self, share: Share, reader: Reader, layout: Layout) -> None:
        self.share = share
        self.reader = reader
        self.layout = layout
        self.step = 0

    @abstractmethod
    def next(self) -> tuple[Batch, Progress] | None:
        """The next batch, None at the end of the epoch. Blocks on decoding and, where there are any, on peers."""

    def _batch(self, table: RowTable, origin: np.ndarray, stats: StepStats) -> Batch:
        return assemble(table, self.layout, origin=origin, stats=stats)

    def _progress(self, positions: Sequence[int], tuning: dict | None = None) -> Progress:
        """Progress after the step in hand, and on to the next."""
        self.step += 1
        before = self.share.progress
        return Progress(
            epoch=before.epoch,
            step=before.step + self.step,
            history=before.history,
            positions=tuple(int(p) + int(q) for p, q in zip(before.positions, positions, strict=True)),
            tuning=tuning,
        )

    def _stats(self, samples: int, global_samples: int, **known: object) -> StepStats:
        return StepStats(
            epoch=self.share.progress.epoch,
            step=self.share.progress.step + self.step,
            world_size=self.share.world_size,
            samples=samples,
            global_samples=global_samples,
            **known,  # type: ignore[arg-type]
        )

    def _own_origin(self, samples: int) -> np.ndarray:
        return np.stack([np.full(samples, self.share.rank), np.arange(samples)], axis=1)


class PlannedSteps(Steps):
    """Steps whose sizes are known beforehand; the ranks never talk."""

    def next(self) -> tuple[Batch, Progress] | None:
        counts = self.share.counts(self.step)
        if not counts.any():
            return None
        table = self.reader.take(int(counts[self.share.rank]))
        samples = table.num_rows
        items = group_items(table, self.layout) if self.share.world_size == 1 else {}
        stats = self._stats(samples, int(counts.sum()), global_items=items)
        batch = self._batch(table, self._own_origin(samples), stats)
        passed = np.minimum(self.share.left, (self.step + 1) * self.share.batch_size)
        return batch, self._progress(passed if self.step < self.share.full_steps else self.share.left)


def group_items(table: RowTable, layout: Layout) -> dict[str, int]:
    """Group name -> elements of the group in these rows."""
    return {name: int(table.length[index].sum()) for name, index in layout.groups.items()}
