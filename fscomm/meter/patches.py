"""Attributes of other people's classes and modules that are replaced for a while, and put back."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """What was replaced and hooked. `remove` undoes it in reverse order; it may be called twice."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Callable[..., Any]]) -> None:
        """Put `wrapper(original)` in the place of an attribute of a class or a module."""
        original = vars(owner)[name]
        ours = functools.wraps(original)(wrapper(original))

        def restore() -> None:
            if vars(owner)[name] is not ours:
                raise _ReplacedError(f"{owner.__name__}.{name}")
            setattr(owner, name, original)

        setattr(owner, name, ours)
        self._undo.append(restore)

    def add(self, undo: Callable[[], None]) -> None:
        """Something else to be undone."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Put everything back. RuntimeError if other code has wrapped one of them since: that one stays wrapped."""
        foreign = []
        while self._undo:
            try:
                self._undo.pop()()
            except _ReplacedError as error:
                foreign.append(str(error))
        if foreign:
            raise RuntimeError(
                f"{', '.join(foreign)} was replaced inside a BubbleMeter's block and not put back: leave blocks in the "
                "reverse order of entering them"
            )


class _ReplacedError(Exception):
    """Somebody else wrapped this attribute after us."""
