"""Noting when the model's forward and backward run, and inside them the look-ups and updates of TorchRec's tables.

Forward is that of the module that the meter was given. Backward is every call of `torch.autograd.backward`, which
`Tensor.backward` calls. Tables are those of TorchRec's sharded modules, by kernel; what fscomm does on threads of its
own is in its own report.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from fscomm.meter.intervals import Pass
from fscomm.meter.patches import Patches

_DEEPEST = 8


class Passes:
    """`found` fills with Passes whose instants are marks of `mark`, where `watching()`; the owner empties it."""

    def __init__(self, model: nn.Module, mark: Callable[[], Any], watching: Callable[[], bool]) -> None:
        self.found: list[Pass] = []
        self._model = model
        self._mark = mark
        self._watching = watching
        self._began: dict[nn.Module, Any] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Hook and wrap; on an error nothing is left."""
        try:
            self._hook(self._model, lambda module, args, output: self._end("forward", module, 0))
            for kernel in _kernels(self._model):
                self._hook(kernel, self._looked_up)
            self._patches.wrap(torch.autograd, "backward", self._backward)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put everything back. RuntimeError if other code has wrapped it since."""
        self._began.clear()
        self._patches.remove()

    def _hook(self, module: nn.Module, after: Callable[..., None]) -> None:
        def before(module: nn.Module, args: Any) -> None:
            if self._watching():
                self._began[module] = self._mark()

        self._patches.add(module.register_forward_pre_hook(before).remove)
        self._patches.add(module.register_forward_hook(after).remove)

    def _looked_up(self, kernel: nn.Module, args: Any, output: torch.Tensor) -> None:
        if kernel not in self._began:
            return
        ids = args[0].values().numel()
        self._end("lookup", kernel, ids)
        node = _table_node(output.grad_fn)
        if node is None:
            return
        began: list[Any] = []

        def before(gradients: Any) -> None:
            if self._watching():
                began.append(self._mark())

        def after(gradients: Any, given: Any) -> None:
            if began:
                self.found.append(Pass("update", began.pop(), self._mark(), ids))

        node.register_prehook(before)
        node.register_hook(after)

    def _end(self, kind: str, module: nn.Module, ids: int) -> None:
        if (begin := self._began.pop(module, None)) is not None:
            self.found.append(Pass(kind, begin, self._mark(), ids))

    def _backward(self, original: Any) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._watching():
                return original(*args, **kwargs)
            begin = self._mark()
            result = original(*args, **kwargs)
            self.found.append(Pass("backward", begin, self._mark(), 0))
            return result

        return backward


def _kernels(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that look rows up, of all sharded modules of TorchRec."""
    for module in model.modules():
        for lookup in getattr(module, "_lookups", ()):
            yield from getattr(lookup, "_emb_modules", ())


def _table_node(node: Any) -> Any:
    """The autograd node of FBGEMM's look-up, whose backward updates the table; None if there is none."""
    for _ in range(_DEEPEST):
        if node is None or "Lookup" in node.name():
            return node
        node = next((inner for inner, _ in node.next_functions if inner is not None), None)
    return None
