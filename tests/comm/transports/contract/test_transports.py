"""One contract for all transports. One of them goes through all of it in the fast tier, the others in short."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transport_contract as contract
from patience import until
from transport_jobs import OPENERS, PADDED, attempt, open_by, small
from worlds import shared_world

from fscomm.transports.transport import Transport

SIZE = 3
FULL = "copy-engine"
long = pytest.mark.long
each_transport = pytest.mark.parametrize("name", OPENERS)
one_and_long_all = pytest.mark.parametrize(
    "name", [name if name == FULL else pytest.param(name, marks=long) for name in OPENERS]
)


@one_and_long_all
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=long) for size in (SIZE, 4))])
def test_all_kinds_of_splits_dtypes_and_shapes(name: str, size: int) -> None:
    shared_world(size).run(contract.all_kinds, name)


def test_the_only_rank() -> None:
    for case in (contract.all_kinds, contract.many_in_flight, contract.input_errors):
        shared_world(1).run(case, "gloo")


@each_transport
@pytest.mark.parametrize("case", [contract.many_in_flight, contract.growth], ids=lambda case: case.__name__)
def test_several_at_once(name: str, case: Any) -> None:
    shared_world(SIZE).run(case, name)


@one_and_long_all
def test_nothing_is_left_after_close(name: str) -> None:
    shared_world(2).run(contract.nothing_left, name)


@each_transport
def test_input_errors_issue_nothing(name: str) -> None:
    shared_world(SIZE).run(contract.input_errors, name)


@pytest.mark.parametrize("name", [name for name in OPENERS if name != PADDED])  # which blocks on the host
def test_no_rank_is_through_before_all_have_sent(name: str) -> None:
    shared_world(SIZE).run(contract.not_done_while_a_rank_holds_back, name)


@one_and_long_all
def test_two_classes_do_not_order_each_other(name: str) -> None:
    shared_world(SIZE).run(contract.two_classes, name)


@each_transport
def test_barrier(name: str, tmp_path: Path) -> None:
    shared_world(SIZE).run(contract.barrier_waits_for_all, name, tmp_path)


def exchange_alone(transport: Transport) -> None:
    rows = torch.zeros(6, 4)
    transport.all_to_all_v(torch.zeros(6, 4), rows, [2, 2, 2], [2, 2, 2], largest_bytes=32).wait()


def abort_idle(rank: int, world_size: int, name: str) -> str:
    other = open_by(name)
    before = set(threading.enumerate())
    transport = open_by(name)
    small().run(transport)
    if rank == 2:
        transport.abort("has had enough")
        transport.abort("is a broken record")
    dist.barrier()
    outcome = attempt(lambda: exchange_alone(transport))
    transport.close("done")
    small().run(other)
    until(lambda: set(threading.enumerate()) <= before, "the end of its threads")
    other.close("done")
    return outcome


@each_transport
def test_abort_is_heard_by_all_with_its_reason(name: str) -> None:
    for rank, outcome in enumerate(shared_world(SIZE).run(abort_idle, name)):
        assert outcome.startswith("PeerError"), outcome
        assert ("has had enough" if rank == 2 else "rank 2 has had enough") in outcome, outcome


def leave(rank: int, world_size: int, name: str) -> str:
    transport = open_by(name)
    small().run(transport)
    if rank == 0:
        transport.close("left for lunch")
    dist.barrier()
    outcome = attempt(transport.barrier)
    transport.close("done")
    return outcome


@one_and_long_all
def test_a_rank_that_closes_is_named_by_those_that_go_on(name: str) -> None:
    mine, *others = shared_world(SIZE).run(leave, name)
    assert mine.startswith("PeerError")
    for outcome in others:
        assert outcome.startswith("PeerError"), outcome
        assert "rank 0 left for lunch" in outcome, outcome
