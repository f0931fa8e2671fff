"""The fourth node with balancing: every rank yields its share of the balanced global batch.

PAPER section 1, Algorithm 1. `fsdata.tensors.balanced_tensors` does the same for batches of any other loader.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from fsdata.balance.exchange import RecordSpec, StepExchange, StepResult
from fsdata.balance.exchange.transfer import RowsOf
from fsdata.balance.options import Balance, StepPlanner
from fsdata.nodes.node import Node, StepNode
from fsdata.nodes.steps import Part, Step, Steps
from fsdata.order.tokens import items_of

T = TypeVar("T", covariant=True)


class BalancedNode(StepNode[T]):
    """Steps whose global batch is balanced over the ranks; ranks without further data still receive their share.

    Rows that the plan carries over to the next step are put back into the source, as if they had not been read.

    Args:
        source: yields this rank's part of every step; has `part()`, `position`, `defers_next`, `timing`, `context`.
        planner: plans the steps. timeout_s: how long this rank waits for others in a step.
    """

    rows_of: RowsOf | None = None

    def __init__(self, source: Node[Part], planner: StepPlanner, timeout_s: float) -> None:
        super().__init__(source)
        self.planner = planner
        self.exchange = self.job.connect(self.source.context, "balance", timeout_s, StepExchange)
        self.job.planner, self.job.meets_in_steps = planner, True

    @property
    @abstractmethod
    def spec(self) -> RecordSpec:
        """The fields of the samples; defined after the first part of the source."""

    @abstractmethod
    def ends_before(self, result: StepResult) -> bool:
        """Whether the epoch ends before this step. The method counts its samples as dropped, where they are."""

    @abstractmethod
    def finish(self, part: Part, result: StepResult, passed: Sequence[int]) -> T:
        """The item of this node; advances the source. passed: [W] rows of every rank."""

    def step(self) -> T:
        """Raises StopIteration when all ranks have ended. Blocks on the source and on peers."""
        part: Part = self.source.part()
        with self.source.timing.of("exchange"):
            result = self.exchange.step(
                part.rows, self.spec, self.planner, part.status, self._first_events(part), self.rows_of
            )
            # Every rank decides from the same result, so all end before the same step without a further exchange.
            ends = self.ends_before(result)
            passed = [] if ends else self._passed(result)
        if ends:
            raise StopIteration
        if result.ended:
            self.job.end_steps()
        # `Job.report` counts steps of the epoch, the exchange counts all its steps since it was made.
        self.job.exchange_offset = result.number - part.status.step
        return self.finish(part, result, passed)

    def _first_events(self, part: Part) -> dict[str, Any]:
        """See `GlobalBatch.first_events`."""
        return {}

    def _passed(self, result: StepResult) -> list[int]:
        """[W] rows that every rank has passed with this step."""
        if not result.carried:
            return [status.position for status in result.statuses]
        # The positions in the statuses include the carried rows: put them back, and gather the positions again.
        self.source.put_back(result.rest)
        return self.exchange.gather_number(self.source.position)


class BalancedSteps(BalancedNode[Step]):
    """Balances `Steps`. The constructor is collective.

    Args:
        balance: default `Balance()`. timeout_s: how long this rank waits for others in a step.
    """

    def __init__(self, source: Steps, balance: Balance | None = None, *, timeout_s: float = 300.0) -> None:
        if source.max_tokens is not None:
            raise ValueError("Steps(max_tokens=...) is for LocalSteps: give BalancedSteps a Balance(max_tokens=...)")
        schema = source.data.layout.schema
        assert schema is not None
        planner = StepPlanner(
            balance or Balance(),
            source.world_size,
            carry=True,
            nested=[name for group in schema.groups for name in group.nested],
            exploded=schema.explode,
        )
        super().__init__(source, planner, timeout_s)
        self.source: Steps = source
        self.rows_of: RowsOf = source.data.rows_of
        self._spec = RecordSpec.of_layout(source.data.layout)

    @property
    def spec(self) -> RecordSpec:
        return self._spec

    def _first_events(self, part: Part) -> dict[str, Any]:
        assert part.rows is not None
        return self.source.data.first_events(part.rows)

    def ends_before(self, result: StepResult) -> bool:
        steps = self.source
        # Followed data: the rows of a short step are read again at the begin of the next segment, so none is dropped.
        if steps.defer_short_step and not steps.sizes_known and any(status.ended for status in result.statuses):
            return True
        ends = not result.global_samples or (result.ended and steps.too_short(result.global_samples))
        if ends:
            self.job.dropped += result.statuses[steps.rank].rows
        return ends

    def finish(self, part: Part, result: StepResult, passed: Sequence[int]) -> Step:
        steps, spans = self.source, result.rows.spans()
        exploded = steps.data.layout.exploded
        stats = steps.stats(
            steps.samples_of(spans),
            result.global_samples if exploded is None else result.global_items[exploded],
            items_of(result.lengths, exploded),
            straggler_before=result.straggler_before,
            straggler_after=result.straggler_after,
            moved=result.moved,
            carried=result.carried,
        )
        steps.advance(passed, self.planner.state_dict())
        return Step(spans, result.origin, stats)
