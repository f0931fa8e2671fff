"""The fourth node: what every rank computes in a step. `Kept`: what it has read; `Dealt`: its share of all of it.

Three ways to make a step, by what the ranks have to tell each other. Nothing, where row counts are known from the
footers: so are the sizes of every rank's steps. One status word, where rows can drop out while reading. Or the global
batch is dealt out anew (PAPER section 1, Algorithm 1).
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from fsdata.balance.exchange import CLOSED, StatusWord, StepExchange, StepResult
from fsdata.balance.options import Balance, StepPlanner
from fsdata.batch.batch import StepStats
from fsdata.decode.block import Spans
from fsdata.nodes.explode import items_of
from fsdata.nodes.loader_options import UNEVEN, Uneven
from fsdata.nodes.node import Node
from fsdata.nodes.steps import Parts, Step, Steps
from fsdata.options import one_of
from fsdata.order.progress import Progress
from fsdata.tensors.parts import Lengths, TensorParts
from fsranks.rank_context import RankContext, resolve

_LOG = logging.getLogger("fsdata")
_LEFT_OUT = (
    "rank %d: epoch %d ends with up to %d of this rank's rows left out, because another rank has none left: rows drop "
    "out by filter, nulls or damage, or max_tokens makes batches of fewer. Give balance=Balance() to deal them out, or "
    "uneven='empty' to read all of them"
)
_GRACE_S = 5.0
DROPS = "a source whose rows can drop out"
TOKENS = "max_tokens"
_NO_GROUP = "{why} makes the ranks talk at every step, but {missing}"
_NOT_INITIALIZED = (
    "torch.distributed is not initialized: call torch.distributed.init_process_group before making the loader"
)
_OTHER_RANKS = (
    "rank= and world_size= are not those of torch.distributed: give process_group=, the group of the ranks that share "
    "the data, in their place"
)


class Talking(Node[Any]):
    """A node whose ranks may meet at every step."""

    exchange: StepExchange | None = None
    over = False
    _owned = False

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        self.over = False

    def fail(self, error: BaseException) -> None:
        if self.exchange is not None and not self.over:
            self.over = True
            self.exchange.fail(error, self.source.status())

    def leave(self, why: str, grace_s: float | None = None) -> None:
        if self.exchange is not None and not self.over:
            self.over = True
            self.exchange.leave(why, grace_s)

    def close(self) -> None:
        super().close()
        if self._owned and self.exchange is not None:
            self._owned = False
            self.leave(CLOSED, _GRACE_S)
            self.exchange.close(CLOSED)


class Kept(Talking):
    """Steps of the rows that this rank has read, as `Step`.

    Args:
        uneven: see `FreeScaleDataLoader`. timeout_s: how long this rank waits for others in a step; they meet where
            rows can drop out, or `max_tokens` decides how many there are.
        exchange: to meet by; None makes one where it is needed, which is collective.
    """

    def __init__(
        self,
        source: Steps,
        *,
        uneven: Uneven = "drop",
        timeout_s: float = 300.0,
        exchange: StepExchange | None = None,
    ) -> None:
        super().__init__()
        self.source: Steps = source
        self._uneven = one_of("uneven", uneven, UNEVEN)
        self._owned = exchange is None and source.world_size > 1 and not source.sure
        if self._owned:
            check_group(source.units.context, DROPS if source.max_tokens is None else TOKENS)
            exchange = StepExchange(source.units.context, timeout_s=timeout_s)
        self.exchange = None if source.sure else exchange

    def next(self) -> Step:
        """Raises StopIteration at the end of the epoch. Blocks on decoding, and on peers where ranks meet."""
        if self.over or self.source.held:
            self.over = True
            raise StopIteration
        return self._planned() if self.source.sure else self._agreed()

    def _planned(self) -> Step:
        steps = self.source
        counts = steps.counts()
        own, of_all = int(counts[steps.rank]), sum(counts.tolist())
        if not of_all or steps.too_short(of_all):
            self.over = True
            steps.drop(own)
            raise StopIteration
        spans = steps.take(own).spans()
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, of_all))
        steps.advance(steps.passed + counts)
        return step

    def _agreed(self) -> Step:
        steps = self.source
        try:
            part = steps.part(self.exchange)
        except BaseException:
            self.over = True
            raise
        assert part.rows is not None
        spans = part.rows.spans()
        statuses: tuple[StatusWord, ...] = (replace(part.status, rows=steps.samples_of(spans)),)
        if self.exchange is not None:
            statuses = self._agree(self.exchange, statuses[0])
        samples = [status.rows for status in statuses]
        ended = [status.ended for status in statuses]
        if steps.hold and any(ended):
            self.over = True
            raise StopIteration
        self.over = all(ended) if self._uneven == "empty" else any(ended)
        nothing = not any(samples) if self._uneven == "empty" else not all(samples)
        nothing |= self.over and steps.drop_last  # a rank that has ended has less than a whole batch
        dropped = int(steps.left[steps.rank]) - steps.position if self.over and self._uneven == "drop" else 0
        dropped += spans.num_rows if nothing else 0
        steps.drop(dropped)
        if self.over and self._uneven == "drop" and dropped and not (all(ended) and all(samples)):
            _LOG.warning(_LEFT_OUT, steps.rank, steps.progress.epoch, dropped)
        if nothing:
            raise StopIteration
        step = Step(spans, steps.own_origin(spans.num_rows), self._stats(spans, sum(samples)))
        steps.advance([status.position for status in statuses])
        return step

    def _agree(self, exchange: StepExchange, status: StatusWord) -> tuple[StatusWord, ...]:
        try:
            with self.source.data.timing.of("exchange"):
                return exchange.agree(status)
        except BaseException:
            self.over = True
            raise

    def _stats(self, spans: Spans, of_all: int) -> StepStats:
        steps = self.source
        layout, alone = steps.data.layout, steps.world_size == 1
        items: dict[str, int] = {}
        if alone and layout.exploded is None:
            items = {name: int(spans.counts[row]) for name, row in layout.groups.items()}
        elif alone:
            items = items_of({name: spans.length[row] for name, row in layout.groups.items()}, layout.exploded)
        return steps.stats(steps.samples_of(spans), of_all, items)


class Dealt(Talking):
    """Steps whose global batch is dealt out anew; ranks that ran out of data still get their share.

    Rows that the plan carries over to the next step go back, as if they had not been read.

    Args:
        source: `Steps`; or any node or iterable of batches of CPU tensors, with `lengths`.
        balance: how; default `Balance()`.
        lengths, replicate: see `fsdata.rebalance`. Each step gives a batch of the same structure.
        process_group: the ranks that share a global batch, where `source` does not know them.
        timeout_s: how long this rank waits for others in a step.
        exchange, planner: to meet and to plan by; None makes them, which is collective.
    """

    def __init__(
        self,
        source: Steps | TensorParts | Iterable[Any],
        balance: Balance | None = None,
        *,
        lengths: Lengths | None = None,
        replicate: Collection[str] = (),
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300.0,
        exchange: StepExchange | None = None,
        planner: StepPlanner | None = None,
    ) -> None:
        super().__init__()
        balance = Balance() if balance is None else balance
        if isinstance(source, Steps) and source.max_tokens is not None:
            raise ValueError("Steps(max_tokens=...) is for Kept: give Dealt a Balance(max_tokens=...)")
        if isinstance(source, Steps | TensorParts):
            context = source.context
        else:
            context = resolve(process_group=process_group)
            source = TensorParts(source, lengths, replicate, context, balance, timeout_s)
        self.source: Any = source
        if exchange is None:
            check_group(context, "balance")
            exchange, self._owned = StepExchange(context, timeout_s=timeout_s), True
        self.exchange: StepExchange = exchange
        self.planner = planner or source.planner(balance)
        self._first_number = self._made = 0

    def forget(self) -> None:
        self.planner.forget()

    @property
    def tuning(self) -> dict[str, Any] | None:
        return self.planner.state_dict()

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        self.planner.load_state_dict(progress.tuning)
        self._began = progress
        self._made = 0

    def next(self) -> Any:
        """Raises StopIteration when all ranks have ended. Blocks on the source and on peers."""
        parts: Parts = self.source
        if self.over or parts.held:
            self.over = True
            raise StopIteration
        try:
            part = parts.part(self.exchange)
            with parts.timing.of("exchange"):
                step = self.exchange.step(part.rows, parts.spec, self.planner, part.status, part.places, parts.rows_of)
                left_out = parts.leaves_out(step)
                passed = [] if left_out else self._passed(step)
            self.over = step.ended or left_out
            if left_out:
                raise StopIteration
            self._first_number = step.number - self._made
            self._made += 1
            return parts.finish(part, step, passed, self.planner.state_dict())
        except BaseException:
            self.over = True
            raise

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Tell the planner, with the next status word, how long the batch that led to `after` computed here."""
        step = after.step - self._began.step - 1
        if step >= 0:
            self.exchange.report(compute_seconds, self._first_number + step)

    def _passed(self, step: StepResult) -> list[int]:
        """Rows that every rank has passed with `step`."""
        if not step.carried:
            return [status.position for status in step.statuses]
        self.source.put_back(step.rest)
        return self.exchange.tell(self.source.position)


def check_group(context: RankContext, why: str) -> None:
    """ValueError where ranks have to talk and cannot."""
    if context.world_size > 1 and context.reach() is None:
        missing = _OTHER_RANKS if dist.is_available() and dist.is_initialized() else _NOT_INITIALIZED
        raise ValueError(_NO_GROUP.format(why=why, missing=missing))
