"""Whether the maps of a module behind managed collision are where its ids were mapped from, and how they get there.

A batch is mapped one step ahead, from what the maps will be when all batches before it had their forward. That holds as
long as every forward in training is of the batch that was announced. If it does not hold any more (another batch, a
forward left out, maps written by hand, another hour), the batches that were mapped already run plainly, and the twins
are made anew, by the next announcement: from the module's own maps, and the batch that is announced and has had no
forward yet.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fscomm.tables.maps import UNKNOWN, Maps, Record

_ANOTHER_HOUR = "another hour has begun since its ids were mapped ahead"


class MapOrder:
    """Of one module. For the training thread. A *chain* is a row of batches, each mapped from what the one before left;
    it holds as long as their forwards run in the hours in which they were mapped."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps
        self._now = 1  # the chain to which the next forward belongs
        self._announced = 0  # the chain of the twins
        self._of_step: dict[int, int] = {}
        self._ran_in = UNKNOWN  # the hour of the last forward
        self._met = False  # the maps have met the batch that the user holds
        self._versions = maps.versions()

    def announce(self, step: int) -> Mapping[str, Any] | None:
        """A batch is about to be mapped. The maps from which to begin anew; None: the twins are right."""
        self._notice()
        renewed = self._announced != self._now
        self._announced = self._of_step[step] = self._now
        self._of_step = {number: chain for number, chain in self._of_step.items() if number > step - 3}
        return self.maps.snapshot() if renewed else None

    def problem(self, step: int, record: Record) -> str | None:
        """Why what was done with the batch of `step` does not fit the maps now, or None."""
        self._notice()
        if self._of_step.get(step) != self._now:
            return (
                "its maps are not those with which its ids were mapped ahead: another batch came, or they were changed"
            )
        if record.hour_before not in (None, self._ran_in) or record.hour != self.maps.hour():
            self.leave()
            return _ANOTHER_HOUR
        if not self.maps.writes:
            self.leave()
            return "its maps were written when its ids were mapped ahead, and are only read now (model.eval())"
        return None

    def leave(self) -> None:
        """The maps are no more what was expected of them, or will not be: there is another chain from here on."""
        self._now += 1
        self._versions = self.maps.versions()

    def go_on(self) -> None:
        """The user leaves a batch. The twins have met it."""
        if not self._met:
            self.leave()
        self._met = False

    def bring_up_to_date(self, record: Record) -> None:
        """A forward runs with what was mapped ahead: see `Maps.publish`."""
        self.maps.publish(record)
        self._met, self._ran_in, self._versions = True, record.hour, self.maps.versions()

    @contextlib.contextmanager
    def own_forward(self, *, as_announced: bool) -> Iterator[None]:
        """Around the module's own forward, which changes the maps in training mode."""
        if not self.maps.writes:
            yield
            return
        hour, fits = self.maps.hour(), False
        try:
            yield
            fits = as_announced and self._announced == self._now and self.maps.hour() == hour
        finally:
            if not fits:
                self.leave()
            self._met, self._ran_in, self._versions = fits, hour, self.maps.versions()

    def _notice(self) -> None:
        """Whether somebody has written to the maps."""
        if self.maps.versions() != self._versions:
            self.leave()
