"""Exactness where one of the engine's lanes is far behind the others, so that work that only seems ordered is not."""

import time
from typing import Any
from unittest import mock

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from worlds import shared_world

from fscomm.traffic import Traffic

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
