"""Noting every wait of the training thread for other ranks.

While installed, it wraps `Work.wait` and the calls of `ProcessGroup` that issue work, through which TorchRec and the
training loop wait, and `Recorder.wait`, in which fscomm waits. All are put back afterwards. DDP waits inside C++ when a
backward pass has ended: there, hooks on its parameters note the last gradient, and two callbacks of the autograd engine
enclose DDP's own. The engine runs the first after the graph, and the first queues the second. A communication hook is
no alternative: it cannot be removed, and it changes where DDP divides, which changes the last bit of gradients.

Other waits inside C++ are not seen: DDP's broadcast of buffers, and functional collectives in compiled code.
"""

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fscomm.meter.intervals import Wait
from fscomm.meter.patches import Patches
from fscomm.report.recorder import Recorder

_INPUT = {
    "_allgather_base": 1, "_reduce_scatter_base": 1, "all_gather_single": 1, "all_to_all_single": 1, "allgather": 1,
    "allgather_coalesced": 1, "allgather_into_tensor_coalesced": 1, "allreduce": 0, "allreduce_coalesced": 0,
    "alltoall": 1, "alltoall_base": 1, "barrier": None, "broadcast": 0, "gather": 1, "reduce": 0, "reduce_scatter": 1,
    "reduce_scatter_single": 1, "reduce_scatter_tensor_coalesced": 1, "scatter": 1,
}  # fmt: skip
"""The calls of ProcessGroup that issue work, and which of their arguments is what this rank gives."""


Key = tuple[str, int, int, Any, int | None]
"""Group, step and number of an exchange, the instant it was issued, and the bytes that this rank gave."""


class Waits:
    """The interception. `found` fills with Waits whose instants are marks of `mark`, `sent` with exchanges by kind and
    the bytes that this rank gave; the owner empties both.

    Only the thread that called `enter_step` is watched, and on CUDA the autograd engine's threads, which run while it
    blocks in backward.
    """

    def __init__(self, model: torch.nn.Module, mark: Callable[[], Any]) -> None:
        self.found: list[Wait] = []
        self.sent: list[tuple[str, int]] = []
        self._mark = mark
        self._model = model
        self._step: int | None = None
        self._in_pull = False
        self._depth = 0
        self._thread = 0
        self._numbers: Counter[str] = Counter()
        self._issued: weakref.WeakKeyDictionary[dist.Work, Key] = weakref.WeakKeyDictionary()
        self._dense_size = 0
        self._patches = Patches()
        self._graph_task = -1
        self._last_gradient: Any = None
        self._dense_begin: Any = None
        self._dense_issued: Any = None

    def install(self) -> None:
        """Wrap and hook; on an error nothing is left wrapped."""
        self._dense_size = 0
        try:
            self._patches.wrap(Recorder, "wait", self._recorder_wait)
            self._patches.wrap(Recorder, "bytes", self._recorder_bytes)
            self._patches.wrap(dist.Work, "wait", self._work_wait)
            for name, place in _INPUT.items():
                if name in vars(dist.ProcessGroup):  # some are of later versions of torch
                    self._patches.wrap(dist.ProcessGroup, name, functools.partial(self._issue, place))
            for module in self._model.modules():
                if isinstance(module, DistributedDataParallel):
                    self._hook(module)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put everything back. RuntimeError if other code has wrapped one of them since: that one stays wrapped."""
        self._step = None
        self._patches.remove()

    def enter_step(self, step: int) -> None:
        """A step begins, on this thread, with fetching its batch."""
        self._thread = threading.get_ident()
        self._step = step
        self._in_pull = True
        self._depth = 0
        self._numbers.clear()

    def pulled(self) -> None:
        self._in_pull = False

    def leave_step(self) -> None:
        """Until the next `enter_step`, nothing is noted."""
        self._step = None

    # The wrapped functions are other people's: whatever arguments they take are handed on as they are.

    def _issue(self, place: int | None, original: Any) -> Callable[..., Any]:
        def issue(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if not self.here():
                return original(group, *args, **kwargs)
            mark = self._mark()
            work = original(group, *args, **kwargs)
            if work is not None:
                name = group.group_name
                size = None if place is None or place >= len(args) else _nbytes(args[place])
                self._issued[work] = (name, self._step or 0, self._next(name), mark, size)
            return work

        return issue

    def _work_wait(self, original: Any) -> Callable[..., Any]:
        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            if self._in_pull or not self.here():  # a loader's own collectives are part of waiting for it
                return original(work, *args, **kwargs)
            with _Noted(self, _kind(sys._getframe(1)), work):
                return original(work, *args, **kwargs)

        return wait

    def _recorder_wait(self, original: Any) -> Callable[..., Any]:
        def wait(recorder: Recorder, kind: str, *, step: int | None = None, module: str = "") -> Any:
            opened = original(recorder, kind, step=step, module=module)
            return _Both(_Noted(self, _kind_of_recorder(kind), None), opened) if self.here() else opened

        return wait

    def _recorder_bytes(self, original: Any) -> Callable[..., Any]:
        def bytes_(recorder: Recorder, module: str, step: int, kind: str, sent: int, received: int) -> None:
            original(recorder, module, step, kind, sent, received)
            if self._step is not None:
                self.sent.append((_kind_of_recorder(kind), sent))

        return bytes_

    def here(self) -> bool:
        """Whether to note what this thread does now."""
        if self._step is None or self._depth:
            return False
        return threading.get_ident() == self._thread or (
            # Engine threads of a device are not Python's; worker threads of fscomm, which also run backward, are.
            torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)
        )

    def _next(self, group: str) -> int:
        self._numbers[group] += 1
        return self._numbers[group]

    def _hook(self, module: DistributedDataParallel) -> None:
        for name, parameter in module.module.named_parameters():
            if not parameter.requires_grad or name in module.parameters_to_ignore:
                continue
            had_none = parameter._post_accumulate_grad_hooks is None
            self._dense_size += parameter.nbytes
            handle = parameter.register_post_accumulate_grad_hook(self._gradient_ready)

            def restore(handle: Any = handle, parameter: torch.Tensor = parameter, had_none: bool = had_none) -> None:
                handle.remove()
                if had_none and not parameter._post_accumulate_grad_hooks:
                    parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]

            self._patches.add(restore)

    def _gradient_ready(self, parameter: torch.Tensor) -> None:
        if not self.here():
            return
        task = torch._C._current_graph_task_id()
        if task != self._graph_task:
            self._graph_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._graph_done)
        if not parameter.is_cuda:  # there an event per parameter would cost more than it tells
            self._last_gradient = self._mark()

    def _graph_done(self) -> None:
        """All gradients are computed; DDP's callback, which waits for its all-reduces, has not run yet."""
        if self._step is None:
            return
        self._dense_begin = self._mark()
        self._dense_issued = self._last_gradient if self._last_gradient is not None else self._dense_begin
        self._last_gradient = None
        self._graph_task = -1
        self._depth += 1
        torch.autograd.Variable._execution_engine.queue_callback(self._dense_done)

    def _dense_done(self) -> None:
        self._depth -= 1
        key = ("ddp", self._step or 0, self._next("ddp"), self._dense_issued, self._dense_size)
        self._note("dense", key, self._dense_begin)

    def _note(self, kind: str, key: Key, begin: Any) -> None:
        if self._step is not None:
            group, step, number, issued, size = key
            self.found.append(Wait(kind, group, step, number, issued, begin, self._mark(), self._in_pull, size))
            if size is not None:
                self.sent.append((kind, size))


class _Noted:
    """One wait that counts; what it waits for inside does not count again."""

    __slots__ = ("_begin", "_key", "_kind", "_waits", "_work")

    def __init__(self, waits: Waits, kind: str, work: dist.Work | None) -> None:
        self._waits = waits
        self._kind = kind
        self._work = work

    def __enter__(self) -> Self:
        waits = self._waits
        self._begin = waits._mark()
        key = waits._issued.pop(self._work, None) if self._work is not None else None
        if key is None:  # not seen when it was issued: as if it had been now
            group = f"wait for {self._kind}"
            key = (group, waits._step or 0, waits._next(group), self._begin, None)
        self._key = key
        waits._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits._depth -= 1
        self._waits._note(self._kind, self._key, self._begin)


class _Both:
    """Two context managers as one, which gives what the inner one gives."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer = outer
        self._inner = inner

    def __enter__(self) -> Any:
        self._outer.__enter__()
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        self._outer.__exit__(kind, error, trace)


def _nbytes(given: Any) -> int:
    """Of a tensor, or of the tensors in lists of lists."""
    if isinstance(given, torch.Tensor):
        return given.nbytes
    return sum(map(_nbytes, given)) if isinstance(given, list | tuple) else 0


def _kind(frame: FrameType | None) -> str:
    """What a wait is for, by the innermost TorchRec function that called it; `other` if there is none.

    In TorchRec 1.9, embeddings are waited for in `forward` and their gradients in `backward` of the autograd functions
    of `comm_ops`, ids in awaitables elsewhere.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("torchrec."):
            if frame.f_code.co_name == "backward":
                return "gradients"
            return "embeddings" if module.endswith(".comm_ops") else "ids"
        frame = frame.f_back
    return "other"


def _kind_of_recorder(kind: str) -> str:
    """The engine's kinds, as KINDS."""
    last = kind.rpartition(" ")[2]
    return {"gradients": "gradients", "apply": "gradients", "rows": "embeddings", "lookup": "embeddings"}.get(
        last, "ids"
    )
