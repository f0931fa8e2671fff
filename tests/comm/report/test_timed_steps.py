"""Which steps of real loops are timed."""

from functools import partial
from unittest import mock

import pytest
from exact import new_run
from exact_configs import CONFIGS
from worlds import shared_world

from fscomm import comm
from fscomm.report.recorder import Recorder


def two_loops(rank: int, size: int) -> list[float | None]:
    """Milliseconds by step, on a clock that runs in training and between the loops."""
    now = [0.0]
    with mock.patch.object(comm, "Recorder", partial(Recorder, clock=lambda: now[0])):
        run = new_run(rank, size, CONFIGS["row"].but(steps=3), "fscomm")
        with run.enable() as block:
            for loop in range(2):
                for step, batch in enumerate(block.lookahead(run.loader())):
                    run.train(3 * loop + step, batch)
                    now[0] += 0.010
                now[0] += 0.030
            report = block.report()
    return [each.step_ms for each in report.steps]


def test_a_step_lasts_until_its_loop_gets_the_next_batch() -> None:
    for by_step in shared_world(2).run(two_loops):
        assert by_step == [pytest.approx(10), pytest.approx(10), None] * 2
