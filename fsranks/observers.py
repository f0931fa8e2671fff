"""Who hears, while it happens, what this process does for the exchange of embeddings, and what it waits for.

fscomm tells, fsmeter listens, and neither imports the other. Nobody listens outside the blocks of meters and traces.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Observer(Protocol):
    """Any thread calls these methods; they must not raise."""

    def doing(self, what: str, *, step: int | None, waiting: bool) -> AbstractContextManager[object]:
        """Gives what is entered before the work, or the wait of the training thread, and left after it."""
        ...

    def sent(self, what: str, size: int) -> None:
        """This rank gives `size` bytes to an exchange."""
        ...


observers: list[Observer] = []
"""Those that listen now."""


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Inside the block `observer` listens. Blocks may end in any order."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)
