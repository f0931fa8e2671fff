"""Look-ups and updates of this rank's tables from worker threads, beside the model's own fused kernels.

A worker calls a *shadow* of the fused kernel (FBGEMM's TBE): the same tables and optimizer state, but a learning rate
and an iteration counter of its own. So a late update uses those of its step, and does not race with the optimizer,
which writes the kernel's while workers run. To look rows up again and run backward is bitwise the fused update, and so
are several calls on disjoint rows instead of one.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fscomm.tables.turns import NO_TURNS, Turns

# Methods of a kernel, beside its forward, that read or write tables.
KERNEL_READS = "split_embedding_weights", "split_optimizer_states", "get_optimizer_buffer", "get_all_states", "flush"
KERNEL_WRITES = "reset_embedding_weight_momentum", "reset_cache_states"
STATES = ("momentum1", "momentum2", "prev_iter", "row_counter")


def memory(kernel: Any, of: Iterable[str] = STATES) -> dict[str, torch.Tensor]:
    """The memory in use of a kernel's tables, by name. of: which kinds, such as "weights"; the optimizer's states."""
    named = (f"{part}_{place}" for part in of for place in ("dev", "host", "uvm"))
    found = ((name, getattr(kernel, name, None)) for name in named)
    return {name: tensor for name, tensor in found if tensor is not None and tensor.numel()}


def tensors_of(kernel: Any) -> list[torch.Tensor]:
    """All tensors that a kernel refers to, parameters and buffers among them."""
    named = (*vars(kernel).values(), *kernel.parameters(), *kernel.buffers())
    return [each for each in named if isinstance(each, torch.Tensor)]


_counted: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()  # by kernel: what a forward adds to its counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """What a fused kernel would use for the gradients of one step. As the kernel does, it is taken at the forward."""

    learning_rate: float
    iteration: int
    arguments: Any


def take_hyper(kernel: Any) -> Hyper:
    """Count one forward of `kernel`, as the plain loop would, and read its hyperparameters.

    A forward without ids counts, too, but launches a handful of kernels on a GPU. So there is only one, which shows
    what a forward counts; later ones are counted here.
    """
    counted = _counted.get(kernel)
    # At 0 a forward takes `iter_cpu` from `iter`, which a checkpoint may have loaded: it adds another number then.
    if counted is None or ("iter_cpu" in counted and not int(kernel.iter_cpu)):
        before = _counters(kernel)
        _forward_without_ids(kernel)
        now = _counters(kernel)
        if before["iter_cpu"] or not before["iter"]:  # else this forward counted more than later ones will
            _counted[kernel] = {name: number - before[name] for name, number in now.items() if number != before[name]}
    else:
        for name, number in counted.items():
            value = getattr(kernel, name)
            if isinstance(value, torch.Tensor):
                value.add_(number)
            else:
                setattr(kernel, name, value + number)
    return read_hyper(kernel)


def _counters(kernel: Any) -> dict[str, int]:
    """All integers of a kernel, which a forward may count up."""
    numbers = {name: value for name, value in vars(kernel).items() if type(value) is int}
    return numbers | {name: int(getattr(kernel, name)) for name in ("iter", "iter_cpu")}


def _forward_without_ids(kernel: Any) -> None:
    features, where = len(kernel.feature_table_map), kernel.current_device
    with torch.no_grad():
        class_forward(kernel)(
            torch.empty(0, dtype=torch.int64, device=where), torch.zeros(features + 1, dtype=torch.int64, device=where)
        )


def read_hyper(kernel: Any) -> Hyper:
    """The hyperparameters of the last forward of `kernel`."""
    return Hyper(
        learning_rate=float(kernel.learning_rate_tensor),
        iteration=int(kernel.iter_cpu),
        arguments=kernel.optimizer_args,
    )


def class_forward(module: Any) -> Any:
    """The forward of the module's class, whatever replaces it on the instance."""
    return type(module).forward.__get__(module)


class Shadow:
    """A copy of a fused kernel for one thread, over the same memory; made again where that is replaced.

    turns: those of the kernel. pooling: the pooling mode of the copy; None: that of the kernel.
    """

    def __init__(self, kernel: Any, turns: Turns = NO_TURNS, pooling: Any = None) -> None:
        self._kernel = kernel
        self._turns = turns
        self._pooling = pooling
        self._copy = _copy(kernel, pooling)
        self._memory = tuple(memory(kernel, ("weights", *STATES)))

    @cached_property
    def adding(self) -> "Shadow":
        """A shadow of the same kernel that adds up the rows of a bag, instead of a mean."""
        return Shadow(self._kernel, self._turns, type(self._kernel.pooling_mode).SUM)

    def over(self, copies: Mapping[str, torch.Tensor]) -> "Shadow":
        """A shadow of the same kernel that reads and writes `copies` instead of the kernel's memory of these names."""
        if not copies:
            return self
        kernel = _copy(self._kernel, self._pooling)
        for name, copied in copies.items():  # `nn.Module` accepts no plain tensor in the place of a parameter
            kernel._parameters.pop(name, None)
            kernel._buffers.pop(name, None)
            vars(kernel)[name] = copied
        return Shadow(kernel, self._turns, self._pooling)

    def lookup(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        with torch.no_grad(), self._turns.turn():
            return self._current()(ids, offsets, weights)

    def update(self, hyper: Hyper, gradient: torch.Tensor, *args: Any, **options: Any) -> None:
        """Do what backward of the kernel's forward with these arguments would, given the gradient of its output."""
        copied = self._current()
        copied.learning_rate_tensor.fill_(hyper.learning_rate)
        copied.optimizer_args = hyper.arguments
        copied.iter.fill_(hyper.iteration - 1)  # its forward counts one more
        copied.iter_cpu.fill_(hyper.iteration - 1)
        with self._turns.turn():
            with torch.enable_grad():
                out = copied(*args, **options)
            # The node is called in this thread: on CUDA autograd runs backward in a thread of its own, which may be in
            # a forward that waits for this very update (activation checkpointing).
            with torch.no_grad():
                out.grad_fn(gradient.view_as(out))

    def _current(self) -> Any:
        # The program may have set other parameters, as `load_state_dict(assign=True)` does.
        if not all(getattr(self._copy, name) is getattr(self._kernel, name) for name in self._memory):
            self._copy = _copy(self._kernel, self._pooling)
        return self._copy


def _copy(kernel: Any, pooling: Any) -> Any:
    copied = copy.copy(kernel)  # shallow: tables and optimizer state are those of the kernel
    for name in ("forward", *KERNEL_READS, *KERNEL_WRITES):  # hooks on the kernel: proxies, and calls that are watched
        copied.__dict__.pop(name, None)
    for name, value in vars(kernel).items():
        if isinstance(value, list | dict | set):  # registries, and queues that every call appends to
            copied.__dict__[name] = copy.copy(value)
    for name in ("learning_rate_tensor", "iter", "iter_cpu"):  # set for each update, and the kernel's are in use
        setattr(copied, name, getattr(kernel, name).clone())
    if pooling is not None:
        copied.pooling_mode = pooling
    return copied
