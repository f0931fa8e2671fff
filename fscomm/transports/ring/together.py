"""A step that every rank takes by itself, and that counts only if it worked on all of them."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError, describe, name_ranks

T = TypeVar("T")

_TOLD_BYTES = 512


def together(group: ControlGroup, step: Callable[[], T]) -> T:
    """What `step` returns here, once it worked on all ranks. Collective; blocks for all ranks.

    Raises:
        PeerError: on all ranks in the same words, if `step` raised on one; they name the rank and give its error.
    """
    done: list[T] = []
    failure: Exception | None = None
    try:
        done.append(step())
    except Exception as error:  # whatever it is: a rank that keeps it to itself is waited for in vain
        failure = error
    text = "" if failure is None else describe(failure)
    word = np.frombuffer(text.encode()[:_TOLD_BYTES].ljust(_TOLD_BYTES, b"\0"), np.uint8).copy()
    told: dict[str, list[int]] = {}
    for rank, row in enumerate(group.all_gather(word)):
        if text := row.tobytes().rstrip(b"\0").decode(errors="replace"):
            told.setdefault(text, []).append(rank)
    if told:
        raise PeerError("; ".join(f"on {name_ranks(of)}: {text}" for text, of in told.items())) from failure
    return done[0]
