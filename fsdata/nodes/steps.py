"""The third node: divides windows of rows into this rank's parts of steps."""

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
    """The rows that one rank reads for a step.

    Attributes:
        rows: by reference; None after the end of this rank's data.
        status: epoch, step, position of this rank, and whether this is its last part.
    """

    rows: RowRefs | None
    status: StatusWord


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one step that this rank computes.

    Attributes:
        spans: addresses and lengths of their values.
        origin: int64 [n, 2], the rank that read each row and the index of the row among those it read for the step.
        stats: counts and planned balance.
    """

    spans: Spans
    origin: np.ndarray
    stats: StepStats


class Steps(Node[Part]):
    """This rank's part of every step: `batch_size` rows, fewer at the end. Blocks on decoding.

    The node behind it calls `advance` with the positions of all ranks, which it has exchanged. Used as the last node,
    this one can compute them only if no row can drop out, or with one rank.

    Args:
        drop_last: nodes behind it drop a last global batch that is incomplete.
        max_tokens: the most elements of a part, see `FreeScaleDataLoader`.

    Attributes:
        left: int64 [W], planned rows of each rank when the epoch, or its segment, began.
        passed: int64 [W], how many of them each rank has passed.
        position: rows of `left` that this rank has passed with its last part.
        sizes_known: no row can drop out or be deferred to the next step, so the footers give the sizes of all steps,
            and the last one is divided evenly.
        defer_short_step: end before a step for which some rank has too few rows. These rows are neither passed nor
            dropped: the next segment begins with them.
        began: the position at which the epoch, or its segment, began. step: steps since then.
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
        self.position = self.step = 0
        self.began = Progress.start(0, self.world_size)
        self._progress: Progress | None = None  # None: the positions of the other ranks are unknown
        self._windows: deque[WindowRows] = deque()
        self._taken = 0  # rows taken from the first of them
        # Of the last `take`, so that `put_back` can undo it: the position before it, and after each of its rows.
        self._before = 0
        self._after: list[np.ndarray | range] = []
        self._origin = np.empty((0, 2), np.int64)

    def place(self) -> Progress:
        return self._progress or self.units.place_after(self.position)

    def on_begin(self, progress: Progress) -> None:
        self.left = self.units.left
        self.passed = np.zeros(self.world_size, np.int64)
        self.position = self.step = self._taken = 0
        self._windows.clear()
        self.began = self._progress = progress

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
        """This rank's part of the next step. Blocks on decoding. Errors are reported to the other ranks."""
        counts = self.counts()
        wanted = int(counts[self.rank]) if self.sizes_known else self.batch_size
        with failures_reported_to_peers(self.job.exchange, self.status()):  # decoding and user code may fail here
            rows = self.take(wanted)
            ended = not self.counts(counts).any() if self.sizes_known else rows.num_rows < wanted
            if self.max_tokens is not None:  # the lengths are known only now, after the rows were taken
                fit = self._fitting(rows, self.max_tokens)
                if fit < rows.num_rows:
                    self.put_back(rows.take(slice(fit, None)))
                    rows, ended = rows.take(slice(fit)), False  # the rows that were put back follow
        status = self.status(rows=rows.num_rows, position=self.position, ended=ended)
        return Part(rows, status)

    def samples_of(self, spans: Spans) -> int:
        """The number of samples that rows become, see `fsdata.nodes.explode`."""
        layout = self.data.layout
        return spans.num_rows if layout.exploded is None else int(spans.length[layout.groups[layout.exploded]].sum())

    def stats(self, samples: int, of_all: int, items: dict[str, int], **balance: Any) -> StepStats:
        """Statistics of the current step. items: `StepStats.global_items`. balance: further fields."""
        of_labels = {label: items[group] for label, group in self.data.layout.event_labels.items() if group in items}
        return StepStats(
            epoch=self.began.epoch,
            step=self.began.step + self.step,
            world_size=self.world_size,
            samples=samples,
            global_samples=of_all,
            global_items=items | of_labels,
            **balance,
        )

    def counts(self, more: np.ndarray | int = 0) -> np.ndarray:
        """int64 [W]: rows of every rank in the next step, or after `more` rows of each, if no row drops out."""
        # Without dropped rows `left` differs by at most one, so the last global batch is divided evenly, too.
        return np.minimum(self.left - self.passed - more, self.batch_size)

    @property
    def defers_next(self) -> bool:
        """Whether some rank has too few planned rows for the next step, and these rows are deferred."""
        return self.defer_short_step and int((self.left - self.passed).min()) < self.batch_size

    def too_short(self, rows: int) -> bool:
        """Whether a last global batch of so many rows is dropped."""
        return self.drop_last and rows < self.world_size * self.batch_size

    def status(self, **fields: Any) -> StatusWord:
        return StatusWord(epoch=self.began.epoch, step=self.began.step + self.step, **fields)

    def advance(self, passed: Sequence[int] | np.ndarray, tuning: dict[str, Any] | None = None) -> None:
        """Proceed to the next step. passed: [W] rows of every rank since `began`. tuning: see `Progress`."""
        self.step += 1
        self.passed = np.array(passed, np.int64)
        self._progress = self.began.moved(self.passed.tolist(), self.step, tuning)

    def own_origin(self, samples: int) -> np.ndarray:
        """`Step.origin` of rows that are computed on the rank that read them."""
        if samples > len(self._origin):
            self._origin = np.stack([np.full(samples, self.rank), np.arange(samples)], axis=1)
        return self._origin[:samples].copy()

    def take(self, count: int) -> RowRefs:
        """The next `count` rows, fewer only at the end of the stream.

        Raises the error of decoding, at the first row concerned. After it, the node has to be reset.
        """
        rows: list[RowRefs] = []
        self._before, self._after = self.position, []
        self.source.go_on()  # the batch before may have freed memory that decoding waits for
        while count > 0 and self._has_window():
            window = self._windows[0]
            start, stop = self._taken, min(self._taken + count, window.rows.num_rows)
            rows.append(window.rows.take(slice(start, stop)))
            self._after.append(window.passed[start:stop])
            count -= stop - start
            self.position = int(window.passed[stop - 1])
            self._taken = stop
            if stop == window.rows.num_rows:
                self.source.note_held()  # memory use is highest before a window is released
                self._windows.popleft()
                self._taken = 0
        return concat(rows) if rows else no_rows(len(self.data.layout.names))

    def _fitting(self, rows: RowRefs, max_tokens: int) -> int:
        """How many of the first rows have at most `max_tokens` elements together."""
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
        """Undo the last `take` for its last `rows`: the next one begins with them, and `position` is before them."""
        positions = np.concatenate([[self._before], *self._after])
        if len(positions) > 1:
            positions[-1] = self.position  # later: windows without a row that survived may have been passed since
        first = len(positions) - rows.num_rows
        if rows.num_rows:
            if self._taken:
                window = self._windows[0]
                rest = slice(self._taken, window.rows.num_rows)
                self._windows[0] = WindowRows(window.rows.take(rest), window.passed[rest.start : rest.stop], window.end)
                self._taken = 0
            # Before the rest of their window.
            self._windows.appendleft(WindowRows(rows, positions[first:], self.position))
        self._after = [positions[1:first]]
        self.position = int(positions[first - 1])

    def _has_window(self) -> bool:
        """Read windows until one has rows. False: there is none."""
        while not self._windows:
            try:
                window = self.source.next()
            except StopIteration:
                return False
            if window.rows.num_rows:
                self._windows.append(window)
            else:
                self.position = window.end  # all of its rows dropped out
        return True
