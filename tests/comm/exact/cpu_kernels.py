"""What fbgemm has for CUDA only, for the CPU, in torch: index dedup, and Adam, LAMB and their row-wise forms.

Every row is updated by itself, as the kernels do: sums over columns and over the gradients of a row are added one after
the other, so that a row's result does not depend on which other rows are updated with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
from fbgemm_gpu.split_embedding_codegen_lookup_invokers import (
    lookup_adam,
    lookup_lamb,
    lookup_partial_rowwise_adam,
    lookup_partial_rowwise_lamb,
)
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import library as operators
from torchrec.distributed import batched_embedding_kernel


def jagged_unique_indices(
    hash_size_cumsum: torch.Tensor, hash_size_offset: torch.Tensor, offsets: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each table's ids once: lengths [F * B], offsets [F * B + 1], unique ids, and which of them each id is.

    hash_size_cumsum: [F + 1] where a feature's ids begin, counted over all tables; features of one table share that.
    hash_size_offset: [F + 1] how many features there are up to a table's first one. offsets: [F * B + 1]. As fbgemm's
    CUDA kernel does, unique ids of a table are sorted, and spread over its features' samples as evenly as they go.
    """
    features = len(hash_size_offset) - 1
    samples = (len(offsets) - 1) // features
    of_feature = torch.repeat_interleave(torch.arange(features), offsets[::samples].diff())
    table_start = hash_size_cumsum[:-1]
    unique, reverse = torch.unique(indices + table_start[of_feature], sorted=True, return_inverse=True)
    lengths = torch.zeros(features * samples, dtype=torch.int64)
    values = unique.clone()
    first = 0
    while first < features:
        last = first + 1
        while last < features and hash_size_offset[last + 1] == hash_size_offset[last]:
            last += 1
        low, high = int(hash_size_cumsum[first]), int(hash_size_cumsum[last])
        inside = (unique >= low) & (unique < high)
        values[inside] -= low
        places = (last - first) * samples
        each, rest = divmod(int(inside.sum()), places)
        lengths[first * samples : last * samples] = each
        lengths[first * samples : first * samples + rest] += 1
        first = last
    return lengths, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), values, reverse


Rows = torch.Tensor  # [n, columns], or [n, 1] of a state that has one number per row


@dataclass(frozen=True, slots=True)
class Step:
    """Of one of the optimizers; per_row: its second moment has one number per row; trust: the ratio of LAMB."""

    rate: float
    number: int
    options: Any  # fbgemm's OptimizerArgs
    per_row: bool
    trust: bool

    def update(self, rows: Rows, gradient: Rows, first: Rows, second: Rows) -> None:
        """Writes the rows and both moments."""
        options, squared = self.options, gradient * gradient
        if self.per_row:
            squared = _over_columns(squared) / gradient.shape[1]
        first.mul_(options.beta1).add_(gradient * (1 - options.beta1))
        second.mul_(options.beta2).add_(squared * (1 - options.beta2))
        corrected = (second / (1 - options.beta2**self.number)).sqrt() + options.eps
        direction = first / (1 - options.beta1**self.number) / corrected + rows * options.weight_decay
        if self.trust:
            ratio = _over_columns(rows * rows).sqrt() / _over_columns(direction * direction).sqrt()
            direction = direction * ratio.nan_to_num(1.0)
        rows.sub_(direction * self.rate)


def _over_columns(values: Rows) -> Rows:
    total = values[:, :1].clone()
    for column in range(1, values.shape[1]):
        total.add_(values[:, column : column + 1])
    return total


ON_CPU = {  # fbgemm's look-up, per_row, trust
    EmbOptimType.ADAM: (lookup_adam, False, False),
    EmbOptimType.PARTIAL_ROWWISE_ADAM: (lookup_partial_rowwise_adam, True, False),
    EmbOptimType.LAMB: (lookup_lamb, False, True),
    EmbOptimType.PARTIAL_ROWWISE_LAMB: (lookup_partial_rowwise_lamb, True, True),
}


class KernelOnCpu(fbgemm.SplitTableBatchedEmbeddingBagsCodegen):
    """fbgemm's, which on the CPU refuses these optimizers when it is made, and can do all else."""

    def __init__(
        self, embedding_specs: Sequence[Any], *args: Any, optimizer: EmbOptimType = EmbOptimType.EXACT_SGD, **more: Any
    ) -> None:
        lent = EmbOptimType.EXACT_ADAGRAD if optimizer in ON_CPU else optimizer
        super().__init__(embedding_specs, *args, optimizer=lent, **more)
        self.optimizer = optimizer
        if optimizer not in ON_CPU:
            return
        for name in [name for name in vars(self) | self._buffers if name.startswith("momentum2_")]:
            delattr(self, name)
        _, per_row, _ = ON_CPU[optimizer]
        state = fbgemm.construct_split_state(list(embedding_specs), rowwise=per_row, cacheable=False)
        self._apply_split(state, prefix="momentum2", dtype=torch.float32)  # type: ignore[arg-type]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, common: Any, step: Step, moments: list[Any]) -> torch.Tensor:
        ctx.held = (common, step, moments)
        samples = (len(common.offsets) - 1) // (len(common.D_offsets) - 1)
        nobag = common.pooling_mode == PoolingMode.NONE.value
        found = []
        for at, _, weights, shares, sample in _features(common):
            rows = common.host_weights[at].float()
            for scale in (weights, shares):
                rows = rows if scale is None else rows * scale[:, None]
            if not nobag:
                rows = rows.new_zeros(samples, rows.shape[1]).index_add_(0, sample, rows)
            found.append(rows)
        return torch.cat(found, dim=0 if nobag else 1).to(SparseType.from_int(common.output_dtype).as_dtype())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        common, step, moments = ctx.held
        (gradient,) = (each.float() for each in gradients)
        if step.options.gradient_clipping:
            gradient = gradient.clamp(-step.options.max_gradient, step.options.max_gradient)
        tables: dict[int, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}
        first = 0
        for number, (_, ids, weights, shares, sample) in enumerate(_features(common)):
            scale = shares if weights is None else weights  # weighted means are not divided here, as by fbgemm's own
            if common.pooling_mode == PoolingMode.NONE.value:
                of_ids = gradient[first : first + len(ids)]
                first += len(ids)
            else:
                of_ids = gradient[:, slice(*common.D_offsets[number : number + 2].tolist())][sample]
            of_ids = of_ids if scale is None else of_ids * scale[:, None]
            tables.setdefault(int(common.weights_offsets[number]), []).append((number, ids, of_ids))
        for start, parts in tables.items():
            number = parts[0][0]
            every = torch.cat([ids for _, ids, _ in parts])
            unique, place = torch.unique(every, return_inverse=True)
            width = parts[0][2].shape[1]
            summed = gradient.new_zeros(len(unique), width).index_add_(
                0, place, torch.cat([each for *_, each in parts])
            )
            at = _places(unique, start, width)
            rows = common.host_weights[at].float()
            held = []
            for moment in moments:
                per_row = moment.host.numel() < common.host_weights.numel()
                held.append(_places(unique, int(moment.offsets[number]), 1 if per_row else width))
            states = [moment.host[where] for moment, where in zip(moments, held, strict=True)]
            step.update(rows, summed, *states)
            with torch.no_grad():
                common.host_weights[at] = rows.to(common.host_weights.dtype)
                for moment, where, state in zip(moments, held, states, strict=True):
                    moment.host[where] = state
        return (None,) * 4


def _run_backward(self: Any, gradient: torch.Tensor) -> None:
    self.apply(gradient)


_Lookup._backward_cls.__call__ = _run_backward  # type: ignore[attr-defined]  # as the kernels' own, which are C++


def _places(ids: torch.Tensor, start: int, width: int) -> torch.Tensor:
    """[n, width] where rows stand in the memory of all tables."""
    return start + ids[:, None] * width + torch.arange(width)


def _features(common: Any) -> Any:
    """Of each feature: places of its rows, its ids, their weights, their shares of a mean, their samples."""
    features = len(common.D_offsets) - 1
    samples = (len(common.offsets) - 1) // features
    for number in range(features):
        offsets = common.offsets[number * samples : (number + 1) * samples + 1]
        inside = slice(int(offsets[0]), int(offsets[-1]))
        ids = common.indices[inside].long()
        lengths = offsets.diff()
        sample = torch.repeat_interleave(torch.arange(samples), lengths)
        weights = common.indice_weights[inside] if common.indice_weights is not None else None
        shares = 1 / lengths.float()[sample] if common.pooling_mode == PoolingMode.MEAN.value else None
        width = int(common.D_offsets[number + 1] - common.D_offsets[number])
        yield _places(ids, int(common.weights_offsets[number]), width), ids, weights, shares, sample


def _invoke_by(per_row: bool, trust: bool) -> Callable[..., torch.Tensor]:
    def invoke(common: Any, options: Any, momentum1: Any, momentum2: Any, iter: int, **_: Any) -> torch.Tensor:
        step = Step(float(common.learning_rate_tensor), iter, options, per_row, trust)
        placeholder = torch.zeros(1, requires_grad=True)
        return _Lookup.apply(placeholder, common, step, [momentum1, momentum2])  # type: ignore[no-any-return,no-untyped-call]

    return invoke


operators.impl("fbgemm::jagged_unique_indices", "CPU", jagged_unique_indices)
for _of, *_kind in ON_CPU.values():
    _of.invoke = _invoke_by(*_kind)
batched_embedding_kernel.SplitTableBatchedEmbeddingBagsCodegen = KernelOnCpu  # type: ignore[misc]
