"""Look-ups of modules that run plainly: they read and update tables in program order, as served modules do.

TorchRec's forward calls a fused kernel to look rows up, and autograd calls that kernel again to update them. A proxy
stands in for the kernel's forward. Its look-up first waits for the updates before it. Its update is handed over, and is
done after those before it. So a module that runs plainly, a pipeline that replaced its forward, and a second use in one
step keep the law of `fscomm/engine/table_order.py`, too.

A sharding group that has no kernel on a rank has a proxy there all the same. So all ranks submit the same updates in
the same order, and no rank waits for an update that another rank does not know of.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from fscomm.device import not_compiled
from fscomm.tables.gradient_tap import tap
from fscomm.tables.shadow_kernels import Shadow, own_forward, read_hyper

Update = Callable[[Callable[[], Shadow]], None]  # gets what gives the shadow of the thread that does it


class AccessOrder(Protocol):
    """Keeps the order of reads and updates. Called by the thread that runs the forward or the backward."""

    def read(self) -> Any:
        """A look-up is about to read. Blocks until it may; gives what `update` wants to know of this read."""

    def update(self, read: Any, update: Update) -> None:
        """The tables shall be updated. Does not block."""


class LookupProxy(ABC):
    """In the place of the `forward` of `target`, from `install` until `remove`."""

    def __init__(self, target: Any, order: AccessOrder) -> None:
        self._target = target
        self.order = order

    def install(self) -> None:
        self._target.forward = self

    def remove(self) -> None:
        del self._target.forward

    @not_compiled
    def __call__(self, *args: Any, **options: Any) -> torch.Tensor:
        read = self.order.read()
        with _saved_tensors() as saved:
            rows = own_forward(self._target)(*args, **options)
        if not rows.requires_grad:
            return rows
        make_update = self._backward(args, options, saved)
        return tap(rows.detach(), partial(self._deliver, read, make_update), *saved)

    @abstractmethod
    def _backward(
        self, args: tuple[Any, ...], options: dict[str, Any], saved: list[torch.Tensor]
    ) -> Callable[..., Update]:
        """What makes an update of the gradient and of `saved`, which may have been computed again."""

    def _deliver(self, read: Any, make_update: Callable[..., Update], *came: torch.Tensor) -> None:
        """Maybe after the block of the forward was left."""
        here = vars(self._target).get("forward") is self
        update_in_turn(self._target, read if here else None, make_update(*came))


class KernelProxy(LookupProxy):
    """Of a fused kernel."""

    def _backward(
        self, args: tuple[Any, ...], options: dict[str, Any], saved: list[torch.Tensor]
    ) -> Callable[..., Update]:
        hyper = read_hyper(self._target)
        # The kernel saves its learning rate as a tensor, the only one without a dimension, and all else as numbers:
        # what is computed again in backward changes the one and not the others.
        rates = [i for i, tensor in enumerate(saved) if tensor.dim() == 0 and tensor.is_floating_point()]

        def make_update(gradient: torch.Tensor, *came: torch.Tensor) -> Update:
            taken = replace(hyper, learning_rate=float(came[rates[0]])) if rates else hyper
            return lambda shadow: shadow().update(taken, gradient, *args, **options)

        return make_update


class EmptyProxy(LookupProxy):
    """Of a look-up that has no kernel on this rank."""

    def _backward(
        self, args: tuple[Any, ...], options: dict[str, Any], saved: list[torch.Tensor]
    ) -> Callable[..., Update]:
        return lambda *_: nothing


@contextmanager
def _saved_tensors() -> Iterator[list[torch.Tensor]]:
    """What a forward saves inside, if hooks on saved tensors are active: they are to see no more and no less of it."""
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


def update_in_turn(target: Any, read: Any, update: Update) -> None:
    """Update the tables behind `target` when it is its turn, or at once where nobody orders them.

    read: what `AccessOrder.read` gave for the forward; None for a forward that its `AccessOrder` does not know.
    """
    proxy = vars(target).get("forward")
    if isinstance(proxy, LookupProxy):
        proxy.order.update(read, update)
    else:
        update(lambda: Shadow(target))
