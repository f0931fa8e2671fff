"""All transports at once, and what their calls raise.

A world is dear, and so is finding out who is to blame: where a rank is lost, late or stopped, all transports go through
it at the same time, each in a thread of its own.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import over_gloo
import pytest
from transport_jobs import LIMIT_S as NO_LIMIT_S
from transport_jobs import OPENERS, AllToAll, Job, Opener

from fscomm.transports.transport import Transport
from fsranks.errors import FreeScaleError
from fsranks.rank_context import resolve

T = TypeVar("T")

SIZE = 3
LIMIT_S = 3.0
LONG_S = 25.0  # a limit that nothing here is to use up
SLACK_S = 10.0  # to find out who is to blame: ranks and the store are asked, and given time to answer

before_or_after = pytest.mark.parametrize("agreed", [False, True], ids=["before it agreed", "after it agreed"])

# Not among those of the contract, which the tests of these two run with a carrier of their own.
TRANSPORTS: dict[str, Opener] = {
    **OPENERS,
    over_gloo.NCCL: over_gloo.open_nccl,
    over_gloo.PADDED: over_gloo.open_padded,
}
each_transport = pytest.mark.parametrize("name", TRANSPORTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call raised, "" if nothing, and how long that took."""

    said: str
    took_s: float


def open_by(name: str, limit_s: float = NO_LIMIT_S) -> Transport:
    return TRANSPORTS[name](resolve(), limit_s, True)


def attempt(call: Callable[[], object]) -> Outcome:
    start = time.monotonic()
    try:
        call()
        said = ""
    except FreeScaleError as error:
        said = f"{type(error).__name__}: {error}"
    return Outcome(said=said, took_s=time.monotonic() - start)


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
    return AllToAll("large", [[rows] * SIZE] * SIZE, (64,))


def small() -> Job:
    return AllToAll("small", [[3, 0, 2], [5, 1, 0], [4, 4, 4]], (3,))
