"""Whether the maps of a module are where its ids were mapped from, and how they get there.

Which row an id has is said by maps that training writes. A batch is mapped one step ahead, by *twins* of the maps
(`maps.py`), from what the maps will be when all batches before it had their forward. That holds as long as every
forward in training is of the batch that was announced. If it does not hold any more (another batch, a forward left out,
maps written by hand, another hour), the batches that were mapped already run plainly, and the twins are made anew, by
the next announcement: from the module's own maps, and the batch that is announced and has had no forward yet, which
they *replay*.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from fscomm.engine.steps_in_loop import OUTERMOST
from fscomm.managed.maps import UNKNOWN, MapsAhead, Record
from fscomm.report.report import Managed
from fscomm.tables.forward_guard import ForwardGuard

EVICTED = "evicted"
ONLY_READ = "its maps are only read (model.eval())"
MAPS_WAIT = (
    "its maps change with every batch, and this one was asked for before the batch before it was trained on: "
    f"{OUTERMOST}"
)
_ANOTHER_HOUR = "another hour has begun since its ids were mapped ahead"
_ANOTHER_BATCH = "its maps are not those with which its ids were mapped ahead: another batch came, or they were changed"
_NOT_WRITTEN = "its maps were written when its ids were mapped ahead, and are only read now (model.eval())"


class MapGuard(ForwardGuard):
    """Of one module. A *chain* is a row of batches, each mapped from what the one before left; it holds as long as
    their forwards run in the hours in which they were mapped."""

    reassigns: ClassVar[str | None] = EVICTED

    def __init__(self, maps: MapsAhead) -> None:
        self.maps = maps
        self._now = 1  # the chain to which the next forward belongs
        self._announced = 0  # the chain of the twins
        self._of_step: dict[int, int] = {}
        self._ran_in = UNKNOWN  # the hour of the last forward
        self._has_held = False  # the maps have what the batch that the user holds changes
        self._versions = maps.versions()

    def why_not_ahead(self, *, prefetched: bool) -> str | None:
        if not self.maps.writes:
            return ONLY_READ
        return MAPS_WAIT if prefetched else None

    def announce(self, step: int) -> Mapping[str, Any] | None:
        self._notice()
        renewed = self._announced != self._now
        self._announced = self._of_step[step] = self._now
        self._of_step = {number: chain for number, chain in self._of_step.items() if number > step - 3}
        return self.maps.snapshot() if renewed else None

    def decide(self, step: int, record: Record) -> str | None:
        self._notice()
        if self._of_step.get(step) != self._now:
            return _ANOTHER_BATCH
        if record.hour_before not in (None, self._ran_in) or record.hour != self.maps.hour():
            self._begin_chain()
            return _ANOTHER_HOUR
        if not self.maps.writes:
            self._begin_chain()
            return _NOT_WRITTEN
        return None

    def reassigns_rows(self, record: Record) -> bool:
        return any(rows is not None for rows in record.evictions.values())

    def before_rows(self, record: Record) -> None:
        self.maps.publish(record)
        self._has_held, self._ran_in, self._versions = True, record.hour, self.maps.versions()
        if self.reassigns_rows(record):
            self.maps.evict(record)

    @contextlib.contextmanager
    def around_own_forward(self, *, as_announced: bool) -> Iterator[None]:
        """It changes the maps in training mode. The chain goes on if it changes them as the twins did: if all of it
        runs in one hour, with the batch that was announced, from the maps that the twins were made of."""
        if not self.maps.writes:
            yield
            return
        hour, fits = self.maps.hour(), False
        try:
            yield
            fits = as_announced and self._announced == self._now and self.maps.hour() == hour
        finally:
            if not fits:
                self._begin_chain()
            self._has_held, self._ran_in, self._versions = fits, hour, self.maps.versions()

    def leave_batch(self) -> None:
        """The twins have mapped it. If no forward in training was of it, the module's own maps do not have it."""
        if not self._has_held:
            self._begin_chain()
        self._has_held = False

    def leave_loop(self) -> None:
        self._begin_chain()

    def begin(self, before: Record | None, state: Mapping[str, Any] | None) -> Record:
        if state is not None:
            self.maps.renew(state)
            before = None if before is None else self.maps.remap_again(before)
        return Record(hour_before=before.hour if before is not None and before.asked else None)

    def assign(self, record: Record, group: int, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return self.maps.remap(record, group, ids, counts)

    def reassigned(self, record: Record, group: int) -> list[np.ndarray]:
        return self.maps.evicted(record, group)

    def first_rows(self, group: int) -> np.ndarray:
        return self.maps.first_rows(group)

    def counts(self, record: Record) -> Mapping[str, Managed]:
        return record.counts

    def _begin_chain(self) -> None:
        """The maps are no more what was expected of them, or will not be: there is another chain from here on."""
        self._now += 1
        self._versions = self.maps.versions()

    def _notice(self) -> None:
        """Whether somebody has written to the maps."""
        if self.maps.versions() != self._versions:
            self._begin_chain()
