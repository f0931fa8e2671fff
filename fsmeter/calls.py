"""Tells meters of the calls with which PyTorch and TorchRec issue exchanges, wait for them, and run backward.

`Work.wait` and the calls of `ProcessGroup` that issue work are methods of C++ classes, whose instances take no
attributes. So the classes' own attributes are replaced, and `torch.autograd.backward`, once for all meters: with the
first that enters its block, until the last has left its own. Waits inside C++ are not seen, but for DDP's all-reduce
(`notes`): not DDP's broadcast of buffers, nor functional collectives in compiled code.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from fsmeter.notes import Notes

_INPUT = {
    "_allgather_base": 1, "_reduce_scatter_base": 1, "all_gather_single": 1, "all_to_all_single": 1, "allgather": 1,
    "allgather_coalesced": 1, "allgather_into_tensor_coalesced": 1, "allreduce": 0, "allreduce_coalesced": 0,
    "alltoall": 1, "alltoall_base": 1, "barrier": None, "broadcast": 0, "gather": 1, "reduce": 0, "reduce_scatter": 1,
    "reduce_scatter_single": 1, "reduce_scatter_tensor_coalesced": 1, "scatter": 1,
}  # fmt: skip
"""The calls of ProcessGroup that issue work, and which of their arguments is what this rank gives."""

_listening: list[Notes] = []
_replaced: list[tuple[Any, str, Any, Any]] = []
"""Owner and name of an attribute, what it was, and what stands there now."""


@contextmanager
def told_of_calls(notes: Notes) -> Iterator[None]:
    """Inside the block `notes` hears of all calls. Blocks may end in any order.

    Leaving the last one raises RuntimeError if other code has replaced one of the attributes meanwhile.
    """
    if not _listening:
        _replace()
    _listening.append(notes)
    try:
        yield
    finally:
        _listening.remove(notes)
        if not _listening:
            _put_back()


def _replace() -> None:
    wrappers: list[tuple[Any, str, Callable[[Any], Callable[..., Any]]]] = [
        (dist.Work, "wait", _work_wait),
        (torch.autograd, "backward", _backward),
    ]
    for name, place in _INPUT.items():
        if name in vars(dist.ProcessGroup):  # some are of later versions of torch
            wrappers.append((dist.ProcessGroup, name, functools.partial(_issue, place)))
    for owner, name, wrapper in wrappers:
        original = vars(owner)[name]
        ours = functools.wraps(original)(wrapper(original))
        setattr(owner, name, ours)
        _replaced.append((owner, name, original, ours))


def _put_back() -> None:
    foreign = []
    while _replaced:
        owner, name, original, ours = _replaced.pop()
        if vars(owner)[name] is ours:
            setattr(owner, name, original)
        else:
            foreign.append(f"{owner.__name__}.{name}")
    if foreign:
        raise RuntimeError(
            f"{', '.join(foreign)} was replaced inside a BubbleMeter's block and not put back: what replaced it still "
            "stands there. Put it back before the block ends"
        )


# The replaced functions are other people's: whatever arguments they take are handed on as they are.


def _issue(place: int | None, original: Any) -> Callable[..., Any]:
    def issue(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        begun = [(notes, notes.mark()) for notes in _listening if notes.here()]
        work = original(group, *args, **kwargs)
        if begun and work is not None:
            size = None if place is None or place >= len(args) else _nbytes(args[place])
            for notes, mark in begun:
                notes.issued(work, group.group_name, mark, size)
        return work

    return issue


def _work_wait(original: Any) -> Callable[..., Any]:
    def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as waits:
            for notes in _listening:
                if notes.here() and not notes.in_pull:  # a loader's own collectives are part of waiting for it
                    waits.enter_context(notes.waiting(_kind(sys._getframe(1)), work))
            return original(work, *args, **kwargs)

    return wait


def _backward(original: Any) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as passes:
            for notes in _listening:
                if notes.here():
                    passes.enter_context(notes.passing("backward"))
            return original(*args, **kwargs)

    return backward


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
