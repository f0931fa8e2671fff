"""All transports at once, and what their calls raise.

A world is dear, and so is finding out who is to blame: where a rank is lost, late or stopped, all transports go through
it at the same time, each in a thread of its own.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from patience import PATIENCE_S
from transport_jobs import OPENERS as TRANSPORTS
from transport_jobs import Job

from fscomm.transports.transport import Transport
from fsranks.errors import FreeScaleError
from fsranks.rank_context import resolve

T = TypeVar("T")

SIZE = 3


def open_by(name: str, limit_s: float = PATIENCE_S) -> Transport:
    return TRANSPORTS[name](resolve(), limit_s)


def attempt(call: Callable[[], object]) -> str:
    """What it raised, "" if nothing."""
    try:
        call()
    except FreeScaleError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_threads(function: Callable[[str], T]) -> dict[str, T]:
    """`function(name)` for all transports at once."""
    results: dict[str, T] = {}
    errors: list[BaseException] = []

    def call(name: str) -> None:
        try:
            results[name] = function(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in TRANSPORTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def large(rows: int = 1 << 13) -> Job:
    return Job("large", [[rows] * SIZE] * SIZE, (64,))


def small() -> Job:
    return Job("small", [[3, 0, 2], [5, 1, 0], [4, 4, 4]], (3,))
