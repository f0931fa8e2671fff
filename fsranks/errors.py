"""The errors that concern several ranks, the base of all of FreeScale's, and how their messages name ranks.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.
"""

import re


class FreeScaleError(Exception):
    """Base of every error that FreeScale raises for reasons outside the caller's arguments."""


class MismatchError(FreeScaleError, ValueError):
    """Ranks of one job were given different files, schemas, arguments or versions."""


class PeerError(FreeScaleError, RuntimeError):
    """Another rank failed, left or did not answer in time; the message names it."""


def name_ranks(ranks: list[int]) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, 2, ... (64 in all)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")


def describe(error: BaseException) -> str:
    """An error and its notes in one line, for the other ranks."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return (f"{type(error).__name__}: {error}".removesuffix(": ") + notes)[:2000]


def shown(text: str, other: str, most: int = 120) -> str:
    """A text for a message that says how it differs from another one: if it is long, the part where that begins.

    `in labels: ... labels=('click', 'like'), time=None, ...`: the name before a `=` says what this is a part of.
    """
    if len(text) <= most:
        return repr(text)
    same = next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    names = re.findall(r"(\w+)=", text[:same])
    begin = max(min(same - most // 3, len(text) - most), 0)
    part = text[begin : begin + most]
    within = f"in {names[-1]}: " if names and begin else ""
    before, after = "... " if begin else "", " ..." if begin + most < len(text) else ""
    return f"{within}{before}{part}{after}"
