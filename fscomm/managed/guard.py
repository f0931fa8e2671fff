"""Decides whether ids that were mapped ahead of a forward still have these rows when it runs.

Maps that training writes give each id its row. A batch is mapped one step ahead, by *twins* of the maps (`maps.py`),
which have the state that the module's own maps will have after the forwards of all batches before it. This is correct
as long as every forward in training is of the batch that was announced. Otherwise (another batch, a skipped forward,
maps written by hand, another hour) the batches that were already mapped run plainly. The next announcement makes new
twins of the module's own maps. These first *replay* the announced batch that has not had its forward yet.
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
    """Of one module. A *chain* is a sequence of batches, each mapped from the state that the one before left. It is
    valid as long as their forwards run in this order, in the hours in which they were mapped."""

    reassigns: ClassVar[str | None] = EVICTED

    def __init__(self, maps: MapsAhead) -> None:
        self.maps = maps
        self._chain = 1  # to which the next forward belongs
        self._chain_of_twins = 0
        self._chain_of_step: dict[int, int] = {}
        self._ran_in = UNKNOWN  # the hour of the last forward
        self._has_held = False  # the module's maps include the batch that the user holds
        self._versions = maps.versions()

    def why_not_ahead(self, *, prefetched: bool) -> str | None:
        if not self.maps.writes:
            return ONLY_READ
        return MAPS_WAIT if prefetched else None

    def announce(self, step: int) -> Mapping[str, Any] | None:
        self._notice()
        renewed = self._chain_of_twins != self._chain
        self._chain_of_twins = self._chain_of_step[step] = self._chain
        recent = {number: chain for number, chain in self._chain_of_step.items() if number > step - 3}
        self._chain_of_step = recent  # older steps have had their forward
        return self.maps.snapshot() if renewed else None

    def decide(self, step: int, record: Record) -> str | None:
        self._notice()
        if self._chain_of_step.get(step) != self._chain:
            return _ANOTHER_BATCH
        # Policies evict by the hour at which a forward runs, so both batches must have been mapped in that hour: this
        # one, and the one before, from whose state it was mapped.
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
        self.maps.publish(record)  # it writes to the maps, and so changes their versions
        self._has_held, self._ran_in, self._versions = True, record.hour, self.maps.versions()
        if self.reassigns_rows(record):
            self.maps.evict(record)

    @contextlib.contextmanager
    def around_own_forward(self, *, as_announced: bool) -> Iterator[None]:
        """It changes the maps in training mode. The chain stays valid if it changes them as the twins did: if all of it
        runs in one hour, with the batch that was announced, from the maps that the twins were made of."""
        if not self.maps.writes:
            yield
            return
        hour, fits = self.maps.hour(), False
        try:
            yield
            fits = as_announced and self._chain_of_twins == self._chain and self.maps.hour() == hour
        finally:
            if not fits:  # also after an error: some of the maps may have been written
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
        """The maps do not have the expected state any more: batches that are mapped from here on are another chain."""
        self._chain += 1
        self._versions = self.maps.versions()

    def _notice(self) -> None:
        """Begin another chain if the program has written to the maps."""
        if self.maps.versions() != self._versions:
            self._begin_chain()
