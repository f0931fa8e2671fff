"""Options that several commands read alike."""

from collections.abc import Sequence

from freescale_tools.console.errors import UsageError


def numbers(given: Sequence[str] | None, option: str) -> list[int] | None:
    """Numbers of 1 or more, joined by commas or given again, ascending and each once; None if there are none.

    Raises UsageError for anything else.
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
