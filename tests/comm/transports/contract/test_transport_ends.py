"""Ranks that disagree, abort or close: all hear of it and of why, and other transports live on."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from patience import until
from transport_failing import (
    SIZE,
    TRANSPORTS,
    attempt,
    in_threads,
    large,
    one_and_long_all,
    open_by,
    small,
)
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


def disagree(rank: int, world_size: int, about: Callable[[Transport], None]) -> dict[str, tuple[str, str]]:
    """What is said, and of the next operation; other transports are not touched by it."""
    pairs = {name: (open_by(name), open_by(name)) for name in TRANSPORTS}
    jobs = {name: (large(), small(), small()) for name in TRANSPORTS}

    def exchange(name: str) -> tuple[str, str]:
        (transport, other), (under_way, job, other_job) = pairs[name], jobs[name]
        handle = under_way.begin(other)
        outcome = attempt(lambda: about(transport))
        handle.wait()
        under_way.check()
        again = attempt(lambda: job.run(transport))
        other_job.run(other)
        transport.close("done")
        other.close("done")
        return outcome, again.partition(":")[0]

    return in_threads(exchange)


@pytest.mark.parametrize(
    ("about", "match"),
    [
        (disagree_about_splits, "rank 2 sends 5 rows to rank 0, which expects 6"),
        pytest.param(
            send_what_nobody_expects, "rank 1 sends 4096 rows to rank 2, which expects 0", marks=pytest.mark.long
        ),
        (gather_alone, "operation by rank is ['all_to_all_v', 'all_gather', 'all_to_all_v']"),
        pytest.param(meet_alone, "'all_to_all_v'", marks=pytest.mark.long),
        pytest.param(gather_other_sizes, "which expects", marks=pytest.mark.long),
        pytest.param(send_other_dtypes, "dtype", marks=pytest.mark.long),
        pytest.param(send_other_shapes, "bytes per row by rank is [16, 20, 24]", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_disagree_all_hear_about_what(about: Callable[[Transport], None], match: str) -> None:
    answers = shared_world(SIZE).run(disagree, about)
    for name in TRANSPORTS:
        for outcome, _ in (of_rank[name] for of_rank in answers):
            assert outcome.startswith("MismatchError"), (name, outcome)
            assert match in outcome, (name, outcome)
        afterwards = {of_rank[name][1] for of_rank in answers}
        assert afterwards in ({""}, {"PeerError"}), f"{name}: some ranks can go on, others not"


def abort_idle(rank: int, world_size: int, name: str) -> str:
    other = open_by(name)
    before = set(threading.enumerate())
    transport = open_by(name)
    small().run(transport)
    if rank == 2:
        transport.abort("has had enough")
        transport.abort("is a broken record")
    dist.barrier()
    outcome = attempt(lambda: small_alone(transport))
    transport.close("done")
    small().run(other)
    until(lambda: set(threading.enumerate()) <= before, "the end of its threads")
    other.close("done")
    return outcome


def small_alone(transport: Transport) -> None:
    transport.all_to_all_v(zeros(2, 2, 2), zeros(2, 2, 2), [2, 2, 2], [2, 2, 2]).wait()


@one_and_long_all
def test_abort_while_nothing_is_under_way_is_heard_by_the_next_operation(name: str) -> None:
    for rank, outcome in enumerate(shared_world(SIZE).run(abort_idle, name)):
        assert outcome.startswith("PeerError"), outcome
        assert ("has had enough" if rank == 2 else "rank 2 has had enough") in outcome, outcome


def leave(rank: int, world_size: int, name: str) -> str:
    transport = open_by(name)
    small().run(transport)
    if rank == 0:
        transport.close("left for lunch")
        with pytest.raises(PeerError):
            small_alone(transport)
    outcome = attempt(lambda: small_alone(transport) if rank else None)
    transport.close("done")
    return outcome


@one_and_long_all
def test_a_rank_that_closes_is_named_by_those_that_go_on(name: str) -> None:
    for outcome in shared_world(SIZE).run(leave, name)[1:]:
        assert outcome.startswith("PeerError"), outcome
        assert "rank 0 left for lunch" in outcome, outcome
