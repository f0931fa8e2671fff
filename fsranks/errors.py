"""The errors that concern several ranks, and the base of all of FreeScale's.

Every class takes one message and keeps no other state, so an error raised in a background thread or carried over
from another rank arrives with its text intact.
"""


class FreeScaleError(Exception):
    """Base of every error that FreeScale raises for reasons outside the caller's arguments."""


class MismatchError(FreeScaleError, ValueError):
    """Ranks of one job were given different files, schemas, arguments or versions."""


class PeerError(FreeScaleError, RuntimeError):
    """Another rank failed, left or did not answer in time; the message names it."""
