"""Ranks that are killed, stopped or late: bounded time, an error that names them, and a process that lives."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch.distributed as dist
from transport_failing import (
    SIZE,
    TRANSPORTS,
    in_threads,
    large,
    open_by,
    small,
)
from transport_failing import (
    attempt as say,
)
from transport_jobs import Job, after_agreement, mixed_jobs
from worlds import World, shared_world

from fscomm.transports.transport import Transport

LATE = 1
LIMIT_S = 3.0
LONG_S = 25.0  # a limit that nothing here is to use up
SLACK_S = 10.0  # to find out who is to blame: ranks and the store are asked, and given time to answer

before_or_after = pytest.mark.parametrize("agreed", [False, True], ids=["before it agreed", "after it agreed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call raised, "" if nothing, and how long that took."""

    said: str
    took_s: float


def attempt(call: Callable[[], object]) -> Outcome:
    start = time.monotonic()
    said = say(call)
    return Outcome(said=said, took_s=time.monotonic() - start)


def begin_and_wait(transport: Transport, jobs: list[Job]) -> None:
    for job in jobs:
        job.begin(transport).wait()


def lose(
    rank: int, world_size: int, lost: int, how: signal.Signals, when: str, limit_s: float
) -> dict[str, dict[str, Outcome]]:
    """What survivors meet: in the operation, in the next, and as they close. `when` vouched: before, and ranks tell
    each other nothing, as callers know the largest piece.
    """
    vouched = when == "vouched"
    transports = {name: open_by(name, limit_s, verify=not vouched) for name in TRANSPORTS}
    mine = {
        name: [
            large(1 << 15 if when == "growing" else 3, vouched=vouched),
            large(100, vouched=True),
            small(vouched=vouched),
        ]
        for name in TRANSPORTS
    }
    for name, transport in transports.items():
        Job("before", [[100] * SIZE] * SIZE, (64,)).run(transport)
        small().begin(transports[name]).wait()

    def end() -> None:
        os.kill(os.getpid(), how)

    def go_on(name: str) -> dict[str, Outcome]:
        transport = transports[name]
        during = attempt(lambda: begin_and_wait(transport, mine[name]))
        again = attempt(lambda: mine[name][0].begin(transport))
        return {"during": during, "again": again, "close": attempt(lambda: transport.close("gives up"))}

    dist.barrier()
    if rank != lost:
        return in_threads(go_on)
    if when in ("before", "vouched"):
        end()
    with after_agreement(threading.Barrier(len(TRANSPORTS), action=end).wait):
        return in_threads(go_on)


@pytest.mark.parametrize(
    ("lost", "how", "when"),
    [
        (1, signal.SIGKILL, "before"),
        (1, signal.SIGKILL, "agreed"),
        (2, signal.SIGKILL, "growing"),
        (0, signal.SIGKILL, "agreed"),
        (1, signal.SIGKILL, "vouched"),
        (0, signal.SIGKILL, "vouched"),
        (1, signal.SIGSTOP, "before"),
        (2, signal.SIGSTOP, "vouched"),
        (2, signal.SIGSTOP, "agreed"),
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


def be_late(rank: int, world_size: int, late_s: float, agreed: bool, vouched: bool = False) -> dict[str, Outcome]:
    """Rank 1 is late in one class, to agree or to send, while another class of the same ranks goes on."""
    waiting = {name: (open_by(name, LIMIT_S, verify=not vouched), large(vouched=vouched)) for name in TRANSPORTS}
    living = {name: (open_by(name, LONG_S), mixed_jobs(SIZE, 10)) for name in TRANSPORTS}
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
        slow.add(threading.get_ident())
        if not agreed:
            be_slow()
        outcome = attempt(lambda: job.run(transport))
        other.join()
        return outcome

    def be_slow() -> None:
        if rank == LATE and threading.get_ident() in slow:
            time.sleep(late_s)

    slow: set[int] = set()
    with after_agreement(be_slow) if agreed else contextlib.nullcontext():
        outcomes = in_threads(exchange)
    for name in TRANSPORTS:
        for job in living[name][1]:
            job.check()
        for job in mixed_jobs(SIZE, 3, seed=20):
            job.run(living[name][0])
        living[name][0].close("done")
        waiting[name][0].close("done")
    return outcomes


@pytest.mark.parametrize(
    ("agreed", "vouched"),
    [(False, False), (True, False), (False, True)],
    ids=["before it agreed", "after it agreed", "where none agrees"],
)
def test_a_rank_that_is_later_than_the_limit_is_named_and_other_classes_live(agreed: bool, vouched: bool) -> None:
    for rank, of_rank in enumerate(shared_world(SIZE).run(be_late, LIMIT_S + 1, agreed, vouched, timeout_s=LONG_S)):
        for name, outcome in of_rank.items():
            assert outcome.said.startswith("PeerError"), (name, rank, outcome)
            assert outcome.took_s < LIMIT_S + SLACK_S, (name, rank, outcome)
            if rank != LATE:
                assert f"rank {LATE}" in outcome.said, (name, rank, outcome)


@before_or_after
def test_a_rank_that_is_late_within_the_limit_is_waited_for(agreed: bool) -> None:
    for of_rank in shared_world(SIZE).run(be_late, LIMIT_S / 3, agreed):
        assert {name: outcome.said for name, outcome in of_rank.items()} == dict.fromkeys(TRANSPORTS, "")


def pause(rank: int, world_size: int) -> None:
    """Rank 0 stops rank 1 now and then, and lets it go on."""
    transports = {name: open_by(name, LONG_S) for name in TRANSPORTS}
    jobs = {name: [*mixed_jobs(SIZE, 12), large()] for name in TRANSPORTS}
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
        transports[name].meet()

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


def abort_blocked(rank: int, world_size: int, agreed: bool) -> dict[str, list[Outcome]]:
    """Rank 0 waits for rank 1, which holds back until rank 0 is out: before it agreed, or when it has to send."""
    transports = {name: open_by(name, LONG_S if rank == 0 else LIMIT_S) for name in TRANSPORTS}
    jobs = {name: large() for name in TRANSPORTS}
    released = threading.Event()

    def exchange(name: str) -> list[Outcome]:
        transport, job = transports[name], jobs[name]
        if rank == 0:
            timer = threading.Timer(0.3, transport.abort, ["was told to stop"])
            timer.start()
        elif rank == 1 and not agreed:
            released.wait()
        found = [attempt(lambda: job.run(transport)) for _ in range(2)]
        transport.abort("and again")
        found.append(attempt(lambda: transport.close("done")))
        transport.close("done")
        return found

    def release() -> None:
        dist.barrier()
        released.set()

    if rank == 0:
        found = in_threads(exchange)
        dist.barrier()
        return found
    waiting = threading.Thread(target=release)
    waiting.start()
    with after_agreement(released.wait) if rank == 1 else contextlib.nullcontext():
        found = in_threads(exchange)
    waiting.join()
    return found


@before_or_after
def test_abort_gets_a_blocked_wait_out(agreed: bool) -> None:
    """At once on the rank that aborts; others find out by their own limit, and at the latest in the next operation."""
    for rank, of_rank in enumerate(shared_world(SIZE).run(abort_blocked, agreed)):
        reason = "rank 0 was told to stop" if rank else "was told to stop"
        for name, (blocked, again, close) in of_rank.items():
            assert close.took_s < SLACK_S, (name, rank, close)
            for outcome in (blocked, again):
                if agreed and rank and outcome is blocked and not outcome.said:
                    continue  # all of its rows had come
                assert outcome.said.startswith("PeerError"), (name, rank, outcome)
                assert reason in outcome.said, (name, rank, outcome)
                assert outcome.took_s < LIMIT_S + SLACK_S, (name, rank, outcome)
