"""Functions that torch calls without `__torch_function__`, though their tensors may be handles of tables.

These are collectives, TorchScript functions, DLPack exports, and the transforms of `torch.func`. While a block is open
they are intercepted; the memory of their tensors says which tables they access. Calls on other tensors are passed on.

Collectives are intercepted in torch's dispatcher, which all of them pass: those of `torch.distributed`, of a process
group's own methods, and of C++ (`_broadcast_coalesced`, DistributedDataParallel). fscomm's own exchanges do not: they
call a backend directly.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

import torch

from fscomm.tables.handles import Handles, addresses, run, tensors_in

_SCRIPT = torch._C.ScriptFunction, torch._C.ScriptMethod
_EXPORTS = "_to_dlpack", "_to_dlpack_versioned"
_TRANSFORMS = "_add_batch_dim", "_wrap_for_grad", "_wrap_functional_tensor"
_KEY = "ADInplaceOrView"  # before the kernels of backends, and also where gradients are off

# A dispatcher key takes one kernel for an operator: blocks that are open at the same time share what is installed.
_open: list[Handles] = []
_before_collectives: list[Callable[[], None]] = []
_lock = threading.Lock()
_undo = contextlib.ExitStack()


def intercept(handles: Iterable[Handles], before_collective: Callable[[], None]) -> Callable[[], None]:
    """Intercept calls on `handles`, until the returned function is called. before_collective: called before every
    collective, whatever its tensors are."""
    given = list(handles)
    with _lock:
        if not _open:
            with contextlib.ExitStack() as undo:  # if it fails in between, what was installed is removed
                _install(undo)
                _undo.push(undo.pop_all())
        _open.extend(given)
        _before_collectives.append(before_collective)

    def end() -> None:
        with _lock:
            _before_collectives.remove(before_collective)
            for each in given:
                _open.remove(each)
            if not _open:
                _undo.close()

    return end


def _install(undo: contextlib.ExitStack) -> None:
    if torch.distributed.is_available():
        library = torch.library.Library("c10d", "IMPL")
        undo.callback(library._destroy)
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::"):
                operator = getattr(torch.ops.c10d, name.removeprefix("c10d::")).default
                library.impl(operator, partial(_collective, operator), _KEY, with_keyset=True)
    for kind in _SCRIPT:
        _put(kind, "__call__", _scripted(kind.__call__), undo)
    instead: dict[int, tuple[Any, Any]] = {}  # by the id of a function: the function, and its replacement
    for where, names, call in (torch._C, _EXPORTS, _export), (torch._C._functorch, _TRANSFORMS, _transform):
        for name in names:
            if (function := getattr(where, name, None)) is not None:
                instead[id(function)] = function, wraps(function)(partial(call, function))
    # Other modules may have imported a function by name. It is compared by identity: `==` of any object may raise.
    for module in list(sys.modules.values()):
        values = dict(getattr(module, "__dict__", {}))
        if instead.keys().isdisjoint(map(id, values.values())):  # a loop in C, as there are half a million names
            continue
        for name, value in values.items():
            if id(value) in instead:
                _put(module, name, instead[id(value)][1], undo)


def _put(owner: Any, name: str, instead: Any, undo: contextlib.ExitStack) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, instead)


@contextlib.contextmanager
def _look(*values: Any) -> Iterator[list[Handles]]:
    """Around a call that may read and write the tensors in `values`; gives the handles of those tables to which they
    belong."""
    where = set().union(*(addresses(tensor) for tensor in tensors_in(values))) if _open else set()
    looked_at = [handles for handles in list(_open) if handles.hold(where)]
    for handles in looked_at:
        handles.look()
    try:
        yield looked_at
    finally:  # also after an error: half of a collective may have been received
        for handles in looked_at:
            handles.written()


def _collective(operator: Any, keys: Any, *args: Any, **options: Any) -> Any:
    for before in list(_before_collectives):
        before()
    with _look(args, options):
        # Below this key, so that the next kernel is that of the backend, and not this function again.
        return operator.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args, **options)


def _scripted(own: Any) -> Any:
    @wraps(own)
    def call(function: Any, *args: Any, **options: Any) -> Any:
        with _look(args, options) as of_tables:
            return run(partial(own, function), args, options) if of_tables else own(function, *args, **options)

    return call


def _export(own: Any, tensor: Any, *args: Any, **options: Any) -> Any:
    with _look(tensor) as of_tables:
        if of_tables:  # a new alias for each export: it lives exactly as long as the consumer refers to the memory
            with torch._C.DisableTorchFunctionSubclass():
                tensor = tensor.detach()
        for handles in of_tables:
            handles.hand_out(tensor, tensor)
        return own(tensor, *args, **options)


def _transform(own: Any, tensor: Any, *args: Any, **options: Any) -> Any:
    if torch.compiler.is_dynamo_compiling():  # the tensor is traced, and has no memory
        return own(tensor, *args, **options)
    with _look(tensor):
        return own(tensor, *args, **options)
