"""Look-ups as autograd sees them, and reads and updates of tables by modules that run plainly, in program order.

`gradient_hook` makes the node of autograd between looked-up rows, of fscomm or of TorchRec, and the graph of the user.

TorchRec's forward calls a fused kernel to look rows up, and autograd calls that kernel again to update them. A proxy
replaces the kernel's forward. Its look-up first waits for the updates before it. Its update is submitted to a worker,
which does it after those before it. So a module that runs plainly, a pipeline that replaced its forward, and a second
use in one step keep the law of `fscomm/engine/table_order.py`, too.

A sharding group without a kernel on a rank has a proxy there, too. So all ranks submit the same updates in the same
order, and no rank waits for an update that another rank never submits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fscomm.device import not_compiled
from fscomm.tables.shadow_kernels import STATES, Shadow, class_forward, memory, read_hyper
from fscomm.tables.turns import Turns

ApplyUpdate = Callable[[Callable[[], Shadow]], None]
"""Applies an update of a table. Its argument returns the shadow kernel of the thread in which it is called."""


def gradient_hook(rows: torch.Tensor, deliver: Callable[..., None], *saved: torch.Tensor) -> torch.Tensor:
    """`rows` as part of the graph; `deliver` is called with their gradient and the tensors `saved`."""
    # A new leaf each time: compiled autograd adds up the gradients of a leaf, even where all of them are None.
    anchor = rows.new_zeros(0).requires_grad_()
    result: torch.Tensor = GradientHook.apply(anchor, rows, deliver, *saved)
    return result


class GradientHook(torch.autograd.Function):
    """The node of `gradient_hook`.

    After its backward the node refers to nothing of the step, even if a loss keeps the graph, unless that is retained
    for a second backward. `anchor` is a leaf that requires a gradient and never gets one: it makes this a node of the
    graph. `saved` passes through hooks on saved tensors: under activation checkpointing the forward runs again for it.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, rows: torch.Tensor, deliver: Callable[..., None], *saved: torch.Tensor
    ) -> torch.Tensor:
        ctx.deliver = deliver
        ctx.save_for_backward(*saved)
        return rows.data  # not a view of `rows`: the user may write into what a forward returns

    @staticmethod
    @not_compiled
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        deliver, saved = ctx.deliver, ctx.saved_tensors
        if deliver is None:
            raise RuntimeError("a second backward through a graph: call the first one with retain_graph=True")
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.deliver = None
        # No update is part of the graph that backward(create_graph=True) makes: TorchRec's kernels make none either.
        with torch.no_grad():
            deliver(gradient.detach(), *saved)
        return (None,) * len(ctx.needs_input_grad)


class LookupProxy:
    """Replaces the `forward` of `target`.

    target: a fused kernel; on a rank without one, the look-up, which then looks up nothing (`empty`).
    turns: of the kernel.
    read: called before a look-up reads; blocks until it may, and returns what it reads, for `update`.
    update: called with that and the update; does not block. Both are called in the thread of forward or backward.
    """

    def __init__(
        self,
        target: Any,
        *,
        empty: bool,
        turns: Turns,
        read: Callable[[], Any],
        update: Callable[[Any, ApplyUpdate], None],
    ) -> None:
        self._target = target
        self._empty = empty
        self._turns = turns
        self._read = read
        self.update = update

    @not_compiled
    def __call__(self, *args: Any, **options: Any) -> torch.Tensor:
        read = self._read()
        with _saved_tensors() as saved, self._turns.turn():
            rows = class_forward(self._target)(*args, **options)
        if not rows.requires_grad:  # no gradients are computed, so there is nothing to update
            return rows
        make_update = self._update_of(args, options, saved)
        # Detached: backward must not reach the kernel's own node, which would update the tables at once.
        return gradient_hook(rows.detach(), lambda *given: self.update(read, make_update(*given)), *saved)

    def _update_of(
        self, args: tuple[Any, ...], options: dict[str, Any], saved: list[torch.Tensor]
    ) -> Callable[..., ApplyUpdate]:
        """Makes an update from the gradient and from `saved`, which may have been computed again."""
        if self._empty:
            return lambda *_: nothing
        hyper = read_hyper(self._target)
        # Where activation checkpointing computes `saved` again in backward, it is not what forward saved: the kernel
        # saves its learning rate as a tensor, the only one without a dimension, and so the rate of now is used (other
        # rates are numbers, and those of then). Behind managed collision the ids are mapped to other rows, too.
        rates = [i for i, tensor in enumerate(saved) if tensor.dim() == 0 and tensor.is_floating_point()]
        given = {
            name: i for name, option in options.items() for i, tensor in enumerate(saved) if _is_same(tensor, option)
        }
        own = memory(self._target, ("weights", *STATES)) if saved else {}
        tables = {name: i for name, part in own.items() for i, tensor in enumerate(saved) if _is_same(tensor, part)}

        def make_update(gradient: torch.Tensor, *unpacked: torch.Tensor) -> ApplyUpdate:
            taken = replace(hyper, learning_rate=float(unpacked[rates[0]])) if rates else hyper
            again = options | {name: unpacked[i] for name, i in given.items()}
            # Hooks may return copies, as `save_on_cpu` does for GPU tensors. The kernel's own backward would update the
            # copies and not the tables, so the same is done here.
            copies = {name: unpacked[i] for name, i in tables.items() if not _is_same(unpacked[i], own[name])}
            return lambda shadow: shadow().over(copies).update(taken, gradient, *args, **again)

        return make_update


def _is_same(tensor: torch.Tensor, option: Any) -> bool:
    # By their memory: a saved tensor was detached, and is another object. All empty tensors are at address 0.
    return (
        isinstance(option, torch.Tensor)
        and (tensor.data_ptr(), tensor.dtype, tensor.shape) == (option.data_ptr(), option.dtype, option.shape)
        and tensor.numel() > 0
    )


@contextmanager
def _saved_tensors() -> Iterator[list[torch.Tensor]]:
    """The tensors that a forward inside saves, if hooks on saved tensors are active. `gradient_hook` saves them again:
    so those hooks see what they would without fscomm, no more and no less."""
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return tensor

    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        yield saved
    else:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield saved


def nothing(_: Callable[[], Shadow]) -> None:
    """The update of no table."""
