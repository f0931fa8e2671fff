"""The steps of one epoch on one rank: rows in, batches out.

Three ways to make a step, by what the ranks have to tell each other:
- `PlannedSteps`: nothing. Row counts are known from the footers, so are the sizes of every rank's batches.
- `AgreedSteps`: rows can drop out while reading; the ranks exchange one status word per step.
- `BalancedSteps`: the global batch is dealt out anew (PAPER section 1, Algorithm 1).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fsdata.balance.exchange import RecordSpec, StatusWord, StepExchange, StepResult, told
from fsdata.balance.options import StepPlanner
from fsdata.batch.batch import Batch, StepStats
from fsdata.batch.host_memory import HostMemory
from fsdata.decode.block import Column, Rows, Spans
from fsdata.decode.joins.as_of import places
from fsdata.decode.row_layout import Layout
from fsdata.order.progress import Progress
from fsdata.steps.assemble import BatchMaker
from fsdata.steps.explode import explode, items_of
from fsdata.steps.reader import Reader

_LOG = logging.getLogger("fsdata")
_LEFT_OUT = (
    "rank %d: epoch %d ends with up to %d of this rank's rows left out, because another rank has none left: rows drop "
    "out by filter, nulls or damage. Give balance=Balance() to deal them out, or uneven='empty' to read all of them"
)

Uneven = Literal["drop", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank has to deliver in the rest of an epoch.

    Attributes:
        rank, world_size, batch_size: of the job; `batch_size` samples per rank and step.
        drop_last: leave out a last global batch that is not whole.
        hold: end before a step for which some rank has too few rows. These rows are not passed, nor dropped.
        left: int64 [W], planned rows that each rank still has to pass.
        progress: where the job stands before the first of these steps.
    """

    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    hold: bool
    left: np.ndarray
    progress: Progress

    def counts(self, passed: np.ndarray) -> np.ndarray:
        """int64 [W]: samples of every rank in the step after `passed` [W] rows of this stretch, if no row drops out.

        `left` differs by at most one where no row drops out, so the last global batch is dealt out evenly too.
        """
        return np.minimum(self.left - passed, self.batch_size)


class Steps(ABC):
    """An iterator over (batch, progress after it)."""

    _exchange: StepExchange | None = None

    def __init__(self, share: Share, reader: Reader, layout: Layout, memory: HostMemory) -> None:
        self.share = share
        self.reader = reader
        self.layout = layout
        self._maker = BatchMaker(layout, memory)
        self._positions_before = np.array(share.progress.positions, np.int64)
        self._origin = np.empty((0, 2), np.int64)
        self.step = 0
        self.passed = np.zeros(share.world_size, np.int64)
        self.over = False
        self.dropped = 0

    @abstractmethod
    def next(self) -> tuple[Batch, Progress] | None:
        """The next batch, None at the end of the epoch. Blocks on decoding and, where there are any, on peers."""

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks, if they meet once more in this epoch, that this rank failed after the step in hand.

        Blocks until they come to that meeting. Returns; the caller raises its own error.
        """
        if self._exchange is not None and not self.over:
            self.over = True
            self._exchange.fail(error, self._status())

    def report(self, compute_seconds: float, after: Progress) -> None:  # noqa: B027 (most need not know)
        """Hear how long the batch that led to `after` computed here."""

    def stop(self) -> None:  # noqa: B027 (most never wait)
        """Wait for no further data; only data that is followed is waited for."""

    def close(self) -> None:
        """Decode no further; running decodes end by themselves."""
        self.reader.close()

    def _held(self) -> bool:
        """Whether the next step is held back, as far as planned rows tell."""
        share = self.share
        return share.hold and int((share.left - self.passed).min()) < share.batch_size

    def _take(self, exchange: StepExchange | None, planned: bool = False) -> tuple[Rows, StatusWord]:
        """This rank's rows of the step in hand; an error in reading them is told to the other ranks, then raised."""
        share = self.share
        counts = share.counts(self.passed)
        wanted = int(counts[share.rank]) if planned else share.batch_size
        try:
            with told(exchange, self._status()):
                rows = self.reader.take(wanted)
        except BaseException:
            self.over = True
            raise
        last = not share.counts(self.passed + counts).any() if planned else rows.num_rows < wanted
        return rows, self._status(rows=rows.num_rows, position=self.reader.position, ended=last)

    def _status(self, **known: Any) -> StatusWord:
        before = self.share.progress
        return StatusWord(epoch=before.epoch, step=before.step + self.step, **known)

    def _batch(self, spans: Spans, origin: np.ndarray, stats: StepStats, counts: np.ndarray | None = None) -> Batch:
        """stats: of the samples, where rows are exploded. counts: those of `spans`, if they are known."""
        if self.layout.exploded is not None:
            spans, row = explode(spans, self.layout)
            origin, counts = origin[row], None
        with self.reader.timing.of("assemble"):
            return self._maker.make(spans, origin=origin, stats=stats, counts=counts)

    def _samples(self, spans: Spans) -> int:
        """How many samples rows become."""
        exploded = self.layout.exploded
        return spans.num_rows if exploded is None else int(spans.length[self.layout.groups[exploded]].sum())

    def _progress(self, positions: Sequence[int] | np.ndarray, tuning: dict | None = None) -> Progress:
        """Progress after the step in hand, and on to the next. positions: [W] rows passed in this stretch."""
        self.step += 1
        self.passed = np.array(positions, np.int64)
        before = self.share.progress
        return Progress(
            epoch=before.epoch,
            step=before.step + self.step,
            history=before.history,
            positions=tuple((self._positions_before + self.passed).tolist()),
            tuning=tuning,
            segment=before.segment,
        )

    def _stats(self, samples: int, global_samples: int, *, global_items: dict[str, int], **known: object) -> StepStats:
        for label, group in self.layout.event_labels.items():
            if group in global_items:
                global_items = {**global_items, label: global_items[group]}
        return StepStats(
            epoch=self.share.progress.epoch,
            step=self.share.progress.step + self.step,
            world_size=self.share.world_size,
            samples=samples,
            global_samples=global_samples,
            global_items=global_items,
            **known,  # type: ignore[arg-type]
        )

    def _too_short(self, rows: int) -> bool:
        """Whether a last global batch of so many rows is left out."""
        return self.share.drop_last and rows < self.share.world_size * self.share.batch_size

    def _own_origin(self, samples: int) -> np.ndarray:
        if samples > len(self._origin):
            self._origin = np.empty((samples, 2), np.int64)
            self._origin[:, 0] = self.share.rank
            self._origin[:, 1] = np.arange(samples)
        return self._origin[:samples].copy()


class PlannedSteps(Steps):
    """Steps whose sizes are known beforehand; the ranks never talk."""

    def next(self) -> tuple[Batch, Progress] | None:
        counts = self.share.counts(self.passed)
        if self._held():
            self.over = True
            return None
        own, of_all = int(counts[self.share.rank]), sum(counts.tolist())
        if not of_all or self._too_short(of_all):
            self.over = True
            self.dropped += own
            return None
        spans = self.reader.take(own).spans()
        samples, counted = spans.num_rows, spans.counts()
        items = group_items(spans, self.layout, counted) if self.share.world_size == 1 else {}
        stats = self._stats(samples, of_all, global_items=items)
        batch = self._batch(spans, self._own_origin(samples), stats, counted)
        return batch, self._progress(self.passed + counts)


class AgreedSteps(Steps):
    """Steps whose sizes are not known beforehand: every rank takes what is left after filters and null policies."""

    def __init__(
        self,
        share: Share,
        reader: Reader,
        layout: Layout,
        memory: HostMemory,
        exchange: StepExchange | None,
        uneven: Uneven,
    ) -> None:
        super().__init__(share, reader, layout, memory)
        self._exchange = exchange
        self._uneven = uneven

    def next(self) -> tuple[Batch, Progress] | None:
        if self.over or self._held():
            self.over = True
            return None
        rows, status = self._take(self._exchange)
        spans = rows.spans()
        statuses: tuple[StatusWord, ...] = (replace(status, rows=self._samples(spans)),)
        if self._exchange is not None:
            statuses = self._agree(self._exchange, statuses[0])
        samples = [status.rows for status in statuses]
        ended = [status.ended for status in statuses]
        if self.share.hold and any(ended):
            self.over = True
            return None
        self.over = all(ended) if self._uneven == "empty" else any(ended)
        nothing = not any(samples) if self._uneven == "empty" else not all(samples)
        nothing |= self.over and self.share.drop_last  # a rank that has ended has less than a whole batch
        if self.over and self._uneven == "drop":
            self.dropped = int(self.share.left[self.share.rank]) - self.reader.position
        if nothing:
            self.dropped += spans.num_rows
        if self.over and self._uneven == "drop" and self.dropped and not (all(ended) and all(samples)):
            _LOG.warning(_LEFT_OUT, self.share.rank, self.share.progress.epoch, self.dropped)
        if nothing:
            return None
        counted = spans.counts()
        items = group_items(spans, self.layout, counted) if self.share.world_size == 1 else {}
        stats = self._stats(self._samples(spans), sum(samples), global_items=items)
        batch = self._batch(spans, self._own_origin(spans.num_rows), stats, counted)
        return batch, self._progress([status.position for status in statuses])

    def _agree(self, exchange: StepExchange, status: StatusWord) -> tuple[StatusWord, ...]:
        try:
            with self.reader.timing.of("exchange"):
                return exchange.agree(status)
        except BaseException:
            self.over = True
            raise


class BalancedSteps(Steps):
    """Steps whose global batch is dealt out anew over the ranks; ranks that ran out of rows still get their share.

    Rows that the plan carries over to the next step go back to the reader, as if they had not been read.
    """

    _exchange: StepExchange

    def __init__(
        self,
        share: Share,
        reader: Reader,
        layout: Layout,
        memory: HostMemory,
        exchange: StepExchange,
        planner: StepPlanner,
        *,
        sure: bool,
        receive: Callable[[list[Column], int], Rows],
    ) -> None:
        """`sure`: no row can drop out, so that sizes are known beforehand and the last step's rows are dealt evenly.
        `receive`: makes rows of what came from other ranks."""
        super().__init__(share, reader, layout, memory)
        self._exchange = exchange
        self._planner = planner
        self._spec = RecordSpec.of_layout(layout)
        self._sure = sure
        self._receive = receive
        self._first_number = 0

    def next(self) -> tuple[Batch, Progress] | None:
        if self.over or self._held():
            self.over = True
            return None
        rows, status = self._take(self._exchange, self._sure)
        try:
            with self.reader.timing.of("exchange"):
                step = self._exchange.step(
                    rows, self._spec, self._planner, status, places(rows, self.layout), self._receive
                )
                held = self.share.hold and not self._sure and any(each.ended for each in step.statuses)
                positions = [] if held else self._positions(step)
        except BaseException:
            self.over = True
            raise
        self.over = step.ended or held
        if held:
            return None
        if not step.global_samples or (self.over and self._too_short(step.global_samples)):
            self.dropped += status.rows
            return None
        self._first_number = step.number - self.step
        exploded = self.layout.exploded
        spans = step.rows.spans()
        stats = self._stats(
            self._samples(spans),
            step.global_samples if exploded is None else step.global_items[exploded],
            global_items=items_of(step.lengths, exploded),
            straggler_before=step.straggler_before,
            straggler_after=step.straggler_after,
            moved=step.moved,
            carried=step.carried,
        )
        return self._batch(spans, step.origin, stats), self._progress(positions, self._planner.state_dict())

    def _positions(self, step: StepResult) -> list[int]:
        """Rows that every rank has passed with `step`."""
        if not step.carried:
            return [status.position for status in step.statuses]
        self.reader.put_back(step.rest)
        return self._exchange.tell(self.reader.position)

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Tell the planner, with the next status word, how long the batch that led to `after` computed here."""
        step = after.step - self.share.progress.step - 1
        if step >= 0:
            self._exchange.report(compute_seconds, self._first_number + step)


def group_items(spans: Spans, layout: Layout, counts: np.ndarray) -> dict[str, int]:
    """Group name -> elements of the group in the samples of these rows. counts: those of `spans`."""
    if layout.exploded is None:
        return {name: int(counts[row]) for name, row in layout.groups.items()}
    return items_of({name: spans.length[row] for name, row in layout.groups.items()}, layout.exploded)
