"""What torch and numba do that a user can do nothing about, and is kept from."""

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from fsranks.machine.one_at_a_time import is_busy, one_at_a_time

_LOG = logging.getLogger("fsranks")
_BEGIN = "is_fx_tracing will return true"


def keep_fx_notice_away() -> None:
    """Keep torch's notice about `is_fx_tracing`, which TorchRec calls with the first batch, from the user's terminal.

    torch says it once in a process: here it says it to a logger that drops it. Other records pass, and the logger is
    left as it was found.
    """
    import torch.fx._symbolic_trace as symbolic_trace

    notice = getattr(symbolic_trace, "is_fx_tracing_warning", None)  # not in every torch
    if notice is None:
        return
    logger = logging.getLogger(symbolic_trace.__name__)
    logger.addFilter(_is_other)
    try:
        notice()
    finally:
        logger.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_BEGIN)


def kernel(*given: Any, called_with: Any = None, **options: Any) -> Any:
    """`numba.njit` without the GIL, which keeps on disk what it has compiled. Takes its types and `options`, too.

    Where numba finds no place to keep it (a read-only installation, no home folder), every process compiles anew:
    numba would raise when the module is imported. Ctrl-C is raised when a kernel is compiled, and not before. Of the
    processes of a machine that need a kernel at once, one compiles it.

    called_with: the types that Python calls it with, for `compile_kernel`; a tuple, or a text as numba writes them.
    """
    if len(given) == 1 and isinstance(given[0], FunctionType):
        return _compiled(given[0], (), options)

    def compiled(function: FunctionType) -> Any:
        made = _compiled(function, given, options)
        made.called_with = called_with
        return made

    return compiled


def _compiled(function: FunctionType, types: tuple[Any, ...], options: dict[str, Any]) -> Any:
    from numba import njit
    from numba.core.compiler_lock import global_compiler_lock

    with _ctrl_c_later():
        try:
            made = njit(*types, nogil=True, cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _say_that_nothing_is_kept()
            made = njit(*types, nogil=True, **options)(function)
    compile_now = made.compile

    @functools.wraps(compile_now)
    def compile_undisturbed(signature: Any) -> Any:
        # Numba's own lock comes first: a thread that has it may need kernels that another thread would wait with.
        with _ctrl_c_later(), global_compiler_lock:
            if is_there(made, signature) or made.stats.cache_path is None:
                return compile_now(signature)
            with one_at_a_time(_name(made)):
                return compile_now(signature)

    made.compile = compile_undisturbed
    return made


def compile_kernel(made: Any) -> None:
    """Compile a kernel with the types of `called_with`, or load it: its first call does not wait for that."""
    made.compile(_types(made))


def is_there(made: Any, types: Any = None) -> bool:
    """Whether a kernel is compiled with these types (None: those of `called_with`), here or where numba keeps it."""
    types = _types(made) if types is None else types
    if types in made.overloads:
        return True
    cache = made._cache
    if not hasattr(cache, "_cache_file"):
        return False
    return cache._index_key(types, made.targetctx.codegen()) in cache._cache_file._load_index()


def is_compiled_elsewhere(made: Any) -> bool:
    """Whether another process compiles a kernel."""
    return is_busy(_name(made))


@functools.cache
def _types(made: Any) -> tuple[Any, ...]:
    """Those of `called_with`."""
    from numba.core.sigutils import normalize_signature

    given = made.called_with
    return tuple(normalize_signature(f"void({given})" if isinstance(given, str) else given)[0])


def _name(made: Any) -> str:
    return f"{made.stats.cache_path}: {made.py_func.__qualname__}"


@functools.cache
def _say_that_nothing_is_kept() -> None:
    _LOG.warning(
        "numba finds no folder to keep compiled kernels in: every process compiles them, which takes 20 s and more. "
        "Let NUMBA_CACHE_DIR name a folder that can be written"
    )


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Python drops an error that is raised in a callback of C, or in `__del__`; numba has many of both."""
    before: Callable[..., Any] | int | None = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
