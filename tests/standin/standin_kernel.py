"""A fused kernel in plain torch: rows of tables that backward updates, deterministic on CPUs and on GPUs.

It has the interface of fbgemm's that fscomm uses. Rows are gathered by `index_select`. The gradients of one row are
added up in the order of its occurrences, and its optimizer's state is updated from that sum alone: so bits do not
depend on which other rows a call has, nor on the device's way to add.
"""

from typing import Any

import torch
from torch import nn

EPS = 1e-8


class Kernel(nn.Module):
    """Tables [rows of all tables, D] of which feature f reads table feature_table_map[f].

    optimizer: "sgd" or "row-wise adagrad".
    """

    def __init__(
        self, tables: list[torch.Tensor], feature_table_map: list[int], optimizer: str, rate: float, where: torch.device
    ) -> None:
        super().__init__()
        starts = [0]
        for table in tables:
            starts.append(starts[-1] + len(table))
        self.feature_table_map = feature_table_map
        self.current_device = where
        self.optimizer_args = optimizer
        self.learning_rate_tensor = torch.tensor(rate)
        self.iter = torch.zeros(1, dtype=torch.int64)
        self.iter_cpu = torch.zeros(1, dtype=torch.int64)
        self.weights_dev = nn.Parameter(torch.cat(tables).to(where))
        self.momentum1_dev = torch.zeros(starts[-1], device=where)
        self._starts = [starts[table] for table in feature_table_map]

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """[N, D]; offsets: [features * samples + 1]."""
        assert weights is None
        assert ids.device == offsets.device
        self.iter += 1
        self.iter_cpu += 1
        ends = offsets[:: (len(offsets) - 1) // len(self.feature_table_map)].cpu().tolist()
        rows = [ids[ends[f] : ends[f + 1]] + start for f, start in enumerate(self._starts)]
        found: torch.Tensor = _Lookup.apply(self.weights_dev, torch.cat(rows), self.learning_rate_tensor.clone(), self)
        return found

    def update(self, rows: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """gradient: [N, D] of the `rows` int64[N], in which a row may occur more than once."""
        distinct, slots = rows.unique(return_inverse=True)
        order = slots.argsort(stable=True)
        counts = slots.bincount(minlength=len(distinct))
        starts = counts.cumsum(0) - counts
        total = torch.zeros(len(distinct), gradient.shape[1], device=gradient.device)
        for k in range(int(counts.max()) if len(rows) else 0):
            there = counts > k
            total[there] += gradient[order[starts[there] + k]]
        if self.optimizer_args == "row-wise adagrad":
            square = torch.zeros(len(distinct), device=gradient.device)
            for column in total.unbind(1):
                square += column * column
            self.momentum1_dev[distinct] += square / total.shape[1]
            total = total / (self.momentum1_dev[distinct].sqrt() + EPS)[:, None]
        with torch.no_grad():
            self.weights_dev.data[distinct] -= total * rate


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, rows: torch.Tensor, rate: torch.Tensor, kernel: Kernel) -> Any:
        ctx.save_for_backward(rows, rate)
        ctx.kernel = kernel
        return weights.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, rate = ctx.saved_tensors
        ctx.kernel.update(rows, gradient, float(rate))
        return None, None, None, None


_Lookup._backward_cls.__call__ = lambda node, gradient: node.apply(gradient)  # nodes written in C++ can be called
