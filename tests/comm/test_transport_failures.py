"""What becomes of the ranks that are left: bounded time, an error that names who is to blame, and a process that lives.

Where a rank is lost, all transports lose it at the same time, each in a thread of its own.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import over_gloo
import pytest
import torch
import torch.distributed as dist
from transport_jobs import LIMIT_S as NO_LIMIT_S
from transport_jobs import OPENERS, AllGather, AllToAll, Job, Opener, after_agreement, mixed_jobs
from worlds import World, shared_world

from fscomm.transports.transport import Transport
from fsranks.errors import FreeScaleError, PeerError
from fsranks.place import resolve

T = TypeVar("T")

SIZE = 3
LATE = 1
LIMIT_S = 3.0
LONG_S = 25.0  # a limit that nothing here is to use up
SLACK_S = 10.0  # to find out who is to blame: ranks and the store are asked, and given time to answer

before_or_after = pytest.mark.parametrize("agreed", [False, True], ids=["before it agreed", "after it agreed"])

# Not among those of the contract, which the tests of these two run with a carrier of their own.
TRANSPORTS: dict[str, Opener] = {
    **OPENERS,
    over_gloo.NCCL: over_gloo.open_nccl,
    over_gloo.PADDED: over_gloo.open_padded,
}
each_transport = pytest.mark.parametrize("name", TRANSPORTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call raised, "" if nothing, and how long that took."""

    said: str
    took_s: float


def open_by(name: str, limit_s: float = NO_LIMIT_S) -> Transport:
    return TRANSPORTS[name](resolve(), limit_s, True)


def attempt(call: Callable[[], object]) -> Outcome:
    start = time.monotonic()
    try:
        call()
        said = ""
    except FreeScaleError as error:
        said = f"{type(error).__name__}: {error}"
    return Outcome(said=said, took_s=time.monotonic() - start)


def in_threads(function: Callable[[str], T], names: Collection[str] = TRANSPORTS) -> dict[str, T]:
    """`function(name)` for many transports at once."""
    results: dict[str, T] = {}
    errors: list[BaseException] = []

    def call(name: str) -> None:
        try:
            results[name] = function(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def large(rows: int = 1 << 13) -> Job:
    return AllToAll("large", [[rows] * SIZE] * SIZE, (64,))


def small() -> Job:
    return AllToAll("small", [[3, 0, 2], [5, 1, 0], [4, 4, 4]], (3,))


def begin_and_wait(transport: Transport, jobs: list[Job]) -> None:
    for job in jobs:
        job.begin(transport).wait()


def lose(
    rank: int, world_size: int, lost: int, how: signal.Signals, when: str, limit_s: float
) -> dict[str, dict[str, Outcome]]:
    """What survivors meet: in the operation, in the next, and as they close."""
    transports = {name: open_by(name, limit_s) for name in TRANSPORTS}
    mine = {name: [large(1 << 15 if when == "growing" else 3), AllGather(100, (64,)), small()] for name in TRANSPORTS}
    for name, transport in transports.items():
        AllToAll("before", [[5] * SIZE] * SIZE, (64,)).run(transport)
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
    if when == "before":
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
        (1, signal.SIGSTOP, "before"),
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


def be_late(rank: int, world_size: int, late_s: float, agreed: bool) -> dict[str, Outcome]:
    """Rank 1 is late in one class, to agree or to send, while another class of the same ranks goes on."""
    waiting = {name: (open_by(name, LIMIT_S), large()) for name in TRANSPORTS}
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


@before_or_after
def test_a_rank_that_is_later_than_the_limit_is_named_and_other_classes_live(agreed: bool) -> None:
    for rank, of_rank in enumerate(shared_world(SIZE).run(be_late, LIMIT_S + 1, agreed, timeout_s=LONG_S)):
        for name, outcome in of_rank.items():
            assert outcome.said.startswith("PeerError"), (name, rank, outcome)
            assert outcome.took_s < LIMIT_S + SLACK_S, (name, rank, outcome)
            if rank != LATE:
                assert f"rank {LATE}" in outcome.said, (name, rank, outcome)


@before_or_after
def test_a_rank_that_is_late_within_the_limit_is_waited_for(agreed: bool) -> None:
    for of_rank in shared_world(SIZE).run(be_late, LIMIT_S / 3, agreed):
        assert {name: outcome.said for name, outcome in of_rank.items()} == dict.fromkeys(TRANSPORTS, "")


def zeros(*splits: int) -> torch.Tensor:
    return torch.zeros(sum(splits), 4)


def disagree_about_splits(transport: Transport) -> None:
    """Rank 2 sends five rows to rank 0, which expects six."""
    out, sent = [3, 3, 6 if transport.rank == 0 else 3], [5 if transport.rank == 2 else 3, 3, 3]
    transport.all_to_all_v(zeros(*out), zeros(*sent), out, sent).wait()


def send_what_nobody_expects(transport: Transport) -> None:
    sent = [0, 0, 1 << 12] if transport.rank == 1 else [0, 0, 0]
    transport.all_to_all_v(zeros(), zeros(*sent), [0, 0, 0], sent).wait()


def gather_alone(transport: Transport) -> None:
    if transport.rank == 1:
        transport.all_gather(zeros(2, 2, 2), zeros(2)).wait()
    else:
        transport.all_to_all_v(zeros(2, 2, 2), zeros(2, 2, 2), [2, 2, 2], [2, 2, 2]).wait()


def meet_alone(transport: Transport) -> None:
    if transport.rank == 1:
        transport.meet()
    else:
        transport.all_to_all_v(zeros(2, 2, 2), zeros(2, 2, 2), [2, 2, 2], [2, 2, 2]).wait()


def gather_other_sizes(transport: Transport) -> None:
    number = 2 + transport.rank
    transport.all_gather(zeros(*[number] * SIZE), zeros(number)).wait()


def send_other_dtypes(transport: Transport) -> None:
    rows = zeros(2, 2, 2).to(torch.float32 if transport.rank else torch.int32)
    transport.all_to_all_v(torch.empty_like(rows), rows, [2, 2, 2], [2, 2, 2]).wait()


def send_other_shapes(transport: Transport) -> None:
    rows = torch.zeros(6, 4 + transport.rank)
    transport.all_to_all_v(torch.empty_like(rows), rows, [2, 2, 2], [2, 2, 2]).wait()


def disagree(rank: int, world_size: int, about: Callable[[Transport], None]) -> dict[str, tuple[Outcome, str]]:
    """What is said, and of the next operation; other transports are not touched by it."""
    pairs = {name: (open_by(name), open_by(name)) for name in TRANSPORTS}
    jobs = {name: (large(), small(), small()) for name in TRANSPORTS}

    def exchange(name: str) -> tuple[Outcome, str]:
        (transport, other), (under_way, job, other_job) = pairs[name], jobs[name]
        handle = under_way.begin(other)
        outcome = attempt(lambda: about(transport))
        handle.wait()
        under_way.check()
        again = attempt(lambda: job.run(transport))
        assert again.took_s < SLACK_S
        other_job.run(other)
        transport.close("done")
        other.close("done")
        return outcome, again.said.partition(":")[0]

    return in_threads(exchange)


@pytest.mark.parametrize(
    ("about", "match"),
    [
        (disagree_about_splits, "rank 2 sends 5 rows to rank 0, which expects 6"),
        (send_what_nobody_expects, "rank 1 sends 4096 rows to rank 2, which expects 0"),
        (gather_alone, "operation by rank is ['all_to_all_v', 'all_gather', 'all_to_all_v']"),
        (meet_alone, "'all_to_all_v'"),
        (gather_other_sizes, "which expects"),
        (send_other_dtypes, "dtype"),
        (send_other_shapes, "bytes per row by rank is [16, 20, 24]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_disagree_all_hear_about_what(about: Callable[[Transport], None], match: str) -> None:
    answers = shared_world(SIZE).run(disagree, about)
    for name in TRANSPORTS:
        for outcome, _ in (of_rank[name] for of_rank in answers):
            assert outcome.said.startswith("MismatchError"), (name, outcome)
            assert match in outcome.said, (name, outcome)
            assert outcome.took_s < SLACK_S, (name, outcome)
        afterwards = {of_rank[name][1] for of_rank in answers}
        assert afterwards in ({""}, {"PeerError"}), f"{name}: some ranks can go on, others not"


def abort_blocked(rank: int, world_size: int, agreed: bool) -> dict[str, list[Outcome]]:
    """Rank 0 waits for rank 1, which holds back until rank 0 is out: before it agreed, or when it has to send."""
    # On the host the padded transport waits inside of gloo, which nothing ends, where on a GPU it only issues.
    names = [name for name in TRANSPORTS if name != over_gloo.PADDED]
    transports = {name: open_by(name, LONG_S if rank == 0 else LIMIT_S) for name in names}
    jobs = {name: large() for name in names}
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
        transport.close("done")
        transport.close("done")
        return found

    def release() -> None:
        dist.barrier()
        released.set()

    if rank == 0:
        found = in_threads(exchange, names)
        dist.barrier()
        return found
    waiting = threading.Thread(target=release)
    waiting.start()
    with after_agreement(released.wait) if rank == 1 else contextlib.nullcontext():
        found = in_threads(exchange, names)
    waiting.join()
    return found


@before_or_after
def test_abort_gets_a_blocked_wait_out(agreed: bool) -> None:
    """At once on the rank that aborts; others find out by their own limit, and at the latest in the next operation."""
    for rank, of_rank in enumerate(shared_world(SIZE).run(abort_blocked, agreed)):
        reason = "rank 0 was told to stop" if rank else "was told to stop"
        for name, (blocked, again) in of_rank.items():
            for outcome in (blocked, again):
                if agreed and rank and outcome is blocked and not outcome.said:
                    continue  # all of its rows had come
                assert outcome.said.startswith("PeerError"), (name, rank, outcome)
                assert reason in outcome.said, (name, rank, outcome)
                assert outcome.took_s < LIMIT_S + SLACK_S, (name, rank, outcome)


def abort_idle(rank: int, world_size: int, name: str) -> tuple[Outcome, list[str]]:
    other = open_by(name)
    before = set(threading.enumerate())
    transport = open_by(name, LONG_S)
    small().run(transport)
    if rank == 2:
        transport.abort("has had enough")
        transport.abort("is a broken record")
    dist.barrier()
    outcome = attempt(lambda: small_alone(transport))
    transport.close("done")
    small().run(other)
    end = time.monotonic() + SLACK_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    other.close("done")
    return outcome, [thread.name for thread in left]


def small_alone(transport: Transport) -> None:
    transport.all_to_all_v(zeros(2, 2, 2), zeros(2, 2, 2), [2, 2, 2], [2, 2, 2]).wait()


@each_transport
def test_abort_while_nothing_is_under_way_is_heard_by_the_next_operation(name: str) -> None:
    for rank, (outcome, left) in enumerate(shared_world(SIZE).run(abort_idle, name)):
        assert outcome.said.startswith("PeerError"), outcome
        assert ("has had enough" if rank == 2 else "rank 2 has had enough") in outcome.said, outcome
        assert outcome.took_s < SLACK_S
        assert not left


def leave(rank: int, world_size: int, name: str) -> Outcome:
    transport = open_by(name, LONG_S)
    small().run(transport)
    if rank == 0:
        transport.close("left for lunch")
        with pytest.raises(PeerError):
            small_alone(transport)
    outcome = attempt(lambda: small_alone(transport) if rank else None)
    transport.close("done")
    return outcome


@each_transport
def test_a_rank_that_closes_is_named_by_those_that_go_on(name: str) -> None:
    for outcome in shared_world(SIZE).run(leave, name)[1:]:
        assert outcome.said.startswith("PeerError"), outcome
        assert "rank 0 left for lunch" in outcome.said, outcome
        assert outcome.took_s < SLACK_S
