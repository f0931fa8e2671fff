"""Ending a gloo group from outside, and the words of its errors."""

import contextlib
import datetime
from typing import Any

import torch

_NEVER_SENT = 0x7F5D  # the tag of a message that no rank sends


def hang_up(gloo: Any, rank: int, world_size: int) -> None:
    """Close all connections of a gloo group, from any thread: whatever waits in it raises RuntimeError, on all ranks.

    Gloo has no call for this. But a receive that ends at its time limit closes every connection of its group, so this
    asks for a message that no rank sends, for a millisecond. It asks every rank, because the call fails too early when
    the rank that is asked is dead.
    """
    for ahead in range(1, world_size):
        with contextlib.suppress(RuntimeError):
            receive = gloo.recv([torch.zeros(1)], (rank + ahead) % world_size, _NEVER_SENT)
            receive.wait(datetime.timedelta(milliseconds=1))


def brief(error: BaseException) -> str:
    """What gloo says, without its source line and advice."""
    return str(error).partition("] ")[2].partition(". This is")[0] or str(error)
