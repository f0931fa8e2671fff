"""The errors of fsdata.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.
"""


class FreeScaleError(Exception):
    """Base of every error that fsdata raises for reasons outside the caller's arguments."""


class SchemaError(FreeScaleError, ValueError):
    """A schema that contradicts itself, or sources that cannot be read as that schema."""


class DataError(FreeScaleError, ValueError):
    """Data that disagrees with the schema: ragged aligned fields, forbidden nulls, ids outside int64, ..."""


class CorruptFileError(FreeScaleError, OSError):
    """A file or row group that cannot be decoded, or that changed after its footer was read."""


class StateError(FreeScaleError, ValueError):
    """A saved state that does not belong to this loader."""


class MismatchError(FreeScaleError, ValueError):
    """Ranks of one job were given different files, schemas, arguments or versions."""


class PeerError(FreeScaleError, RuntimeError):
    """Another rank failed, left or did not answer in time; the message names it."""
