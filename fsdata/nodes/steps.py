"""The third node: windows of rows become this rank's part of one step after another."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsdata.batch.batch import StepStats
from fsdata.decode.block import RowRefs, Spans, concat, no_rows
from fsdata.nodes.node import Node
from fsdata.nodes.rows import Rows, WindowRows
from fsdata.nodes.status_exchange import failures_reported_to_peers
from fsdata.nodes.timing import Timing
from fsdata.options import boolean, integer
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord
from fsdata.order.tokens import tokens_of


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank reads for a step.

    Attributes:
        rows: by reference; None where this rank has no data of its own any more.
        status: epoch, step, where this rank stands, and whether nothing follows.
    """

    rows: RowRefs | None
    status: StatusWord


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one step that this rank computes.

    Attributes:
        spans: where their values lie.
        origin: int64 [n, 2], the rank that read each row and its place in what that rank read.
        stats: counts and planned balance.
    """

    spans: Spans
    origin: np.ndarray
    stats: StepStats


class Steps(Node[Part]):
    """This rank's part of every step: `batch_size` rows, fewer at the end. Blocks on decoding.

    drop_last: nodes behind it leave out a last global batch that is not whole. max_tokens: fewer rows, if they have
    more elements than this; see `FreeScaleDataLoader`.

    Nodes behind it say how far all ranks are (`advance`). Where it stands alone, it knows this by itself if no row can
    drop out, or with one rank.

    Attributes:
        left: int64 [W], planned rows that each rank had to pass. passed: int64 [W], of them, those that were.
        position: rows of `left` that this rank has passed with the part last given.
        sizes_known: no row can drop out, and none is left for the next step: sizes of steps are known beforehand, and
            the last one is dealt evenly.
        defer_short_step: end before a step for which some rank has too few rows. These rows are not passed, nor
            dropped.
        began: the place where the epoch, or its segment, began.
    """

    def __init__(
        self, source: Rows, batch_size: int, *, drop_last: bool = False, max_tokens: int | None = None
    ) -> None:
        self.batch_size: int = integer("batch_size", batch_size, 1)
        self.drop_last = boolean("drop_last", drop_last)
        self.max_tokens: int | None = integer("max_tokens", max_tokens, 1, optional=True)
        super().__init__(source)
        self.source: Rows = source
        self.defer_short_step = False
        self.data = self.units.data
        self.timing: Timing = self.data.timing
        self.context = self.units.context
        self.rank, self.world_size = self.context.rank, self.context.world_size
        self.sizes_known = not self.data.may_drop and self.max_tokens is None
        self.left = self.passed = np.zeros(self.world_size, np.int64)
        self.position = 0
        self.began = Progress.start(0, self.world_size)
        self._progress: Progress | None = None
        self._open: deque[WindowRows] = deque()
        self._used = 0  # rows of the first of them
        self._before = 0  # position before the last take
        self._passed: list[np.ndarray | range] = []  # positions after each row of the last take, part by part
        self._origin = np.empty((0, 2), np.int64)

    def place(self) -> Progress:
        return self._progress or self.units.place_after(self.position)

    def drop(self, rows: int) -> None:
        """Count rows of this rank that are left out."""
        self.job.dropped += rows

    def on_begin(self, progress: Progress) -> None:
        self.left = self.units.left
        self.passed = np.zeros(self.world_size, np.int64)
        self.position = self._used = 0
        self._open.clear()
        self.began = self._progress = progress
        self.step = 0

    def next(self) -> Part:
        part = self.part()
        if part.rows is None or not part.rows.num_rows:
            raise StopIteration
        if self.sizes_known:
            self.advance(self.passed + self.counts())
        elif self.world_size == 1:
            self.advance([self.position])
        else:
            self._progress = None
        return part

    def part(self) -> Part:
        """What this rank gives to the next step. Blocks on decoding. Where ranks meet, errors reach the others."""
        counts = self.counts()
        wanted = int(counts[self.rank]) if self.sizes_known else self.batch_size
        with failures_reported_to_peers(self.job.exchange, self.status()):  # decoding and user code may fail here
            rows = self.take(wanted)
            ended = not self.counts(counts).any() if self.sizes_known else rows.num_rows < wanted
            if self.max_tokens is not None:
                fit = self._that_fit(rows, self.max_tokens)
                if fit < rows.num_rows:
                    self.put_back(rows.take(slice(fit, None)))
                    rows, ended = rows.take(slice(fit)), False  # what was put back is still to come
        status = self.status(rows=rows.num_rows, position=self.position, ended=ended)
        return Part(rows, status)

    def samples_of(self, spans: Spans) -> int:
        """How many samples rows become."""
        layout = self.data.layout
        return spans.num_rows if layout.exploded is None else int(spans.length[layout.groups[layout.exploded]].sum())

    def stats(self, samples: int, of_all: int, items: dict[str, int], **known: Any) -> StepStats:
        """Of the step in hand. items: see `StepStats`."""
        of_labels = {label: items[group] for label, group in self.data.layout.event_labels.items() if group in items}
        return StepStats(
            epoch=self.began.epoch,
            step=self.began.step + self.step,
            world_size=self.world_size,
            samples=samples,
            global_samples=of_all,
            global_items=items | of_labels,
            **known,
        )

    def counts(self, more: np.ndarray | int = 0) -> np.ndarray:
        """int64 [W]: rows of every rank in the next step, or after `more` rows of each, if no row drops out.

        `left` differs by at most one where no row drops out, so the last global batch is dealt out evenly too.
        """
        return np.minimum(self.left - self.passed - more, self.batch_size)

    @property
    def defers_next(self) -> bool:
        """Whether the epoch ends before the next step, as far as planned rows tell."""
        return self.defer_short_step and int((self.left - self.passed).min()) < self.batch_size

    def too_short(self, rows: int) -> bool:
        """Whether a last global batch of so many rows is left out."""
        return self.drop_last and rows < self.world_size * self.batch_size

    def status(self, **known: Any) -> StatusWord:
        return StatusWord(epoch=self.began.epoch, step=self.began.step + self.step, **known)

    def advance(self, passed: Sequence[int] | np.ndarray, tuning: dict[str, Any] | None = None) -> None:
        """Go on to the next step. passed: [W] rows of every rank since this began. tuning: see `Progress`."""
        self.step += 1
        self.passed = np.array(passed, np.int64)
        self._progress = self.began.moved(self.passed.tolist(), self.step, tuning)

    def own_origin(self, samples: int) -> np.ndarray:
        """int64 [n, 2] of rows that stay where they were read."""
        if samples > len(self._origin):
            self._origin = np.stack([np.full(samples, self.rank), np.arange(samples)], axis=1)
        return self._origin[:samples].copy()

    def take(self, count: int) -> RowRefs:
        """The next `count` rows, fewer only at the end of the stream.

        Raises what decoding raised, at the first row concerned; begin anew afterwards.
        """
        parts: list[RowRefs] = []
        self._before, self._passed = self.position, []
        self.source.go_on()
        while count > 0 and self._opened():
            window = self._open[0]
            start, stop = self._used, min(self._used + count, window.rows.num_rows)
            parts.append(window.rows.take(slice(start, stop)))
            self._passed.append(window.passed[start:stop])
            count -= stop - start
            self.position = int(window.passed[stop - 1])
            self._used = stop
            if stop == window.rows.num_rows:
                self.source.note_held()
                self._open.popleft()
                self._used = 0
        return concat(parts) if parts else no_rows(len(self.data.layout.names))

    def _that_fit(self, rows: RowRefs, max_tokens: int) -> int:
        """How many of the first rows have no more elements together."""
        layout = self.data.layout
        lengths = {name: rows.spans(slot).length[0] for name, slot in layout.groups.items()}
        tokens = tokens_of(lengths, layout.exploded, rows.num_rows)
        fit = int(np.searchsorted(tokens.cumsum(), max_tokens, side="right"))
        if not fit and rows.num_rows:
            raise ValueError(
                f"max_tokens={max_tokens} is below the next sample of rank {self.rank}, which has {tokens[0]} elements "
                f"(step {self.began.step + self.step}). Raise max_tokens, or truncate with Sequence(max_length=...)"
            )
        return fit

    def put_back(self, rows: RowRefs) -> None:
        """Yield `rows`, the last ones of the last take, again: `take` begins with them, `position` is before them."""
        passed = np.concatenate([[self._before], *self._passed])
        if len(passed) > 1:
            passed[-1] = self.position  # dropped rows behind the last one were passed with it
        first = len(passed) - rows.num_rows
        if rows.num_rows:
            if self._used:
                window = self._open[0]
                rest = slice(self._used, window.rows.num_rows)
                self._open[0] = WindowRows(window.rows.take(rest), window.passed[rest.start : rest.stop], window.end)
                self._used = 0
            self._open.appendleft(WindowRows(rows, passed[first:], self.position))  # before the rest of their window
        self._passed = [passed[1:first]]
        self.position = int(passed[first - 1])

    def _opened(self) -> bool:
        """Open windows until there are rows; whether there are."""
        while not self._open:
            try:
                window = self.source.next()
            except StopIteration:
                return False
            if window.rows.num_rows:
                self._open.append(window)
            else:
                self.position = window.end  # all of its rows dropped out
        return True
