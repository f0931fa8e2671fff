"""A node that balances the batches of any other loader: see `fsdata.rebalance`, which runs it ahead in a thread."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from fsdata.balance.balanced_steps import BalancedNode
from fsdata.balance.exchange import RecordSpec, StepResult
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.step_plan import Assignment, GlobalBatch
from fsdata.nodes.status_exchange import failures_reported_to_peers
from fsdata.nodes.steps import Part
from fsdata.tensors.parts import Last, Lengths, TensorParts, measured
from fsranks.rank_context import resolve


class _Planner(StepPlanner):
    """Plans by what the user has measured."""

    def __call__(self, batch: GlobalBatch) -> Assignment:
        return super().__call__(replace(batch, lengths=measured(batch.lengths)))


class BalancedTensors(BalancedNode[Any]):
    """Batches of the same structure as those of `source`, with this rank's share of the samples of all ranks.

    Making it is collective.

    Args:
        source: any node or iterable of batches of CPU tensors, or the `TensorParts` of one.
        balance: how; default `Balance()`.
        lengths, replicate: see `fsdata.rebalance`.
        process_group: the ranks that share a global batch; None: all.
        timeout_s: how long this rank waits for others in a step.
    """

    def __init__(
        self,
        source: TensorParts | Iterable[Any],
        balance: Balance | None = None,
        *,
        lengths: Lengths | None = None,
        replicate: Collection[str] = (),
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        balance = Balance() if balance is None else balance
        if not isinstance(source, TensorParts):
            source = TensorParts(source, lengths, replicate, resolve(process_group=process_group), balance, timeout_s)
        super().__init__(source, _Planner(balance, source.context.world_size), timeout_s)
        self.source: TensorParts = source

    @property
    def spec(self) -> RecordSpec:
        return self.source.spec

    def leaves_out(self, result: StepResult) -> bool:
        return result.ended and not result.global_samples

    def finish(self, part: Part, result: StepResult, passed: Sequence[int]) -> Any:
        parts = self.source
        stats = parts.stats(
            result.rows.num_rows,
            result.global_samples,
            measured(result.global_items),
            straggler_before=result.straggler_before,
            straggler_after=result.straggler_after,
            moved=result.moved,
        )
        batch = parts.pulled
        if result.rows is not part.rows:
            with failures_reported_to_peers(self.exchange, parts.status()):
                batch = parts.built(result.rows)
        last = Last(stats=stats, origin=torch.from_numpy(result.origin))
        return parts.give(batch, last, self.planner.state_dict())
