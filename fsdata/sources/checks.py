"""What options of sources may be."""

from collections.abc import Iterable, Mapping
from typing import Any

from fsdata.errors import SchemaError, plain


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
