"""Look-ups and updates of this rank's tables from worker threads, beside the model's own fused kernels.

A worker calls a *shadow* of the fused kernel (FBGEMM's TBE): the same tables and optimizer state, but a learning rate
and an iteration counter of its own, so that an update that runs late uses those of the step it belongs to, and nothing
races with the optimizer, which writes the kernel's while workers run. Looking rows up again and running backward is
bitwise the fused update, and so are calls on disjoint rows instead of one.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from fscomm.plan import Apply, Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """What one fused kernel would use for the gradients of one step, taken at its forward as the kernel does."""

    learning_rate: float
    iteration: int
    arguments: Any


def take_hyper(kernel: Any) -> Hyper:
    """Count one forward of `kernel`, as the plain loop would, and read what belongs to it."""
    features = len(kernel.feature_table_map)
    with torch.no_grad():
        where = kernel.current_device
        kernel(
            torch.empty(0, dtype=torch.int64, device=where), torch.zeros(features + 1, dtype=torch.int64, device=where)
        )
    return Hyper(
        learning_rate=float(kernel.learning_rate_tensor),
        iteration=int(kernel.iter_cpu),
        arguments=kernel.optimizer_args,
    )


class Tables:
    """The fused kernels of one sharding group on this rank, for one thread. `where` they lie is where rows are."""

    def __init__(
        self, kernels: list[Any], *, dim: int, dtype: torch.dtype, divide_by: int, where: torch.device
    ) -> None:
        self.where = where
        self._kernels = kernels
        self._dim = dim
        self._dtype = dtype
        self._divide_by = divide_by
        self._shadows = [_shadow(kernel) for kernel in kernels]

    def lookup(self, lookup: Lookup) -> torch.Tensor:
        """[n, D] the rows of `lookup`, as they go on the wire."""
        parts = [torch.empty(0, self._dim, dtype=self._dtype, device=self.where)]
        with torch.no_grad():
            for shadow, _, ids, offsets, _ in self._by_kernel(lookup.ids, lookup.offsets):
                parts.append(shadow(ids, offsets).view(-1, self._dim))
            rows = parts[-1] if len(parts) == 2 else torch.cat(parts)
            return rows.index_select(0, lookup.index)

    def apply(self, apply: Apply, received: torch.Tensor, hypers: list[Hyper]) -> None:
        """Update the rows of `apply` with gradients [n, D] as they came from the wire."""
        gradients = received.index_select(0, apply.index)
        if self._divide_by != 1:
            gradients.div_(self._divide_by)
        for shadow, number, ids, offsets, rows in self._by_kernel(apply.ids, apply.offsets):
            hyper = hypers[number]
            shadow.learning_rate_tensor.fill_(hyper.learning_rate)
            shadow.optimizer_args = hyper.arguments
            shadow.iter.fill_(hyper.iteration - 1)  # its forward counts one more
            shadow.iter_cpu.fill_(hyper.iteration - 1)
            with torch.enable_grad():
                out = shadow(ids, offsets)
            out.backward(gradients[rows].view_as(out))

    def _by_kernel(self, ids: torch.Tensor, offsets: torch.Tensor) -> Any:
        """(shadow, number, ids, offsets, slice of the rows) for each kernel that has any of the rows."""
        start = 0
        for number, kernel in enumerate(self._kernels):
            end = start + len(kernel.feature_table_map)
            first, last = int(offsets[start]), int(offsets[end])
            if last > first:
                if not _same_memory(self._shadows[number], kernel):
                    self._shadows[number] = _shadow(kernel)
                rows = slice(first, last)
                inside = (offsets[start : end + 1] - first).to(self.where, non_blocking=True)
                yield self._shadows[number], number, ids[rows], inside, rows
            start = end


def _same_memory(shadow: Any, kernel: Any) -> bool:
    names = ("weights_host", "momentum1_host", "weights_dev", "momentum1_dev")
    return all(getattr(shadow, name, None) is getattr(kernel, name, None) for name in names)


def _shadow(kernel: Any) -> Any:
    shadow = copy.copy(kernel)
    for name, value in vars(kernel).items():
        if isinstance(value, list | dict | set):  # registries, and queues that every call writes to
            shadow.__dict__[name] = copy.copy(value)
    for name in ("learning_rate_tensor", "iter", "iter_cpu"):
        setattr(shadow, name, getattr(kernel, name).clone())
    return shadow
