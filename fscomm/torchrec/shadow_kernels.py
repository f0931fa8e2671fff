"""Look-ups and updates of this rank's tables from worker threads, beside the model's own fused kernels.

A worker calls a *shadow* of the fused kernel (FBGEMM's TBE): the same tables and optimizer state, but a learning rate
and an iteration counter of its own, so that an update that runs late uses those of the step it belongs to, and nothing
races with the optimizer, which writes the kernel's while workers run. Looking rows up again and running backward is
bitwise the fused update, and so are calls on disjoint rows instead of one.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fscomm.plan.routes import Apply, Lookup


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
        own_forward(kernel)(
            torch.empty(0, dtype=torch.int64, device=where), torch.zeros(features + 1, dtype=torch.int64, device=where)
        )
    return read_hyper(kernel)


def read_hyper(kernel: Any) -> Hyper:
    """What belongs to the last forward of `kernel`."""
    return Hyper(
        learning_rate=float(kernel.learning_rate_tensor),
        iteration=int(kernel.iter_cpu),
        arguments=kernel.optimizer_args,
    )


def own_forward(module: Any) -> Any:
    """The forward of `module` itself, whatever stands in for it."""
    return type(module).forward.__get__(module)


class Shadow:
    """A copy of a fused kernel for one thread. Follows the kernel where its memory is replaced."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._copy = _copy(kernel)

    def lookup(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._current()(ids, offsets)

    def update(self, hyper: Hyper, gradient: torch.Tensor, *args: Any, **options: Any) -> None:
        """What backward of the kernel's forward with these arguments would do, given the gradient of its output."""
        copied = self._current()
        copied.learning_rate_tensor.fill_(hyper.learning_rate)
        copied.optimizer_args = hyper.arguments
        copied.iter.fill_(hyper.iteration - 1)  # its forward counts one more
        copied.iter_cpu.fill_(hyper.iteration - 1)
        with torch.enable_grad():
            out = copied(*args, **options)
        with torch.no_grad():  # in this thread: on CUDA autograd's own may be in a forward that waits for this update
            out.grad_fn(gradient.view_as(out))

    def _current(self) -> Any:
        if not all(getattr(self._copy, name, None) is getattr(self._kernel, name, None) for name in _MEMORY):
            self._copy = _copy(self._kernel)
        return self._copy


class Tables:
    """The fused kernels of one sharding group on this rank, for one thread. `where` they lie is where rows are."""

    def __init__(
        self, kernels: list[Any], *, dim: int, dtype: torch.dtype, divide_by: int, where: torch.device
    ) -> None:
        self.where = where
        self._features = [len(kernel.feature_table_map) for kernel in kernels]
        self._dim = dim
        self._dtype = dtype
        self._divide_by = divide_by
        self.shadows = [Shadow(kernel) for kernel in kernels]

    def lookup(self, lookup: Lookup) -> torch.Tensor:
        """[n, D] the rows of `lookup`, as they go on the wire."""
        parts = [torch.empty(0, self._dim, dtype=self._dtype, device=self.where)]
        for number, ids, offsets, _ in self._by_kernel(lookup.ids, lookup.offsets):
            if len(ids):
                parts.append(self.shadows[number].lookup(ids, offsets).view(-1, self._dim))
        rows = parts[-1] if len(parts) == 2 else torch.cat(parts)
        return rows.index_select(0, lookup.index)

    def apply(self, apply: Apply, received: torch.Tensor, hypers: list[Hyper]) -> None:
        """Update the rows of `apply` with gradients [n, D] as they came from the wire."""
        for number, ids, offsets, gradient in self.updates(apply, received):
            if len(ids):
                self.shadows[number].update(hypers[number], gradient, ids, offsets)

    def updates(
        self, apply: Apply, received: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(kernel, ids, offsets, gradients in the order of the ids) for each kernel."""
        gradients = received.index_select(0, apply.index)
        if self._divide_by != 1:
            gradients.div_(self._divide_by)
        for number, ids, offsets, rows in self._by_kernel(apply.ids, apply.offsets):
            yield number, ids, offsets, gradients[rows]

    def _by_kernel(
        self, ids: torch.Tensor, offsets: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, slice]]:
        """(number, ids, offsets, slice of the rows) for each kernel."""
        start = 0
        for number, features in enumerate(self._features):
            end = start + features
            first, last = int(offsets[start]), int(offsets[end])
            rows = slice(first, last)
            inside = (offsets[start : end + 1] - first).to(self.where, non_blocking=True)
            yield number, ids[rows], inside, rows
            start = end


_MEMORY = ("weights_host", "momentum1_host", "weights_dev", "momentum1_dev")


def _copy(kernel: Any) -> Any:
    copied = copy.copy(kernel)
    copied.__dict__.pop("forward", None)  # what stands in for the kernel's forward does not stand in for the copy's
    for name, value in vars(kernel).items():
        if isinstance(value, list | dict | set):  # registries, and queues that every call writes to
            copied.__dict__[name] = copy.copy(value)
    for name in ("learning_rate_tensor", "iter", "iter_cpu"):
        setattr(copied, name, getattr(kernel, name).clone())
    return copied
