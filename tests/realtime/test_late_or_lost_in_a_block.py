"""Blocks in real time: ranks that are late are named within the time limit; late workers and devices.

Ranks that are killed or stopped: `test_lost_at_random.py`.
"""

import random
import time
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import pytest
from exact import Run, compare
from exact_model import Batch
from patience import PATIENCE_S
from test_disagree import ALONE, ODD, heard, two_groups
from test_enter import enter
from test_their_pipelines import CONFIG as TRACED
from torch import nn
from worlds import World, shared_world

import fscomm
from fscomm.device import Host
from fscomm.errors import NotServedError
from fscomm.exchange import executor
from fscomm.exchange.rows import RowExchange
from fscomm.exchange.worker import Worker
from fsmeter import BubbleMeter
from fsranks.errors import PeerError

TIMEOUT_S = 3.0
LIMIT_S = TIMEOUT_S + 14  # a slow machine included


def timed(rank: int, size: int, loop: Any) -> tuple[str, str, float]:
    """What this rank's loop raised (type and text), and how long that took."""
    took = []

    def loop_timed(run: Run) -> None:
        start = time.monotonic()
        try:
            loop(run)
        finally:
            took.append(time.monotonic() - start)

    return *heard(rank, size, ALONE, loop_timed), took[0]


def does_not_enable(run: Run) -> None:
    if run.rank == ODD:
        time.sleep(TIMEOUT_S + 1)
        raise KeyError("elsewhere")
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S):
        pass


def is_late(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                time.sleep(TIMEOUT_S + 4)
            run.train(step, batch)


@pytest.mark.parametrize(("loop", "odd"), [(is_late, "PeerError"), (does_not_enable, "KeyError")])
def test_a_rank_that_does_not_come_is_named(loop: Any, odd: str) -> None:
    world = World(3)  # its ranks have met unequally often afterwards
    try:
        answers = world.run(timed, loop)
    finally:
        world.kill()
    for rank, (kind, text, took) in enumerate(answers):
        assert kind == (odd if rank == ODD else "PeerError"), (rank, kind, text)
        assert rank == ODD or "rank 1" in text
        assert took < LIMIT_S, (rank, took)


OPENED = {"channel": (executor, "channel", 2), "row transports": (executor, "open_transport", 2)}


def opened(rank: int, size: int, place: str) -> tuple[str, list[str], list[str]]:
    return enter(rank, size, OPENED[place], TIMEOUT_S, goes_on=False)


@pytest.mark.parametrize("place", OPENED)
def test_opening_fails_on_one_rank(place: str) -> None:
    """While the others wait for it where no word reaches them; a job cannot go on after that."""
    world = World(2)
    try:
        answers = world.run(opened, place)
    finally:
        world.kill()
    for rank, (said, left, _) in enumerate(answers):
        assert said == "OSError: no descriptors left" if rank == ODD else said.startswith("PeerError: ")
        assert rank == ODD or f"rank {ODD}" in said
        assert left == []


def late_at_random(rank: int, size: int, steps: int) -> int:
    """As `two_groups`, with ranks that are late at random."""
    late = random.Random(rank)

    def train(run: Run, step: int, batch: Batch) -> None:
        time.sleep(late.choice([0, 0, 0.002, 0.01]))
        run.optimizer.zero_grad()
        loss = run.loss(step, batch)
        time.sleep(late.choice([0, 0, 0.002]))
        loss.backward()
        time.sleep(late.choice([0, 0, 0.002]))
        run.optimizer.step()

    return two_groups(rank, size, steps, train)


def test_two_groups_ddp_and_redistribution_with_ranks_that_are_late() -> None:
    done = shared_world(3).run(late_at_random, 100)
    assert len(set(done)) == 1
    assert done[0] >= 99


def case_absent(rank: int, size: int) -> str:
    meter = BubbleMeter(nn.Linear(1, 1), timeout_s=1)
    with meter:
        list(meter.watch(range(2)))
    assert len(meter.report(local=True).steps) == 2
    if rank == 0:
        try:
            meter.report()
        except PeerError as error:
            return str(error)
    return ""


def test_a_rank_that_does_not_report_is_named() -> None:
    with World(2) as world:
        assert "rank 1 did not" in world.run(case_absent)[0]


class Stuck(Host):
    """A device that never comes to the end of what was issued to it."""

    def mark(self) -> str:
        return "never"

    def is_done(self, mark: Any) -> bool:
        return False

    def wait(self, mark: Any, limit_s: float) -> None:
        time.sleep(limit_s)
        raise TimeoutError("the device is late")


def test_a_worker_does_not_wait_for_the_device_for_ever() -> None:
    told: list[BaseException] = []
    worker = Worker("test", told.append, device=Stuck(), limit_s=0.1)
    for _ in range(3):
        worker.submit(lambda: None).result(PATIENCE_S)
    worker.close()
    assert [str(error) for error in told] == ["the device is late"]


def replaced_last(run: Run) -> None:
    """Nothing is left to do but to leave, when there still are updates under way."""
    module = run.model.module.embeddings["a"]
    with suppress(NotServedError), run.enable(clean=False) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 5:
                break
        module.forward = partial(type(module).forward, module)
    del module.forward
    run.record_raw("after the block")


def left_strictly(rank: int, size: int) -> list[str]:
    update = RowExchange.update

    def late(self: RowExchange, *args: Any, **options: Any) -> None:
        time.sleep(0.05)
        update(self, *args, **options)

    with mock.patch.object(RowExchange, "update", late):
        return compare(rank, size, TRACED, replaced_last, "fscomm", {"strict": True})[0]


def test_leaving_a_strict_block_completes_updates_first() -> None:
    assert shared_world(2).run(left_strictly) == [[], []]
