"""What replaces the forwards of served modules, and of their kernels, while the block lasts."""

import contextlib
from functools import partial
from typing import Any

from fscomm.device import not_compiled
from fscomm.engine.engine import Engine
from fscomm.tables.handles import Handles, find
from fscomm.tables.lookups import LookupProxy
from fscomm.tables.shadow_kernels import KERNEL_READS, KERNEL_WRITES
from fscomm.tables.turns import Turns
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
            undo.callback(handles.close)  # before `find`, which may fail when some tensors have another class already
        find(list(engine.handles.values()), [module.module for module in engine.modules])
        for handles in engine.handles.values():
            handles.accept()  # the present references are those of TorchRec and fbgemm themselves
        undo.callback(intercept(engine.handles.values(), engine.before_collective))
        return undo.pop_all()


def install_module_hooks(engine: Engine, m: int, undo: contextlib.ExitStack) -> None:
    """Those of one module, m by its first call; `undo` removes them."""
    module, handles = engine.modules[m], engine.handles[m]
    _replace(module.module, "forward", ServedForward(engine, m), undo)
    groups = engine.served.groups[m]
    for group in groups:
        empty = not engine.served.kernels[group]
        for number, target in enumerate(module.proxied[group - groups.start]):
            read, update = partial(engine.may_read, group), partial(engine.take_plain_update, group, number)
            turns = engine.served.turns_of(target)
            _replace(target, "forward", LookupProxy(target, empty=empty, turns=turns, read=read, update=update), undo)
            for name in (*KERNEL_READS, *KERNEL_WRITES):
                if callable(own := getattr(target, name, None)):
                    _replace(target, name, partial(_watched, handles, turns, own, name in KERNEL_WRITES), undo)
    flush = module.module.register_state_dict_pre_hook(lambda *_: engine.flush([m]))
    # It returns new DTensors, which see operations before the tensors inside them do.
    watch = module.module.register_state_dict_post_hook(lambda _, state, *__: handles.note(None, state))
    undo.callback(flush.remove)
    undo.callback(watch.remove)


def _watched(handles: Handles, turns: Turns, own: Any, writes: bool, *args: Any, **options: Any) -> Any:
    """Call a method of a kernel through which programs access its tables: the kernel's own tensors are no handles."""
    handles.look()
    with turns.turn():  # it may write the cache back
        result = own(*args, **options)
    handles.note(own, result)
    if writes:
        handles.written()
    return result


def _replace(target: Any, name: str, ours: Any, undo: contextlib.ExitStack) -> None:
    """Set an attribute of this instance. `undo` puts back what was there, unless other code, such as a train pipeline,
    has replaced ours since."""
    before = vars(target).get(name)

    def restore() -> None:
        if vars(target).get(name) is ours:
            delattr(target, name)
            if before is not None:
                setattr(target, name, before)

    setattr(target, name, ours)
    undo.callback(restore)
