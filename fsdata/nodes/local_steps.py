"""The fourth node: what every rank computes in a step, here the rows that it has read.

Two ways to make a step, by what the ranks have to tell each other. Nothing, where row counts are known from the
footers: so are the sizes of every rank's steps. One status word, where rows can drop out while reading. (The third,
where the global batch is dealt out anew, is `fsdata.balance.balanced_steps`.)
"""

import logging
from dataclasses import replace

from fsdata.batch.batch import StepStats
from fsdata.decode.block import Spans
from fsdata.nodes.loader_options import UNEVEN, Uneven
from fsdata.nodes.node import Node
from fsdata.nodes.status_exchange import StatusExchange
from fsdata.nodes.steps import Step, Steps
from fsdata.options import one_of
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord
from fsdata.order.tokens import items_of

_LOG = logging.getLogger("fsdata")
_LEFT_OUT = (
    "rank %d: epoch %d ends with up to %d of this rank's rows left out, because another rank has none left: rows drop "
    "out by filter, nulls or damage, or max_tokens makes batches of fewer. Give balance=Balance() to deal them out, or "
    "uneven='empty' to read all of them"
)
DROPS = "a source whose rows can drop out"
TOKENS = "max_tokens"


class LocalSteps(Node[Step]):
    """Steps of the rows that this rank has read, as `Step`.

    Args:
        uneven: see `FreeScaleDataLoader`. timeout_s: how long this rank waits for others in a step; they meet where
            rows can drop out, or `max_tokens` decides how many there are. Making it is collective then.
    """

    def __init__(self, source: Steps, *, uneven: Uneven = "drop", timeout_s: float = 300.0) -> None:
        uneven = one_of("uneven", uneven, UNEVEN)
        super().__init__(source)
        self.source: Steps = source
        self._uneven = uneven
        self._exchange: StatusExchange | None = None
        self._ended = False
        if source.world_size > 1 and not source.sizes_known:
            why = DROPS if source.max_tokens is None else TOKENS
            self._exchange = self.job.connect(source.context, why, timeout_s, StatusExchange)
            self.job.meets_in_steps = True

    def on_begin(self, progress: Progress) -> None:
        self._ended = False

    def next(self) -> Step:
        """Raises StopIteration at the end of the epoch. Blocks on decoding, and on peers where ranks meet."""
        if self._ended or self.source.defers_next:
            self._end()
            raise StopIteration
        try:
            return self._planned() if self.source.sizes_known else self._agreed()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._ended = True
        self.job.end_steps()

    def _planned(self) -> Step:
        steps = self.source
        counts = steps.counts()
        own, of_all = int(counts[steps.rank]), sum(counts.tolist())
        if not of_all or steps.too_short(of_all):
            steps.drop(own)
            raise StopIteration
        spans = steps.take(own).spans()
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, of_all))
        steps.advance(steps.passed + counts)
        return step

    def _agreed(self) -> Step:
        steps = self.source
        part = steps.part()
        assert part.rows is not None
        spans = part.rows.spans()
        statuses: tuple[StatusWord, ...] = (replace(part.status, rows=steps.samples_of(spans)),)
        if self._exchange is not None:
            with steps.timing.of("exchange"):
                statuses = self._exchange.agree(statuses[0])
        samples = [status.rows for status in statuses]
        ended = [status.ended for status in statuses]
        if steps.defer_short_step and any(ended):
            raise StopIteration  # before anything is counted as passed: these rows come in the next segment
        last = all(ended) if self._uneven == "empty" else any(ended)
        # Every rank decides from the same words, so all end at the same step without a further exchange.
        nothing = not any(samples) if self._uneven == "empty" else not all(samples)
        nothing |= last and steps.drop_last  # a rank that has ended has less than a whole batch
        dropped = int(steps.left[steps.rank]) - steps.position if last and self._uneven == "drop" else 0
        dropped += spans.num_rows if nothing else 0
        steps.drop(dropped)
        if last and self._uneven == "drop" and dropped and not (all(ended) and all(samples)):
            _LOG.warning(_LEFT_OUT, steps.rank, steps.began.epoch, dropped)
        if nothing:
            raise StopIteration
        if last:
            self._end()
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, sum(samples)))
        steps.advance([status.position for status in statuses])
        return step

    def _stats(self, spans: Spans, of_all: int) -> StepStats:
        steps = self.source
        layout, alone = steps.data.layout, steps.world_size == 1
        items: dict[str, int] = {}
        if alone and layout.exploded is None:
            items = {name: int(spans.counts[row]) for name, row in layout.groups.items()}
        elif alone:
            items = items_of({name: spans.length[row] for name, row in layout.groups.items()}, layout.exploded)
        return steps.stats(steps.samples_of(spans), of_all, items)
