"""Loaders and a listener for tests of the look-ahead."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fscomm.loop.lookahead import Listener, Lookahead
from fscomm.loop.moving import Moved, Moving

META = torch.device("meta")  # another device that every machine has
Event = tuple[Any, ...]


class Told(Listener):
    """A listener that keeps what it was told, in one list with what the loader did.

    fails_at: it raises at this event. depends: whether the loader of some rank depends on the training step;
    None: as this rank says.
    """

    def __init__(
        self, events: list[Event] | None = None, *, fails_at: Event | None = None, depends: bool | None = None
    ) -> None:
        self.events = [] if events is None else events
        self.fails_at = fails_at
        self._of_ranks = depends
        self._active: Any = None
        self._depends = False
        self._open = 0  # announced and not handed out

    def of(self, kind: str) -> list[Any]:
        return [event[1] for event in self.events if event[0] == kind]

    def resume(self, epoch: Any) -> bool:
        resumed, self._active = self._active is not epoch, epoch
        if resumed and self._open > 0:
            self.end()
        return resumed

    def announce(self, moved: Moved[Any], *, depends: bool, in_turn: str | None) -> None:
        self._depends = depends
        self._open += 1
        self._tell("announce", moved.batch)

    def depends(self) -> bool:
        return self._depends if self._of_ranks is None else self._of_ranks

    def hold(self, batch: Any) -> Any:
        self._open = max(self._open - 1, 0)
        self._tell("hold", batch)
        return batch

    def end(self) -> None:
        self.events.append(("end",))
        self._open = 0

    def finish(self) -> None:
        self.events.append(("finish",))

    def fail(self, error: Exception) -> None:
        self.events.append(("fail", str(error)))

    def _tell(self, what: str, batch: Any) -> None:
        self.events.append((what, batch))
        if self.events[-1] == self.fails_at:
            raise ConnectionError("rank 1 is gone")


class Forgets(Listener):
    """Keeps nothing that it was given; batches are pulled early."""

    def depends(self) -> bool:
        return False


class Loader:
    """Batches 0 .. count - 1 of every epoch as strings, with a state that counts them. It notes what it does."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.events: list[Event] = []
        self.at = 0
        self.epoch = 0
        self._inner = {"at": 0}

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        if self.at >= self.count:
            self.epoch, self.at = self.epoch + 1, 0
        return self._batches()

    def _batches(self) -> Iterator[str]:
        try:
            while self.at < self.count:
                self.at += 1
                self._inner["at"] = self.at
                self.events.append(("pulled", self.at - 1))
                yield f"{self.epoch}.{self.at - 1}"
        finally:
            self.events.append(("closed",))

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "inner": self._inner}  # the inner dict is written to later

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["inner"]["at"]
        self._inner = dict(state["inner"])


class Flaky:
    """An iterator that goes on after an error, as one that skips broken files does."""

    def __init__(self, *items: Any) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        if isinstance(item, BaseException):
            raise item
        return item


def ahead(loader: Any, listener: Told | None = None, device: torch.device | None = None, **options: Any) -> Any:
    return Lookahead(loader, listener=listener or Told(), moving=Moving(device), **options)


def seen(batches: Any, then: Callable[[], Any] = lambda: None) -> list[Any]:
    """What a loop sees until the end, errors too, each with what the training step drew."""
    found: list[Any] = []
    while True:
        try:
            found.append((next(batches), then()))
        except OSError as error:
            found.append(str(error))
        except StopIteration:
            return found
