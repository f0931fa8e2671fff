"""Ranks that disagree, abort or close: all hear of it and of why, and other transports live on."""

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from transport_failing import (
    LIMIT_S,
    LONG_S,
    SIZE,
    SLACK_S,
    TRANSPORTS,
    Outcome,
    attempt,
    before_or_after,
    each_transport,
    in_threads,
    large,
    open_by,
    small,
)
from transport_jobs import after_agreement
from worlds import shared_world

from fscomm.transports.transport import Transport
from fsranks.errors import PeerError


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
