"""Collects training loops by name, in the order in which they are written."""

from exact import Loop


class Loops(dict[str, Loop]):
    """A decorator that keeps what it decorates."""

    def __call__(self, function: Loop) -> Loop:
        self[function.__name__] = function
        return function
