"""How long tests wait for what will come.

A test must not depend on how busy the machine is. So a limit that a test does not mean to reach is `PATIENCE_S`, and a
test that waits for a state asks for it with `until`. Only `tests/realtime/` may sleep, read clocks or set small limits.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 600.0
"""Far more than anything here takes, also on a machine that runs twenty other programs."""

_ASK_AGAIN_S = 0.01


def until(condition: Callable[[], T], what: str = "") -> T:
    """The first true value of `condition()`; asks again and again. Raises TimeoutError after `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what or condition} did not come true within {PATIENCE_S:g} s")
        time.sleep(_ASK_AGAIN_S)
    return found
