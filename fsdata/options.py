"""What options may be: integers, numbers, booleans, choices and names are checked here, for all of fsdata.

Scalars of numpy are accepted and returned as those of Python, so that states and fingerprints do not depend on which
was given. A bool is no number, and a number no bool. Options of sources and schemas raise SchemaError.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fsdata.errors import SchemaError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", re.IGNORECASE)
_LARGEST = 2**63 - 1  # of the numbers that kernels and files have


def plain(value: Any) -> Any:
    """A scalar of numpy as one of Python, a text as a str; anything else as it is."""
    if isinstance(value, str):
        return str.__str__(value)
    return value.item() if isinstance(value, np.generic) else value


def text(option: str, value: Any, *, what: str = "column", optional: bool = False) -> Any:
    """A text that names one `what`; None, too, where it is `optional`."""
    if optional and value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SchemaError(f"{option} names one {what}, got {value!r}")
    return plain(value)


def names(option: str, value: Any) -> tuple[str, ...]:
    """Some names in order."""
    if isinstance(value, str):
        raise SchemaError(
            f"{option} takes a tuple of names, got the string {plain(value)!r}; write ({plain(value)!r},)"
        )
    if not isinstance(value, Iterable) or isinstance(value, Mapping | set | frozenset):  # those have no order
        raise SchemaError(f"{option} takes a tuple of names, got {value!r}")
    found = tuple(map(plain, value))
    if not all(isinstance(each, str) and each for each in found):
        raise SchemaError(f"{option} takes names, got {found!r}")
    return found


def is_number(value: Any) -> bool:
    return isinstance(plain(value), int | float) and not isinstance(plain(value), bool)


def is_integer(value: Any, least: int, most: int = _LARGEST) -> bool:
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def integer(
    option: str, value: Any, least: int, *, optional: bool = False, error: type[ValueError] = ValueError
) -> Any:
    """The int; None, too, where it is `optional`."""
    if optional and value is None:
        return None
    if not is_integer(value, least):
        too_large = " and at most 2**63 - 1" if is_integer(value, least, most=value) else ""
        or_none = " or None" if optional else ""
        raise error(f"{option} must be an integer of at least {least}{too_large}{or_none}, got {value!r}")
    return int(value)


def boolean(option: str, value: Any, *, error: type[ValueError] = ValueError) -> bool:
    if not isinstance(plain(value), bool):
        raise error(f"{option} must be True or False, got {value!r}")
    return bool(value)


def positive(option: str, value: Any, *, finite: bool = True, error: type[ValueError] = ValueError) -> float:
    """The number, above 0."""
    if not is_number(value) or not value > 0 or (finite and value == float("inf")):
        raise error(f"{option} must be a positive number, got {value!r}")
    number: float = plain(value)
    return number


def one_of(option: str, value: Any, allowed: Collection[Any], *, error: type[ValueError] = ValueError) -> Any:
    """One of some texts, or None where it is among them."""
    if not (value is None or isinstance(value, str)) or value not in allowed:
        raise error(f"{option} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return plain(value)


def tuple_of(value: Any, kind: Any) -> tuple[Any, ...]:
    """One of a kind or several of them as a tuple; what is neither is left for the caller to refuse, as is a set: it
    has another order in every process."""
    several = isinstance(value, Iterable) and not isinstance(value, kind | set | frozenset)
    return tuple(value) if several else (value,)


def mapping_of(option: str, value: Any) -> dict[str, Any]:
    mapping = {} if value is None else value
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) and name for name in mapping):
        raise SchemaError(f"{option} maps field names, got {value!r}")
    return {plain(name): plain(each) for name, each in mapping.items()}


def seconds(text: object, option: str) -> float:
    """What a duration such as "10m" is in seconds."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SchemaError(f"Follow({option}=...) is a duration such as '90s', '10m', '1.5h' or '2d', got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def bytes_of(given: int | str, name: str) -> int:
    """`given` as a number of bytes: an integer, or a text like "256MB" or "1.5 GiB".

    Raises:
        ValueError: neither of them, or less than 0. `name` is the argument that the message is about.
    """
    if is_integer(given, 0):
        return int(given)
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if match is None or match[2].upper() not in _BYTES:
        raise ValueError(
            f'{name} must be a number of bytes of at least 0, or a text like "256MB" with a unit of B, kB, MB, GB, TB, '
            f"KiB, MiB, GiB, TiB, got {given!r}"
        )
    return round(float(match[1]) * _BYTES[match[2].upper()])
