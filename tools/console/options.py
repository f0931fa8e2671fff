"""Reads options that several commands have in common."""

from collections.abc import Sequence

from freescale_tools.console.errors import UsageError

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of ranks that predictions are made for if the user names none."""


def numbers(given: Sequence[str] | None, option: str) -> list[int] | None:
    """Read whole numbers of 1 or more: joined by commas, or the option given several times.

    The result is ascending, without repeats; None if nothing is given. Raises UsageError for anything else.
    """
    if not given:
        return None
    try:
        found = sorted({int(part) for text in given for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{option} {','.join(given)}: numbers joined by commas are needed, as in 8,64,512") from None
    if found[0] < 1:
        raise UsageError(f"{option} must be at least 1, got {found[0]}")
    return found
