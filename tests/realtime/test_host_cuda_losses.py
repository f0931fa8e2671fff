"""The real cuda-bindings on host memory: lost ranks, rings that grow at once, and every number of hardware queues.

With few queues streams of several rings share one, and ranks may issue in an order in which each waits for another: an
operation then ends with an error that says so. What it must not do is hang.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import host_cuda
import pytest
import torch.distributed as dist
import transport_contract as contract
from host_cuda import NAME, Setup, world_for
from test_transport_failures import Outcome
from transport_jobs import Job, one_pair, open_by
from worlds import World

from fsranks.errors import PeerError

setup = host_cuda.setup
TIMEOUT_S = 60
SLACK_S = 15.0  # beyond the limit of an operation: others find out who is lost, and this machine is slow
MANY_CHUNKS = 1 << 10  # bytes of a slot, so that an exchange of some hundred kilobytes fills every queue
pytestmark = host_cuda.on_host_cuda


def growing_at_once(rank: int, world_size: int) -> None:
    """Each rank begins with the other ring, and does not come to the second before the first is through."""
    rings = [open_by(NAME) for _ in range(2)]
    jobs = [Job("growing", one_pair(world_size, 1 << 14), (64,)) for _ in rings]
    dist.barrier()
    threads = [threading.Thread(target=job.run, args=(ring,)) for ring, job in zip(rings, jobs, strict=True)]
    for thread in threads if rank else threads[::-1]:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    for job in jobs:
        job.check()


def test_two_rings_may_grow_at_once_in_any_order(setup: Setup) -> None:
    world_for(setup, 2).run(host_cuda.run, setup, growing_at_once)


def attempted(rank: int, world_size: int, case: Callable[..., None], *args: Any) -> Outcome:
    start = time.monotonic()
    try:
        case(rank, world_size, NAME, *args)
        said = ""
    except PeerError as error:
        said = str(error)
    return Outcome(said=said, took_s=time.monotonic() - start)


def two_rings(rank: int, world_size: int, name: str, limit_s: float) -> None:
    """`limit_s`: for one thread to wait for the other, which may have failed."""
    contract.two_classes(rank, world_size, name, limit_s)


def back_pressure(rank: int, world_size: int, name: str) -> None:
    """A receiver is late for more chunks than its slots, and the queues of its senders, hold."""
    transport = open_by(name)
    job = Job("to a late receiver", one_pair(world_size, 1000), (64,))
    if rank == 0:
        time.sleep(0.2)
    handle = job.begin(transport)
    handle.wait()
    job.check()


def lose(rank: int, world_size: int, how: int) -> list[Outcome]:
    """Two rings exchange in threads of their own; the last rank is lost when the others are in the middle of
    operations of many chunks."""
    rings = [open_by(NAME) for _ in range(2)]
    sizes = [[1000] * world_size] * world_size
    jobs = [[Job("lost", sizes, (64,)) for _ in range(2)] for _ in rings]
    outcomes: list[Outcome] = []
    rings[0].barrier()

    def exchange(ring: Any, mine: list[Job]) -> None:
        start = time.monotonic()
        try:
            for job in mine:
                job.run(ring)
            said = ""
        except PeerError as error:
            said = f"PeerError: {error}"
        outcomes.append(Outcome(said=said, took_s=time.monotonic() - start))

    if rank == world_size - 1:
        os.kill(os.getpid(), how)
    threads = [threading.Thread(target=exchange, args=given) for given in zip(rings, jobs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def lost_rank(setup: Setup, size: int, how: int) -> list[Outcome]:
    """Of all survivors, in a world of its own. The two rings have half of the room that four have."""
    limit_s = 2.0 if how == signal.SIGSTOP else 25.0
    setup = replace(setup, room=512, slot_bytes=MANY_CHUNKS, limit_s=limit_s)
    world = World(size)
    try:
        answers = world.run(host_cuda.run, setup, lose, how, timeout_s=TIMEOUT_S, lost=(size - 1,))
    finally:
        world.kill()
    outcomes = [outcome for of_rank in answers[:-1] for outcome in of_rank]
    takes_s = SLACK_S + (setup.limit_s if how == signal.SIGSTOP else 0)
    for outcome in outcomes:
        assert outcome.said.startswith("PeerError"), (setup, outcome)
        assert outcome.took_s < takes_s, (setup, outcome)
    assert any(f"rank {size - 1}" in outcome.said for outcome in outcomes), (setup, outcomes)
    return outcomes


@pytest.mark.parametrize(
    ("queues", "how"),
    [(1, signal.SIGSTOP), (32, signal.SIGKILL), (1, signal.SIGKILL)],
)
def test_a_lost_rank_ends_nobody_whatever_streams_share(setup: Setup, queues: int, how: int) -> None:
    for outcome in lost_rank(replace(setup, queues=queues), 3, how):
        assert "rank 2" in outcome.said


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", [2, 3])
def test_every_number_of_queues(setup: Setup, size: int, record_property: Callable[[str, object], None]) -> None:
    """All operations end within their limit: one ring brings its rows whatever streams share, two do or say why not."""
    ended: Counter[str] = Counter()
    longest_s = 0.0
    for queues in range(1, 33):
        few = replace(setup, queues=queues, limit_s=3.0)
        for case, args, changes in (
            (contract.many_in_flight, (), {}),
            (contract.growth, (), {}),
            (back_pressure, (), {"slot_bytes": MANY_CHUNKS}),
            (two_rings, (few.limit_s + SLACK_S,), {}),
        ):
            run = host_cuda.run, replace(few, **changes), attempted, case, *args
            outcomes = world_for(setup, size).run(*run, timeout_s=TIMEOUT_S)
            where = f"{case.__name__} with {queues} queues: {outcomes}"
            assert all(outcome.took_s < few.limit_s + SLACK_S for outcome in outcomes), where
            assert case is two_rings or not any(outcome.said for outcome in outcomes), where
            ended["an error that says why" if any(outcome.said for outcome in outcomes) else "rows"] += 1
            longest_s = max(longest_s, *(outcome.took_s for outcome in outcomes))
    for queues in (1, 2, 3, 4, 6, 8, 16, 32):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            outcomes = lost_rank(replace(setup, queues=queues), size, how)
            ended["an error after a rank was lost"] += 1
            longest_s = max(longest_s, *(outcome.took_s for outcome in outcomes))
    what = ", ".join(f"{number} with {how}" for how, number in ended.items())
    record_property(
        "summary",
        f"cuda-bindings {setup.version}, {size} ranks, 1 to 32 hardware queues: {ended.total()} runs ended, {what}; "
        f"the longest operation took {longest_s:.1f} s",
    )
