"""What this process ends with itself."""

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable

from fsranks.errors import describe

_LOG = logging.getLogger("fsranks")


def at_exit(end: Callable[[], object]) -> Callable[[], None]:
    """Call the bound method `end` when Python ends, if its object is there then. Returns what takes that back.

    For whatever has daemon threads: one that comes out of C++ when Python has ended, ends the process by std::terminate
    (exit code 134). Pools of threads have ended when `end` is called. A fork of this process does not call it: it has
    none of its threads.
    """
    call = _while_there(end)
    atexit.register(call)
    return lambda: atexit.unregister(call)


def before_pools_end(end: Callable[[], object]) -> None:
    """As `at_exit`, but before Python waits for the threads of all pools, for what submits work to one."""
    threading._register_atexit(_while_there(end))  # type: ignore[attr-defined]


def why_over() -> str:
    """In words, for other ranks, why this process is ending."""
    error = getattr(sys, "last_value", None)  # what no code has caught
    return "ended its process without closing what it used" if error is None else f"raised {describe(error)}"


def _while_there(end: Callable[[], object]) -> Callable[[], None]:
    method, process = weakref.WeakMethod(end), os.getpid()

    def call() -> None:
        found = method()
        if found is not None and os.getpid() == process:
            try:
                found()
            except BaseException:  # it must not keep others from their end
                _LOG.exception("could not end %s", method)

    return call
