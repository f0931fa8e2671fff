"""Errors that end a command with a message instead of a traceback."""


class UsageError(Exception):
    """The arguments, or the data they name, cannot be used. Exit status 2."""


class CommandFailed(Exception):
    """Something failed while running. Exit status 1."""


def first_line(error: BaseException) -> str:
    """The first line of a message; the name of the error if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
