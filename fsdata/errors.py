"""The errors of fsdata.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.
"""

from fsranks.errors import FreeScaleError, MismatchError, PeerError

__all__ = [
    "CorruptFileError",
    "DataError",
    "FreeScaleError",
    "MismatchError",
    "PeerError",
    "SchemaError",
    "StateError",
]


class SchemaError(FreeScaleError, ValueError):
    """A schema that contradicts itself, or sources that cannot be read as that schema."""


class DataError(FreeScaleError, ValueError):
    """Data that disagrees with the schema: ragged aligned fields, forbidden nulls, ids outside int64, ..."""


class CorruptFileError(FreeScaleError, OSError):
    """A file or row group that cannot be decoded, or that changed after its footer was read."""


class StateError(FreeScaleError, ValueError):
    """A saved state that does not belong to this loader."""
