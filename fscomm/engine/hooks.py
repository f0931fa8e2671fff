"""What replaces the forwards of served modules, and of their kernels, while the block lasts."""

import contextlib
from functools import partial
from typing import Any

from fscomm.device import not_compiled
from fscomm.engine.engine import Engine
from fscomm.tables.handles import Handles, find
from fscomm.tables.lookups import LookupProxy
from fscomm.tables.shadow_kernels import KERNEL_READS, KERNEL_WRITES
from fscomm.tables.unseen_calls import intercept


class ServedForward:
    """Replaces a sharded module's `forward`. After the block it calls the module's own, for code that refers to it."""

    def __init__(self, engine: Engine, m: int) -> None:
        self.engine = engine
        self._m = m

    @not_compiled
    def __call__(self, features: Any) -> Any:
        return self.engine.call(self._m, features)


def install_hooks(engine: Engine) -> contextlib.ExitStack:
    """From now on the engine runs the forwards, and completes updates before the program reads tables; closing removes
    all hooks."""
    with contextlib.ExitStack() as undo:
        for calls in dict.fromkeys(engine.served.calls):
            install_module_hooks(engine, calls.start, undo)
        for handles in engine.handles.values():
            undo.callback(handles.close)
        find(list(engine.handles.values()), [module.module for module in engine.modules])
        for handles in engine.handles.values():
            handles.accept()  # the present references are those of TorchRec and fbgemm themselves
        undo.callback(intercept(engine.handles.values(), engine.before_collective))
        return undo.pop_all()


def install_module_hooks(engine: Engine, m: int, undo: contextlib.ExitStack) -> None:
    """Those of one module, m by its first call; `undo` removes them."""
    module = engine.modules[m]
    module.module.forward = ours = ServedForward(engine, m)
    undo.callback(_restore_forward, module.module, ours)
    groups = engine.served.groups[m]
    for group in groups:
        empty = not engine.served.kernels[group]
        for number, target in enumerate(module.proxy_targets(group - groups.start)):
            read, update = partial(engine.may_read, group), partial(engine.take_plain_update, group, number)
            proxy = LookupProxy(target, empty=empty, read=read, update=update)
            proxy.install()
            undo.callback(proxy.remove)
            _watch_calls(target, engine.handles[m], undo)
    undo.callback(module.module.register_state_dict_pre_hook(partial(_flush, engine, m)).remove)
    undo.callback(module.module.register_state_dict_post_hook(partial(_watch, engine.handles[m])).remove)


def _watch_calls(kernel: Any, handles: Handles, undo: contextlib.ExitStack) -> None:
    """Watch the methods of a kernel through which programs access its tables: its own tensors are no handles."""

    def watched(name: str, own: Any, *args: Any, **options: Any) -> Any:
        handles.look()
        result = own(*args, **options)
        handles.note(own, result)
        if name in KERNEL_WRITES:
            handles.written()
        return result

    for name in (*KERNEL_READS, *KERNEL_WRITES):
        if callable(own := getattr(kernel, name, None)):
            restore = partial(setattr, kernel, name, own) if name in vars(kernel) else partial(delattr, kernel, name)
            undo.callback(restore)
            setattr(kernel, name, partial(watched, name, own))


def _restore_forward(target: Any, ours: ServedForward) -> None:
    """Unless other code, such as a train pipeline, has replaced it since."""
    if vars(target).get("forward") is ours:
        del target.forward


def _flush(engine: Engine, m: int, *_: Any) -> None:
    engine.flush([m])


def _watch(handles: Handles, _: Any, state: Any, *__: Any) -> None:
    """Watch what a `state_dict()` returns: new DTensors, which see operations before the tensors inside them do."""
    handles.note(_watch, state)
