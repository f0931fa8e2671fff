"""Ranks that are killed, stopped or late: bounded time, an error that names them, and a process that lives.

A world is dear, and so is finding out who is to blame: all transports go through it at the same time, each in a thread
of its own.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch.distributed as dist
from transport_jobs import OPENERS, Job, mixed_jobs, open_by, small
from transport_jobs import attempt as say
from worlds import World, shared_world

from fscomm.transports.transport import Transport

T = TypeVar("T")

SIZE = 3
LATE = 1
LIMIT_S = 3.0
LONG_S = 25.0  # a limit that nothing here is to use up
SLACK_S = 10.0  # to find out who is to blame: ranks and the store are asked, and given time to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call raised, "" if nothing, and how long that took."""

    said: str
    took_s: float


def attempt(call: Callable[[], object]) -> Outcome:
    start = time.monotonic()
    said = say(call)
    return Outcome(said=said, took_s=time.monotonic() - start)


def in_threads(function: Callable[[str], T]) -> dict[str, T]:
    """`function(name)` for all transports at once."""
    results: dict[str, T] = {}
    errors: list[BaseException] = []

    def call(name: str) -> None:
        try:
            results[name] = function(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in OPENERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def large(rows: int = 1 << 13) -> Job:
    return Job("large", [[rows] * SIZE] * SIZE, (64,))


def begin_and_wait(transport: Transport, jobs: list[Job]) -> None:
    for job in jobs:
        job.begin(transport).wait()


def lose(
    rank: int, world_size: int, lost: int, how: signal.Signals, when: str, limit_s: float
) -> dict[str, dict[str, Outcome]]:
    """What survivors meet: in the operation, in the next, and as they close. `when` growing: the others wait for
    the lost rank before their buffers grow.
    """
    transports = {name: open_by(name, limit_s) for name in OPENERS}
    mine = {name: [large(1 << 15 if when == "growing" else 3), large(100), small()] for name in OPENERS}
    for name, transport in transports.items():
        Job("before", [[100] * SIZE] * SIZE, (64,)).run(transport)
        small().begin(transports[name]).wait()

    def go_on(name: str) -> dict[str, Outcome]:
        transport = transports[name]
        during = attempt(lambda: begin_and_wait(transport, mine[name]))
        again = attempt(lambda: mine[name][0].begin(transport))
        return {"during": during, "again": again, "close": attempt(lambda: transport.close("gives up"))}

    dist.barrier()
    if rank == lost:
        os.kill(os.getpid(), how)
    return in_threads(go_on)


@pytest.mark.parametrize(
    ("lost", "how", "when"),
    [
        (1, signal.SIGKILL, "before"),
        (0, signal.SIGKILL, "before"),
        (2, signal.SIGKILL, "growing"),
        (1, signal.SIGSTOP, "before"),
        (2, signal.SIGSTOP, "before"),
        (0, signal.SIGSTOP, "growing"),
    ],
)
def test_a_lost_rank_is_named_by_all_others(lost: int, how: signal.Signals, when: str) -> None:
    limit_s, takes_s = (LONG_S, SLACK_S) if how == signal.SIGKILL else (LIMIT_S, LIMIT_S + SLACK_S)
    world = World(SIZE)
    try:
        answers = world.run(lose, lost, how, when, limit_s, timeout_s=LONG_S + 20, lost=(lost,))
    finally:
        world.kill()
    for rank, of_rank in enumerate(answers):
        for name, outcome in (of_rank or {}).items():
            where = f"{name} on rank {rank}: {outcome}"
            assert outcome["during"].said.startswith("PeerError"), where
            assert f"rank {lost}" in outcome["during"].said, where
            assert outcome["during"].took_s < takes_s, where
            assert outcome["again"].said.startswith("PeerError"), where
            assert outcome["again"].took_s < 1, where
            assert not outcome["close"].said, where
            assert outcome["close"].took_s < SLACK_S, where
    assert [rank for rank, of_rank in enumerate(answers) if of_rank] == [r for r in range(SIZE) if r != lost]


def be_late(rank: int, world_size: int, late_s: float) -> dict[str, Outcome]:
    """Rank 1 is late in one class while another class of the same ranks goes on."""
    waiting = {name: (open_by(name, LIMIT_S), large()) for name in OPENERS}
    living = {name: (open_by(name, LONG_S), mixed_jobs(SIZE, 10)) for name in OPENERS}
    dist.barrier()

    def go_on(name: str) -> None:
        transport, jobs = living[name]
        for job in jobs:
            job.run(transport)
            time.sleep(late_s / len(jobs) if rank == 0 else 0)

    def exchange(name: str) -> Outcome:
        other = threading.Thread(target=go_on, args=(name,))
        other.start()
        transport, job = waiting[name]
        if rank == LATE:
            time.sleep(late_s)
        outcome = attempt(lambda: job.run(transport))
        other.join()
        return outcome

    outcomes = in_threads(exchange)
    for name in OPENERS:
        for job in living[name][1]:
            job.check()
        for job in mixed_jobs(SIZE, 3, seed=20):
            job.run(living[name][0])
        living[name][0].close("done")
        waiting[name][0].close("done")
    return outcomes


def test_a_rank_that_is_later_than_the_limit_is_named_and_other_classes_live() -> None:
    for rank, of_rank in enumerate(shared_world(SIZE).run(be_late, LIMIT_S + 1, timeout_s=LONG_S)):
        for name, outcome in of_rank.items():
            assert outcome.said.startswith("PeerError"), (name, rank, outcome)
            assert outcome.took_s < LIMIT_S + SLACK_S, (name, rank, outcome)
            if rank != LATE:
                assert f"rank {LATE}" in outcome.said, (name, rank, outcome)


def test_a_rank_that_is_late_within_the_limit_is_waited_for() -> None:
    for of_rank in shared_world(SIZE).run(be_late, LIMIT_S / 3):
        assert {name: outcome.said for name, outcome in of_rank.items()} == dict.fromkeys(OPENERS, "")


def pause(rank: int, world_size: int) -> None:
    """Rank 0 stops rank 1 now and then, and lets it go on."""
    transports = {name: open_by(name, LONG_S) for name in OPENERS}
    jobs = {name: [*mixed_jobs(SIZE, 12), large()] for name in OPENERS}
    pids: list[Any] = [None] * world_size
    dist.all_gather_object(pids, os.getpid())
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.wait(0.02):
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(pids[1], signal.SIGCONT)

    def exchange(name: str) -> None:
        handles = [job.begin(transports[name]) for job in jobs[name]]
        for handle, job in zip(handles, jobs[name], strict=True):
            handle.wait()
            job.check()
        transports[name].barrier()

    stopping = threading.Thread(target=stop_and_go)
    if rank == 0:
        stopping.start()
    try:
        in_threads(exchange)
    finally:
        over.set()
        if rank == 0:
            stopping.join()
    dist.barrier()
    for transport in transports.values():
        transport.close("done")


def test_a_rank_that_is_stopped_now_and_then_is_waited_for() -> None:
    shared_world(SIZE).run(pause)
