"""Checks of option values, for all of fsdata: integers, numbers, booleans, choices, names, durations, sizes.

numpy scalars are accepted and converted to Python's, because states and fingerprints contain the values. A bool is not
accepted as a number, nor a number as a bool. Options of sources and schemas raise SchemaError, all others ValueError.
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
_LARGEST = 2**63 - 1  # kernels and files have int64


def plain(value: Any) -> Any:
    """A numpy scalar as a Python scalar, a subclass of str as a str; any other value unchanged."""
    if isinstance(value, str):
        return str.__str__(value)
    return value.item() if isinstance(value, np.generic) else value


def text(option: str, value: Any, *, what: str = "column", optional: bool = False) -> Any:
    """The text, not empty. what: the noun for messages. optional: None is allowed."""
    if optional and value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SchemaError(f"{option} names one {what}, got {value!r}")
    return plain(value)


def names(option: str, value: Any) -> tuple[str, ...]:
    """The names as a tuple, in order."""
    if isinstance(value, str):
        raise SchemaError(
            f"{option} takes a tuple of names, got the string {plain(value)!r}; write ({plain(value)!r},)"
        )
    if not isinstance(value, Iterable) or isinstance(value, Mapping | set | frozenset):  # sets have no order
        raise SchemaError(f"{option} takes a tuple of names, got {value!r}")
    result = tuple(map(plain, value))
    if not all(isinstance(name, str) and name for name in result):
        raise SchemaError(f"{option} takes names, got {result!r}")
    return result


def is_number(value: Any) -> bool:
    return isinstance(plain(value), int | float) and not isinstance(plain(value), bool)


def is_integer(value: Any, least: int, most: int = _LARGEST) -> bool:
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def integer(
    option: str, value: Any, least: int, *, optional: bool = False, error: type[ValueError] = ValueError
) -> Any:
    """The int. optional: None is allowed."""
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
    """One of the allowed texts; None may be one of `allowed`."""
    if not (value is None or isinstance(value, str)) or value not in allowed:
        raise error(f"{option} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return plain(value)


def tuple_of(value: Any, kind: Any) -> tuple[Any, ...]:
    """A single value of the type `kind`, or an iterable, as a tuple. The caller checks the types of the elements. A set
    becomes the only element, so that this check rejects it: its order differs from process to process."""
    several = isinstance(value, Iterable) and not isinstance(value, kind | set | frozenset)
    return tuple(value) if several else (value,)


def mapping_of(option: str, value: Any) -> dict[str, Any]:
    """A mapping whose keys are names of fields, as a dict."""
    mapping = {} if value is None else value
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) and name for name in mapping):
        raise SchemaError(f"{option} maps field names, got {value!r}")
    return {plain(name): plain(item) for name, item in mapping.items()}


def seconds(text: object, option: str) -> float:
    """The seconds of a duration such as "10m"."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SchemaError(f"Follow({option}=...) is a duration such as '90s', '10m', '1.5h' or '2d', got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def bytes_of(value: int | str, name: str) -> int:
    """The bytes of a size: an integer, or a text like "256MB" or "1.5 GiB". name: the argument, for messages.

    Raises:
        ValueError: not a size, or less than 0.
    """
    if is_integer(value, 0):
        return int(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _BYTES:
        raise ValueError(
            f'{name} must be a number of bytes of at least 0, or a text like "256MB" with a unit of B, kB, MB, GB, TB, '
            f"KiB, MiB, GiB, TiB, got {value!r}"
        )
    return round(float(match[1]) * _BYTES[match[2].upper()])
