"""Exactness where one of the engine's lanes is far behind the others, so that work that only seems ordered is not."""

import time
from typing import Any
from unittest import mock

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from programs import Operation, play
from worlds import shared_world

from fscomm.exchange.row_exchange import Traffic
from fscomm.exchange.worker import Lane

LATE_S = 0.1  # of every update in that lane: several steps
CONFIG = CONFIGS["uniform"]


def late(rank: int, size: int, loop: str, collision: bool) -> list[str]:
    update, send_rows = Traffic.update, Traffic.send_rows

    def late_update(self: Traffic, *args: Any, **options: Any) -> None:
        if options["collision"] == collision:
            time.sleep(LATE_S)
        update(self, *args, **options)

    def late_rows(self: Traffic, *args: Any, **options: Any) -> None:
        if options["collision"] == collision:
            time.sleep(LATE_S / 5)
        send_rows(self, *args, **options)

    with mock.patch.object(Traffic, "update", late_update), mock.patch.object(Traffic, "send_rows", late_rows):
        return compare(rank, size, CONFIG, LOOPS[loop])[0]


HARD = ("base", "left_early", "state_dict_everywhere", "two_steps_in_three_without_forward")


@pytest.mark.parametrize("collision", [True, False], ids=["urgent", "bulk"])
@pytest.mark.parametrize("loop", HARD)
def test_a_lane_is_late(loop: str, collision: bool) -> None:
    assert shared_world(2).run(late, loop, collision) == [[], []]


def late_lane(rank: int, size: int) -> list[str]:
    """One urgent lane comes to an update late: a module that had skipped the step has had its forward by then."""
    run = Lane._run

    def late_run(self: Lane, *args: Any) -> Any:
        if rank == 0 and self.name == "urgent":
            time.sleep(LATE_S / 2)
        return run(self, *args)

    operations = [
        Operation("train_next", 0),
        Operation("train_next", 2),
        Operation("module", 1),
        Operation("backward", 0),
    ]
    with mock.patch.object(Lane, "_run", late_run):
        return compare(rank, size, CONFIGS["loops"], play(operations * 3))[0]


def test_what_an_update_sends_is_settled_when_it_is_submitted() -> None:
    assert shared_world(2).run(late_lane) == [[], []]
