"""A node that balances the batches of any other loader; `fsdata.rebalance` runs it ahead in a thread."""

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
from fsdata.tensors.parts import Lengths, TensorParts, measured_lengths
from fsranks.rank_context import resolve


class _Planner(StepPlanner):
    """Plans by the `lengths` of the user, not by the jagged fields that travel."""

    def __call__(self, batch: GlobalBatch) -> Assignment:
        return super().__call__(replace(batch, lengths=measured_lengths(batch.lengths)))


class BalancedTensors(BalancedNode[Any]):
    """Batches of the same structure as those of `source`, with this rank's share of the samples of all ranks.

    The constructor is collective.

    Args:
        source: any node or iterable of batches of CPU tensors, or the `TensorParts` of one.
        balance: default `Balance()`.
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

    def ends_before(self, result: StepResult) -> bool:
        return result.ended and not result.global_samples

    def finish(self, part: Part, result: StepResult, passed: Sequence[int]) -> Any:
        parts, batch = self.source, self.source.batch
        if result.rows is not part.rows:  # else no sample of this rank has moved: pass the user's batch on
            with failures_reported_to_peers(self.exchange, parts.status()):
                batch = parts.build(result.rows)
        stats = parts.stats(
            result.rows.num_rows,
            result.global_samples,
            measured_lengths(result.global_items),
            straggler_before=result.straggler_before,
            straggler_after=result.straggler_after,
            moved=result.moved,
        )
        parts.advance(stats, torch.from_numpy(result.origin), self.planner.state_dict())
        return batch
