"""Exactness where one of the engine's workers is far behind the others, so that work that only seems ordered is not."""

import random
import time
from typing import Any
from unittest import mock

import pytest
from exact import compare
from exact_configs import CONFIGS
from programs import LONG, operations_of, play
from test_programs import all_are_exact, told
from worlds import shared_world

from fscomm.exchange.operations import Class
from fscomm.exchange.rows import RowExchange
from fscomm.exchange.worker import Worker

LATE_S = 0.1  # of every update in that worker: several steps
CONFIG = CONFIGS["uniform"]


def late(rank: int, size: int, program: str, collision: bool) -> list[str]:
    update, fetch = RowExchange.update, RowExchange.fetch
    of_class = Class.COLLISION if collision else Class.EXCLUSIVE

    def late_update(self: RowExchange, *args: Any) -> None:
        if self._class is of_class:
            time.sleep(LATE_S)
        update(self, *args)

    def late_rows(self: RowExchange, *args: Any) -> None:
        if self._class is of_class:
            time.sleep(LATE_S / 5)
        fetch(self, *args)

    with mock.patch.object(RowExchange, "update", late_update), mock.patch.object(RowExchange, "fetch", late_rows):
        return compare(rank, size, CONFIG, play(operations_of(HARD[program])))[0]


HARD = {
    "steps": "train_next " * 6,
    "left early": "train_next train_next train_next leave train_next train_next",
    "states": "next_forward state backward state:1 optimizer_step state:3 " * 3,
    "steps without a forward": "next next train_next " * 3,
}


@pytest.mark.parametrize("collision", [True, False], ids=["collision", "exclusive"])
@pytest.mark.parametrize("program", HARD)
def test_a_worker_is_late(program: str, collision: bool) -> None:
    assert shared_world(2).run(late, program, collision) == [[], []]


def late_worker(rank: int, size: int) -> list[str]:
    """One collision worker comes to an update late: a module that had skipped the step has had its forward by then."""
    run = Worker._run

    def late_run(self: Worker, *args: Any) -> Any:
        if rank == 0 and self.name == "collision":
            time.sleep(LATE_S / 2)
        return run(self, *args)

    operations = operations_of("train_next train_next:2 module:1 backward")
    with mock.patch.object(Worker, "_run", late_run):
        return compare(rank, size, CONFIGS["loops"], play(operations * 3))[0]


def test_what_an_update_sends_is_settled_when_it_is_submitted() -> None:
    assert shared_world(2).run(late_worker) == [[], []]


def some_are_late(chances: random.Random) -> None:
    if chances.random() < 0.3:
        time.sleep(chances.random() * 0.001)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_programs_are_exact_when_work_is_late(size: int, record_property: Any) -> None:
    record_property("summary", told(size, *all_are_exact(size, LONG, some_are_late)))
