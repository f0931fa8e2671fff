"""A device that is not the host, on a machine that has none: its tensors hold real numbers, and an operation that mixes
them with tensors of the host is an error, as on a GPU. Autograd and whole training loops run on it.

It takes torch's place for backends of others (PrivateUse1), and that for good: only in processes of its own.
"""

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from clocks import Clocks
from torch import library
from torch.utils import _pytree, backend_registration

from fscomm import comm
from fscomm.exchange import executor
from fscomm.exchange.lost_peers import LostPeers
from fscomm.loop import moving
from fscomm.plan.sharding_group import CHUNK_BYTES
from fscomm.transports import opening
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.staged.host_staged import HostStaged

HOST = torch.device("cpu")
CHUNK = 64  # bytes: a few rows


class Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []


backend_registration._setup_privateuseone_for_python_backend("far", backend_module=Backend())
FAR = torch.device("far", 0)


class Far(torch.Tensor):
    """`inner`: the same numbers in host memory."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Far":
        made: Far = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=FAR,
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        """Of a subclass torch refuses it."""
        _count("wait", "tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return run(function, args, options or {})


@dataclass(frozen=True, slots=True)
class Call:
    """By fscomm, of an operator on tensors of the device. kind: "launch", "wait" for what it gives, or "copy" from or
    to the host."""

    kind: str
    operator: str
    place: str
    thread: str


CALLS: Counter[Call] = Counter()
_inside = threading.local()  # `FarDevice.put`


def _note(function: Any, args: Sequence[Any], options: dict[str, Any]) -> None:
    """Of whatever is no view, and gives no memory."""
    schema = function._schema
    view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    if view or schema.name.startswith("aten::empty"):
        return
    tensors = [each for each in _pytree.tree_leaves((args, options)) if isinstance(each, torch.Tensor)]
    where = {isinstance(each, Far) for each in tensors}
    if options.get("device") is not None:
        where.add(torch.device(options["device"]).type == FAR.type)
    gives_number = schema.name in ("aten::equal", "aten::_local_scalar_dense", "aten::is_nonzero")
    _count("copy" if len(where) > 1 else "wait" if gives_number else "launch", schema.name)


def _count(kind: str, operator: str) -> None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in ("torch", __name__):
        frame = frame.f_back
    place = frame.f_globals["__name__"]
    if place.startswith("fscomm") and not hasattr(_inside, "put"):
        CALLS[Call(kind, operator, place, threading.current_thread().name)] += 1


def run(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """`function` on the numbers; what it gives is where its arguments are, or on the device that it names."""
    _note(function, args, options)
    match function._schema.name:
        case "aten::copy_":
            _inner(args[0]).copy_(_inner(args[1]))
            return args[0]
        case "aten::_to_copy":
            where = options.get("device") or args[0].device
            kept = {name: value for name, value in options.items() if name == "dtype"}
            copied = _inner(args[0]).clone() if not kept else function(_inner(args[0]), **kept)
            return Far(copied) if where.type == FAR.type else copied
    tensors = [each for each in _pytree.tree_leaves((args, options)) if isinstance(each, torch.Tensor)]
    far = {id(each.inner): each for each in tensors if isinstance(each, Far)}
    if far and (near := [each for each in tensors if not isinstance(each, Far) and each.dim()]):
        raise RuntimeError(f"{function}: tensors on two devices, on the host {[list(each.shape) for each in near]}")
    is_far = bool(far) if options.get("device") is None else torch.device(options["device"]).type == FAR.type
    inside = {name: HOST if name == "device" else value for name, value in options.items()}
    given = function(*_pytree.tree_map(_inner, args), **_pytree.tree_map(_inner, inside))

    def outside(each: Any) -> Any:
        return far.get(id(each), Far(each) if is_far else each) if isinstance(each, torch.Tensor) else each

    return _pytree.tree_map(outside, given)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Far) else value


def _made(function: Any) -> Any:
    """Makes a tensor on the device, or copies one there."""
    return lambda *args, **options: run(function, args, options)


for name in ("empty.memory_format", "empty_strided", "_to_copy"):
    packet, _, overload = name.partition(".")
    library.impl(f"aten::{name}", "PrivateUse1")(_made(getattr(getattr(torch.ops.aten, packet), overload or "default")))


class FarDevice(Clocks):
    where = FAR

    def put(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        _inside.put = True
        try:
            return [tensor.to(FAR) for tensor in tensors]
        finally:
            del _inside.put


def _open(name: str, host: str, context: Any, device: Any, group: Any, urgent: bool) -> HostStaged:
    """Whatever its name: the transport that needs no GPU."""
    del name, host, urgent
    return HostStaged(GlooTransport(context, timeout_s=group.timeout_s), group, device)


@contextlib.contextmanager
def served_there() -> Iterator[FarDevice]:
    """Inside, fscomm takes tables that lie there, and the host runs ahead of the device."""
    device = FarDevice(done_share=0.5, runs_ahead=True)

    def peers(groups: Any, _: torch.device, control: Any) -> LostPeers:
        return LostPeers(groups, HOST, control)  # what a stand-in sends goes through the host

    with contextlib.ExitStack() as patched:
        for user in (comm, moving):
            patched.enter_context(mock.patch.object(user, "device_of", return_value=device))
        # A transport is tried before the loop: only there the thread that trains may wait for the device.
        patched.enter_context(mock.patch.object(opening, "device_of", return_value=FarDevice(done_share=0.5)))
        patched.enter_context(mock.patch.object(executor, "LostPeers", peers))
        patched.enter_context(mock.patch.object(opening, "_open", _open))
        patched.enter_context(mock.patch.dict(CHUNK_BYTES, {FAR.type: CHUNK}))
        yield device
