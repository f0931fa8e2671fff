"""A number of bytes, as users write it."""

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", re.IGNORECASE)


def bytes_of(given: int | str, name: str) -> int:
    """`given` as a number of bytes: an integer, or a text like "256MB" or "1.5 GiB".

    Raises:
        ValueError: neither of them, or less than 0. `name` is the argument that the message is about.
    """
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    match = _TEXT.fullmatch(given) if isinstance(given, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(
            f'{name} must be a number of bytes of at least 0, or a text like "256MB" with a unit of B, kB, MB, GB, TB, '
            f"KiB, MiB, GiB, TiB, got {given!r}"
        )
    return round(float(match[1]) * _UNITS[match[2].upper()])
