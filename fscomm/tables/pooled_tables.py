"""The fused kernels of pooled tables, for one thread: bags are read whole, and updated row by row."""

from collections.abc import Iterator
from typing import Any

import torch

from fscomm.plan.ways import Apply, Lookup
from fscomm.tables.shadow_kernels import GroupTables, TableUpdate


class PooledTables(GroupTables):
    """Of tables that give every bag a vector.

    A kernel that averages is updated by one that adds, with 1 / the length of the whole bag as the weight of each id:
    the bits are the same, and rows of a bag can be left out.
    """

    def __init__(self, kernels: list[Any], **options: Any) -> None:
        super().__init__(kernels, **options)
        self._means = [kernel.pooling_mode.name == "MEAN" for kernel in kernels]
        self._columns = [sum(kernel.dims[table] for table in kernel.feature_table_map) for kernel in kernels]

    def _read(self, lookup: Lookup) -> torch.Tensor:
        if not len(lookup.ids):
            return torch.empty(0, self._dim, dtype=self.codecs.given, device=self.where)
        vectors = [
            self.shadows[number].lookup(lookup.ids[ids], offsets, _some(lookup.weights, ids))
            for number, ids, offsets in self._by_kernel(lookup.offsets)
        ]
        return torch.cat(vectors, dim=1).view(-1, self._dim).index_select(0, lookup.index)

    def _updates(self, apply: Apply, received: torch.Tensor, kept: torch.Tensor | None) -> Iterator[TableUpdate]:
        came = [] if kept is None else [kept]
        gradients = torch.cat([*came, received, received.new_zeros(1, self._dim)]).index_select(0, apply.index)
        for ranks in self._divide_by:
            gradients.div_(ranks)
        by_kernel = gradients.view(-1, sum(self._columns)).split(self._columns, dim=1) if self._columns else ()
        for gradient, (number, ids, offsets) in zip(by_kernel, self._by_kernel(apply.offsets), strict=True):
            averages = self._means[number] and apply.weights is None
            weights = _some(apply.shares if averages else apply.weights, ids)
            yield TableUpdate(number, apply.ids[ids], offsets, gradient.contiguous(), weights, averages)

    def _by_kernel(self, offsets: torch.Tensor) -> Iterator[tuple[int, slice, torch.Tensor]]:
        """(number, which ids, offsets) for each kernel."""
        samples = (len(offsets) - 1) // max(sum(self._features), 1)
        start = 0
        for number, features in enumerate(self._features):
            end = start + features * samples
            first, last = int(offsets[start]), int(offsets[end])
            yield number, slice(first, last), (offsets[start : end + 1] - first).to(self.where, non_blocking=True)
            start = end


def _some(weights: torch.Tensor | None, which: slice) -> torch.Tensor | None:
    return None if weights is None else weights[which]
