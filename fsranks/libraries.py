"""What torch and numba do that a user can do nothing about, and is kept from."""

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

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


def kernel(*given: Any, **options: Any) -> Any:
    """`numba.njit` without the GIL, which keeps on disk what it has compiled. Takes its types and `options`, too.

    Where numba finds no place to keep it (a read-only installation, no home folder), every process compiles anew:
    numba would raise when the module is imported. Ctrl-C is raised when a kernel is compiled, and not before.
    """
    if len(given) == 1 and isinstance(given[0], FunctionType):
        return _compiled(given[0], (), options)
    return lambda function: _compiled(function, given, options)


def _compiled(function: FunctionType, types: tuple[Any, ...], options: dict[str, Any]) -> Any:
    from numba import njit

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
        with _ctrl_c_later():
            return compile_now(signature)

    made.compile = compile_undisturbed
    return made


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
