"""What a meter notes of the step under way: waits for other ranks, passes of the model, bytes that were sent.

Forward is that of the module that the meter was given, backward every call of `torch.autograd.backward`, which
`Tensor.backward` calls. Look-ups and updates are those of TorchRec's sharded modules, by kernel; what fscomm does on
threads of its own is in its own report.

DDP waits inside C++ when a backward pass has ended: there, hooks on its parameters note the last gradient, and two
callbacks of the autograd engine enclose DDP's own. The engine runs the first after the graph, and the first queues the
second. A communication hook is no alternative: it cannot be removed, and it changes where DDP divides, which changes
the last bit of gradients.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fsmeter.intervals import Exchange, Pass, Timeline, Wait

_DEEPEST = 8


class Notes:
    """Adds to `line`, with instants that are marks of `mark`; to nothing where `line` is None.

    Only the thread that called `begin` is watched, and on CUDA the autograd engine's threads, which run while it
    blocks in backward.
    """

    def __init__(self, mark: Callable[[], Any]) -> None:
        self.mark = mark
        self.line: Timeline | None = None
        self._thread = 0
        self._depth = 0
        self._numbers: Counter[str] = Counter()
        self._issued: weakref.WeakKeyDictionary[dist.Work, Exchange] = weakref.WeakKeyDictionary()
        self._began: dict[nn.Module, Any] = {}
        self._dense_size = 0
        self._graph_task = -1
        self._last_gradient: Any = None
        self._dense_begin: Any = None

    def begin(self, line: Timeline) -> None:
        """A step begins, on this thread, with fetching its batch."""
        self.line = line
        self._thread = threading.get_ident()
        self._depth = 0
        self._numbers.clear()

    @property
    def in_pull(self) -> bool:
        """Whether the batch of the step is still being fetched."""
        return self.line is not None and self.line.pulled is None

    def here(self) -> bool:
        """Whether to note what this thread does now."""
        if self.line is None or self._depth:
            return False
        return threading.get_ident() == self._thread or (
            # Engine threads of a device are not Python's; worker threads of fscomm, which also run backward, are.
            torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)
        )

    def issued(self, work: dist.Work, group: str, mark: Any, size: int | None) -> None:
        """An exchange, from whose start on this rank gives its part."""
        self._issued[work] = self._exchange(group, mark, size)

    @contextmanager
    def waiting(self, kind: str, work: dist.Work | None = None) -> Iterator[None]:
        """Around one wait, `here`; what it waits for inside does not count again."""
        begin = self.mark()
        exchange = self._issued.pop(work, None) if work is not None else None
        if exchange is None:  # not seen when it was issued: as if it had been now
            exchange = self._exchange(f"wait for {kind}", begin)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._add_wait(kind, exchange, begin)

    @contextmanager
    def passing(self, kind: str) -> Iterator[None]:
        """Around one run of a part of the model that looks nothing up, `here`."""
        begin = self.mark()
        yield
        self._add_pass(kind, begin, 0)

    # As an observer of fscomm.

    def doing(self, what: str, *, step: int | None, waiting: bool) -> AbstractContextManager[object]:
        return self.waiting(_kind(what)) if waiting and self.here() else nullcontext()

    def sent(self, what: str, size: int) -> None:
        if (line := self.line) is not None:
            line.sent.append((_kind(what), size))

    def hook(self, model: nn.Module, undo: ExitStack) -> None:
        """Note what `model` does from now on, until `undo` is closed."""
        self._dense_size = 0
        undo.callback(self._began.clear)
        self._hook_forward(model, lambda module, args, output: self._forward_ends("forward", module, 0), undo)
        for module in model.modules():
            for lookup in getattr(module, "_lookups", ()):
                for kernel in getattr(lookup, "_emb_modules", ()):
                    self._hook_forward(kernel, self._looked_up, undo)
            if isinstance(module, DistributedDataParallel):
                self._hook_gradients(module, undo)

    def _exchange(self, group: str, issued: Any, size: int | None = None) -> Exchange:
        assert self.line is not None
        self._numbers[group] += 1
        return Exchange(group, self.line.step, self._numbers[group], issued, size)

    def _add_wait(self, kind: str, exchange: Exchange, begin: Any) -> None:
        if (line := self.line) is not None:
            line.waits.append(Wait(kind, exchange, begin, self.mark(), self.in_pull))
            if exchange.size is not None:
                line.sent.append((kind, exchange.size))

    def _add_pass(self, kind: str, begin: Any, rows: int) -> None:
        if (line := self.line) is not None:
            line.passes.append(Pass(kind, begin, self.mark(), rows))

    def _hook_forward(self, module: nn.Module, after: Callable[..., None], undo: ExitStack) -> None:
        def before(module: nn.Module, args: Any) -> None:
            if self.here():
                self._began[module] = self.mark()

        undo.callback(module.register_forward_pre_hook(before).remove)
        undo.callback(module.register_forward_hook(after).remove)

    def _forward_ends(self, kind: str, module: nn.Module, rows: int) -> None:
        if (begin := self._began.pop(module, None)) is not None:
            self._add_pass(kind, begin, rows)

    def _looked_up(self, kernel: nn.Module, args: Any, output: torch.Tensor) -> None:
        if kernel not in self._began:
            return
        ids = args[0].values().numel()
        self._forward_ends("lookup", kernel, ids)
        node = _table_node(output.grad_fn)
        if node is None:
            return
        began: list[Any] = []

        def before(gradients: Any) -> None:
            if self.here():
                began.append(self.mark())

        def after(gradients: Any, given: Any) -> None:
            if began:
                self._add_pass("update", began.pop(), ids)

        node.register_prehook(before)
        node.register_hook(after)

    def _hook_gradients(self, module: DistributedDataParallel, undo: ExitStack) -> None:
        for name, parameter in module.module.named_parameters():
            if not parameter.requires_grad or name in module.parameters_to_ignore:
                continue
            if parameter._post_accumulate_grad_hooks is None:
                undo.callback(_without_empty_hooks, parameter)
            self._dense_size += parameter.nbytes
            undo.callback(parameter.register_post_accumulate_grad_hook(self._gradient_ready).remove)

    def _gradient_ready(self, parameter: torch.Tensor) -> None:
        if not self.here():
            return
        task = torch._C._current_graph_task_id()
        if task != self._graph_task:
            self._graph_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._graph_done)
        if not parameter.is_cuda:  # there an event per parameter would cost more than it tells
            self._last_gradient = self.mark()

    def _graph_done(self) -> None:
        """All gradients are computed; DDP's callback, which waits for its all-reduces, has not run yet."""
        if self.line is None:
            return
        self._dense_begin = self.mark()
        self._graph_task = -1
        self._depth += 1
        torch.autograd.Variable._execution_engine.queue_callback(self._dense_done)

    def _dense_done(self) -> None:
        self._depth -= 1
        begin, last = self._dense_begin, self._last_gradient
        self._last_gradient = None
        if self.line is not None:
            exchange = self._exchange("ddp", last if last is not None else begin, self._dense_size)
            self._add_wait("dense", exchange, begin)


def _kind(what: str) -> str:
    """What fscomm does, as one of KINDS."""
    last = what.partition(",")[0].rpartition(" ")[2]
    return {"gradients": "gradients", "apply": "gradients", "rows": "embeddings", "lookup": "embeddings"}.get(
        last, "ids"
    )


def _without_empty_hooks(parameter: torch.Tensor) -> None:
    """As it was before the first hook: torch leaves an empty dict."""
    if not parameter._post_accumulate_grad_hooks:
        parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]


def _table_node(node: Any) -> Any:
    """The autograd node of FBGEMM's look-up, whose backward updates the table; None if there is none."""
    for _ in range(_DEEPEST):
        if node is None or "Lookup" in node.name():
            return node
        node = next((inner for inner, _ in node.next_functions if inner is not None), None)
    return None
