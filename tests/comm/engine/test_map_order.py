"""Whether maps are where ids were mapped from: every rule, with maps that are nothing but their hour and version."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fscomm.managed.guard import MapGuard
from fscomm.managed.maps import Record

ASKED = {0: (np.empty(0, np.int64), np.empty(0, np.int64))}


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

    def remap_again(self, record: Record) -> Record:
        return Record(hour=self.now, asked=record.asked)

    def renew(self, maps: Mapping[str, Any]) -> None:
        pass


class Loop:
    """A look-ahead of one batch: batch n+1 is announced before the forward of batch n.

    A program is a text of the methods below. said: of each forward why it was not served; empty: it was.
    """

    def __init__(self) -> None:
        self.maps = PlayedMaps()
        self.guard = MapGuard(self.maps)  # type: ignore[arg-type]
        self.records: list[Record] = []
        self.renewed: list[bool] = []
        self.said: list[str] = []
        self.announce()

    def announce(self) -> None:
        """Leaves the batch before. The ids worker maps at once; again the batch before, if the twins are new."""
        if len(self.records) > 1:
            self.guard.leave_batch()
        state = self.guard.announce(len(self.records))
        self.renewed.append(state is not None)
        record = self.guard.begin(self.records[-1] if self.records else None, state)
        record.hour, record.asked = self.maps.now, ASKED
        self.records.append(record)

    def forward(self) -> None:
        """Of the batch before the one that was announced last."""
        step = len(self.records) - 2
        why = self.guard.decide(step, self.records[step])
        if why is None:
            self.guard.before_rows(self.records[step])
        else:
            self.plain(as_announced=True)
        self.said.append(why or "")

    def run(self) -> None:
        self.announce()
        self.forward()

    def foreign(self) -> None:
        """The forward of another batch."""
        self.announce()
        self.plain(as_announced=False)

    def plain(self, *, as_announced: bool = True) -> None:
        """The maps' own forward, as on a rank whose ids were right where another one's were not."""
        with self.guard.around_own_forward(as_announced=as_announced):
            self.maps.version += self.maps.writes

    def fails(self) -> None:
        with contextlib.suppress(KeyError), self.guard.around_own_forward(as_announced=True):
            raise KeyError

    def hour_inside(self) -> None:
        with self.guard.around_own_forward(as_announced=True):
            self.maps.now += 1

    def hour(self) -> None:
        self.maps.now += 1

    def mapped_late(self) -> None:
        """The batch of the next forward, in the hour that is now."""
        self.records[-2].hour = self.maps.now

    def written(self) -> None:
        """By hand."""
        self.maps.version += 1

    def reads(self) -> None:
        self.maps.writes = not self.maps.writes


CHANGED, HOUR, READ = "another batch came, or they were changed", "another hour has begun", "are only read now"


@pytest.mark.parametrize(
    ("program", "said", "renewals"),
    [
        ("run run run run run", ["", "", "", "", ""], 1),
        ("run run foreign run run run run", ["", "", CHANGED, "", "", ""], 2),
        ("run run announce hour forward run run run run", ["", "", HOUR, CHANGED, "", "", ""], 2),
        ("foreign announce hour forward announce mapped_late forward", [CHANGED, HOUR], 2),
        ("run run written run run run", ["", "", CHANGED, "", ""], 2),
        ("run run fails run run run", ["", "", CHANGED, "", ""], 2),
        ("run run hour_inside run run run", ["", "", CHANGED, "", ""], 2),
        ("run run announce plain run run run", ["", "", "", "", ""], 1),
        ("run run announce reads forward reads run run", ["", "", READ, CHANGED, ""], 2),
    ],
)
def test_what_was_mapped_ahead_is_used_where_maps_are_as_expected(program: str, said: list[str], renewals: int) -> None:
    """And twins are made anew only where they have to be. The fourth: a batch that the twins met again ran in another
    hour than that in which they met it."""
    loop = Loop()
    for action in program.split():
        getattr(loop, action)()
    for words, found in zip(said, loop.said, strict=True):
        assert words in found
        assert bool(words) == bool(found)
    assert loop.renewed.count(True) == renewals
