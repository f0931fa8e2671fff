"""The fused kernels of one pooled group on this rank: bags are read whole, and updated row by row."""

from collections.abc import Iterator
from typing import Any

import torch

from fscomm.plan.group_plan import Apply
from fscomm.plan.kernel_calls import KernelCall
from fscomm.tables.group_tables import GroupTables, TableUpdate


class PooledTables(GroupTables):
    """Tables that return a vector for every bag.

    A kernel that averages is updated by one that adds, so that rows of a bag can be left out. On the CPU it multiplies
    by 1 / the length of the whole bag for each id, as a weight; on CUDA once for each bag, before it adds up. The bits
    are the same: measured on an H200 (`means` in `benchmarks/results/gpu_torchrec.json`).
    """

    def __init__(self, kernels: list[Any], *, scales_bags: bool | None = None, **options: Any) -> None:
        super().__init__(kernels, **options)
        self._means = [kernel.pooling_mode.name == "MEAN" for kernel in kernels]
        widths = [[kernel.dims[table] for table in kernel.feature_table_map] for kernel in kernels]
        self._columns = [sum(of_kernel) for of_kernel in widths]
        self._widths = [torch.tensor(of_kernel, device=self.where) for of_kernel in widths]
        self._scales_bags = self.where.type == "cuda" if scales_bags is None else scales_bags

    def updates(self, apply: Apply, gradients: torch.Tensor) -> Iterator[TableUpdate]:
        by_kernel = gradients.view(-1, sum(self._columns)).split(self._columns, dim=1) if self._columns else ()
        for number, (gradient, bags) in enumerate(zip(by_kernel, apply.call.bags, strict=True)):
            ids = slice(bags.first, bags.last)
            shadow, weights = self.shadows[number], _some(apply.call.weights, ids)
            if self._means[number] and weights is None:
                shadow, weights = shadow.adding, _some(apply.shares, ids)
                if self._scales_bags and weights is not None and len(weights):
                    gradient = self._scaled(number, gradient, weights, bags.offsets)
                    weights = None
            yield TableUpdate(shadow, gradient.contiguous(), apply.call.ids[ids], bags.offsets, weights)

    def _read(self, call: KernelCall) -> torch.Tensor:
        if not len(call.ids):
            return torch.empty(0, self._dim, dtype=self.codecs.given, device=self.where)
        vectors = []
        for shadow, bags in zip(self.shadows, call.bags, strict=True):
            ids = slice(bags.first, bags.last)
            vectors.append(shadow.lookup(call.ids[ids], bags.offsets, _some(call.weights, ids)))
        return torch.cat(vectors, dim=1).view(-1, self._dim)

    def _scaled(self, number: int, gradient: torch.Tensor, shares: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """gradient [B, columns] times the share of each bag. shares: float32[n] by id, in the order of the bags; all
        ids of a bag have the same."""
        widths = self._widths[number]
        first = offsets[:-1].clamp(max=len(shares) - 1)  # bags without an id may have any share
        of_bags = shares[first].view(len(widths), -1).T
        return gradient * of_bags.repeat_interleave(widths, dim=1, output_size=self._columns[number])


def _some(weights: torch.Tensor | None, which: slice) -> torch.Tensor | None:
    return None if weights is None else weights[which]
