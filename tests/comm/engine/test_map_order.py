"""Whether maps are where ids were mapped from: every rule, with maps that are nothing but their hour and version."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from fscomm.tables.map_order import MapOrder
from fscomm.tables.maps import Record


class PlayedMaps:
    def __init__(self) -> None:
        self.now = 5
        self.writes = True
        self.version = 0

    def hour(self) -> int:
        return self.now

    def versions(self) -> list[int]:
        return [self.version]

    def snapshot(self) -> Mapping[str, Any]:
        return {"version": self.version}

    def publish(self, record: Record) -> None:
        self.version += 1


class Loop:
    """A look-ahead of one batch: batch n+1 is announced before the forward of batch n."""

    def __init__(self) -> None:
        self.maps = PlayedMaps()
        self.order = MapOrder(self.maps)  # type: ignore[arg-type]
        self.records: list[Record] = []
        self.renewed: list[bool] = []
        self.announce()

    def announce(self) -> None:
        """Leaves the batch before. The ids worker maps at once; again the batch before, if the twins are new."""
        if len(self.records) > 1:
            self.order.go_on()
        self.renewed.append(self.order.announce(len(self.records)) is not None)
        before = self.records[-1] if self.records else None
        met = None if before is None else self.maps.now if self.renewed[-1] else before.hour
        self.records.append(Record(hour=self.maps.now, hour_before=met))

    def run(self, *, foreign: bool = False) -> str | None:
        """Announces the next batch, and runs the one before it. Why that was not served; None: it was."""
        step = len(self.records) - 1
        self.announce()
        return self.forward(step, foreign=foreign)

    def forward(self, step: int, *, foreign: bool = False) -> str | None:
        why = "foreign" if foreign else self.order.problem(step, self.records[step])
        if why is None:
            self.order.bring_up_to_date(self.records[step])
        else:
            with self.order.own_forward(as_announced=not foreign):
                self.maps.version += self.maps.writes
        return why


def served(loop: Loop, steps: int) -> list[bool]:
    return [loop.run() is None for _ in range(steps)]


def test_twins_are_taken_once() -> None:
    loop = Loop()
    assert served(loop, 5) == [True] * 5
    assert loop.renewed == [True] + [False] * 5


def test_after_another_batch_one_more_runs_plainly() -> None:
    loop = Loop()
    served(loop, 2)
    assert loop.run(foreign=True) == "foreign"
    assert "another batch came" in str(loop.run())
    assert served(loop, 3) == [True] * 3
    assert loop.renewed.count(True) == 2


def test_an_hour_that_begins_between_a_batch_and_its_forward() -> None:
    loop = Loop()
    served(loop, 2)
    loop.announce()
    loop.maps.now += 1
    assert "another hour" in str(loop.forward(2))
    assert [loop.run() is None for _ in range(4)] == [False, True, True, True]


def test_an_hour_that_begins_before_the_batch_that_twins_met_again() -> None:
    """It ran in another hour than that in which they met it."""
    loop = Loop()
    loop.run(foreign=True)
    loop.announce()
    assert loop.renewed[-1]
    loop.maps.now += 1
    assert loop.forward(1) is not None
    loop.announce()
    loop.records[2].hour = loop.maps.now  # was mapped late
    assert "another hour" in str(loop.forward(2))


@pytest.mark.parametrize("how", ["written", "fails", "hour"])
def test_maps_that_a_forward_leaves_otherwise(how: str) -> None:
    """Between two forwards by hand; by the module's own forward that raises, or in which an hour begins."""
    loop = Loop()
    served(loop, 2)
    if how == "written":
        loop.maps.version += 1
    else:
        with contextlib.suppress(KeyError), loop.order.own_forward(as_announced=True):
            loop.maps.now += how == "hour"
            if how == "fails":
                raise KeyError
    assert loop.run() is not None
    assert [loop.run() is None for _ in range(2)][-1]


def test_a_stale_batch_that_was_the_right_one_leaves_twins_as_they_are() -> None:
    """As on a rank whose hour was right, where another one's was not."""
    loop = Loop()
    served(loop, 2)
    loop.announce()
    with loop.order.own_forward(as_announced=True):
        loop.maps.version += 1
    assert served(loop, 3) == [True] * 3
    assert loop.renewed.count(True) == 1


def test_maps_that_are_only_read() -> None:
    loop = Loop()
    served(loop, 2)
    loop.announce()
    loop.maps.writes = False
    assert "only read" in str(loop.forward(2))
    loop.maps.writes = True
    assert [loop.run() is None for _ in range(2)][-1]
