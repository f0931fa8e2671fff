"""The fourth node without balancing: in every step a rank computes the rows that it has read.

The ranks exchange as little as possible. If no row can drop out while reading, the footers give the sizes of every
rank's steps, and nothing is exchanged. Otherwise the ranks exchange one status word per step. (With balancing, the
fourth node is `fsdata.balance.balanced_steps`.)
"""

import logging
from dataclasses import replace

from fsdata.batch.batch import StepStats
from fsdata.decode.block import Spans
from fsdata.nodes.loader_options import UNEVEN, Uneven
from fsdata.nodes.node import StepNode
from fsdata.nodes.status_exchange import StatusExchange
from fsdata.nodes.steps import Step, Steps
from fsdata.options import one_of
from fsdata.order.status_word import StatusWord
from fsdata.order.tokens import items_of

_LOG = logging.getLogger("fsdata")
_ROWS_DROPPED = (
    "rank %d: epoch %d ends with up to %d of this rank's rows left out, because another rank has none left: rows drop "
    "out by filter, nulls or damage, or max_tokens makes batches of fewer. Give balance=Balance() to deal them out, or "
    "uneven='empty' to read all of them"
)


class LocalSteps(StepNode[Step]):
    """Steps of the rows that this rank has read, as `Step`.

    Args:
        uneven: see `FreeScaleDataLoader`.
        timeout_s: how long this rank waits for others in a step, if ranks exchange status words: where rows can drop
            out, or `max_tokens` decides how many rows a step has. The constructor is collective then.
    """

    def __init__(self, source: Steps, *, uneven: Uneven = "drop", timeout_s: float = 300.0) -> None:
        uneven = one_of("uneven", uneven, UNEVEN)
        super().__init__(source)
        self.source: Steps = source
        self._uneven = uneven
        self._exchange: StatusExchange | None = None
        if source.world_size > 1 and not source.sizes_known:
            why = "a source whose rows can drop out" if source.max_tokens is None else "max_tokens"
            self._exchange = self.job.connect(source.context, why, timeout_s, StatusExchange)
            self.job.meets_in_steps = True

    def step(self) -> Step:
        """Blocks on decoding, and on peers if ranks exchange status words."""
        return self._planned() if self.source.sizes_known else self._agreed()

    def _planned(self) -> Step:
        """A step whose size every rank knows from the footers."""
        steps = self.source
        counts = steps.counts()
        own, of_all = int(counts[steps.rank]), sum(counts.tolist())
        if not of_all or steps.too_short(of_all):
            self.job.dropped += own
            raise StopIteration
        spans = steps.take(own).spans()
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, of_all))
        steps.advance(steps.passed + counts)
        return step

    def _agreed(self) -> Step:
        """A step whose size, and whether it is the last, the status words of all ranks decide."""
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
            raise StopIteration  # before anything is counted as passed: the next segment begins with these rows
        # Every rank decides from the same words, so all end at the same step without a further exchange.
        drops = self._uneven == "drop"
        last = any(ended) if drops else all(ended)
        nothing = not all(samples) if drops else not any(samples)
        nothing |= last and steps.drop_last  # a rank that has ended has less than a whole batch
        dropped = int(steps.left[steps.rank]) - steps.position if last and drops else 0
        dropped += spans.num_rows if nothing else 0
        self.job.dropped += dropped
        if last and drops and dropped and not (all(ended) and all(samples)):
            _LOG.warning(_ROWS_DROPPED, steps.rank, steps.began.epoch, dropped)
        if nothing:
            raise StopIteration
        if last:
            self.job.end_steps()
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, sum(samples)))
        steps.advance([status.position for status in statuses])
        return step

    def _stats(self, spans: Spans, of_all: int) -> StepStats:
        steps = self.source
        layout = steps.data.layout
        items: dict[str, int] = {}
        if steps.world_size == 1:  # with several, no rank knows the lengths of the others' samples
            items = items_of({name: spans.length[row] for name, row in layout.groups.items()}, layout.exploded)
        return steps.stats(steps.samples_of(spans), of_all, items)
