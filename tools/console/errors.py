"""Errors that end a command with a message instead of a traceback."""


class UsageError(Exception):
    """The arguments, or the data they name, cannot be used. Exit status 2."""


class CommandFailed(Exception):
    """Something failed while running. Exit status 1."""
