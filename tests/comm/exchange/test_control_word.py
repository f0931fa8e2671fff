"""Which rank is late, as the others see it one control word later. Time is played."""

import numpy as np
import pytest

from fscomm.exchange.control_word import NO_STEP, ControlWords, Mode
from fscomm.report.recorder import Recorder

LEAST = 4  # the column of a control word that says how long a rank waited for the last one


class Group:
    """Of three ranks, of which rank 0 is played: the others wait so many microseconds for each control word."""

    def __init__(self, waits_us: list[tuple[int, int, int]]) -> None:
        self.now_s = 0.0
        self._waits_us = [(0, 0, 0), *waits_us]
        self._number = 0
        self.sent: list[int] = []

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        self.sent.append(int(mine[LEAST]))
        before, now = self._waits_us[self._number : self._number + 2]
        self._number += 1
        self.now_s += now[0] / 1e6
        words = np.stack([mine] * 3)
        words[1:, LEAST] = before[1:]
        return words


def waited_for(waits_us: list[tuple[int, int, int]]) -> tuple[dict[int, float], list[int]]:
    """What rank 0 waited for each rank, and what it sent."""
    group = Group([*waits_us, (0, 0, 0)])
    recorder = Recorder(clock=lambda: group.now_s)
    words = ControlWords(group, recorder)
    for step in range(len(waits_us) + 1):
        words.exchange("m", 0, held=step, passes=0, newest=step, modes={step: Mode.FAST, NO_STEP: Mode.FOREIGN})
    return dict(recorder.report().late_ms), group.sent


@pytest.mark.parametrize(
    ("waits_us", "late_ms"),
    [
        ([(9_000, 8_000, 500)], {2: 8.5}),
        ([(9_000, 1_000, 500), (4_000, 0, 5_000)], {1: 4.0, 2: 8.5}),
        ([(300, 9_000, 9_000)], {}),  # this rank is late itself
        ([(1_400, 900, 500)], {}),  # as long as a control word takes
    ],
)
def test_the_rank_that_waits_least_is_late(waits_us: list[tuple[int, int, int]], late_ms: dict[int, float]) -> None:
    found, sent = waited_for(waits_us)
    assert found == pytest.approx(late_ms)
    assert sent == [0, *(mine for mine, *_ in waits_us)]
