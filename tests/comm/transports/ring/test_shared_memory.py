"""Rings in memory that processes share: the same bytes as torch's, who is named when one is missing, what is left."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from worlds import World, shared_world

from fscomm.transports.handshake import Handshake
from fscomm.transports.ring import shared_memory
from fscomm.transports.ring.fabric import Fabric
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import CopyThread, SharedMemory
from fsranks.errors import MismatchError, PeerError
from fsranks.local_processes import Neighbours
from fsranks.rank_context import resolve

TIMEOUT_S = 30.0
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def held() -> int:
    """Memory of rings that this process has open or mapped."""
    links = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path)]
    return sum("/memfd:fscomm" in line for line in [*links, *Path("/proc/self/maps").read_text().splitlines()])


def a_ring(timeout_s: float = TIMEOUT_S, *, slots: int = 3, slot_bytes: int = 128, most: int = 4096) -> Ring:
    handshake = Handshake(resolve(), verify=True, timeout_s=timeout_s)
    fabric = Fabric(SharedMemory(handshake), slots=slots, slot_bytes=slot_bytes)
    return Ring(fabric, handshake, name="shared-memory", most_slot_bytes=most)


def engines() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fscomm ")]


def rows_of(number: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Exchange `number`: out, what torch makes of it, inp, and splits. Some are empty, some have one giant piece."""
    draw = np.random.default_rng(number)
    sent = draw.integers(0, 40, (size, size))
    if number % 4 == 1:
        sent[draw.integers(size), draw.integers(size)] = 3000
    if number % 4 == 2:
        sent[draw.integers(size)] = 0
    if number % 8 == 3:
        sent[:] = 0
    trailing = [(3,), (), (0,), (2, 5)][number % 4]
    inp = torch.randint(0, 99, (int(sent[rank].sum()), *trailing)).to(DTYPES[number // 4 % 4])
    out = torch.ones((int(sent[:, rank].sum()), *trailing), dtype=inp.dtype)
    received, sends = sent[:, rank].tolist(), sent[rank].tolist()
    expected = torch.zeros(out.shape, dtype=torch.int64)  # gloo knows no bool; numbers up to 98 are exact in all
    dist.all_to_all_single(expected, inp.long(), received, sends)
    return out, expected.to(out.dtype), inp, received, sends


def exchange(rank: int, size: int, number: int, in_flight: int) -> None:
    before = threading.active_count(), held()
    ring = a_ring()
    assert held() > before[1]
    assert len(engines()) == 2
    for first in range(0, number, in_flight):
        under_way = []
        for k in range(first, first + in_flight):
            out, expected, inp, received, sent = rows_of(k, rank, size)
            under_way.append((k, out, expected, ring.all_to_all_v(out, inp, received, sent)))
        for k, out, expected, handle in under_way:
            handle.wait()
            assert handle.done()
            assert torch.equal(out, expected), k
        mine = torch.full((first, 2), rank)
        gathered = torch.full((size * first, 2), -1)
        ring.all_gather(gathered, mine).wait()
        assert torch.equal(gathered, torch.arange(size).repeat_interleave(first)[:, None].expand(-1, 2))
    assert ring._fabric.slot_bytes == 4096
    ring.meet()
    ring.close("was closed")
    assert engines() == []
    assert (threading.active_count(), held()) == before
    with pytest.raises(PeerError, match="was closed"):
        ring.meet()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_same_as_torch(size: int) -> None:
    shared_world(size).run(exchange, 24, 3)


def in_threads(rank: int, size: int) -> None:
    """Two rings, each with a thread of its own, do not order each other."""
    rings = [a_ring(most=1 << 14), a_ring(most=1 << 12)]
    failures: list[BaseException] = []

    def many(ring: Ring, number: int, rows: int) -> None:
        try:
            for k in range(number):
                inp = torch.arange(size * rows) + 1000 * rank + k
                out = torch.zeros_like(inp)
                ring.all_to_all_v(out, inp, [rows] * size, [rows] * size).wait()
                mine = torch.arange(rank * rows, (rank + 1) * rows) + k
                assert torch.equal(out, torch.cat([mine + 1000 * peer for peer in range(size)]))
        except BaseException as error:
            failures.append(error)

    jobs = [(rings[0], 5, 40_000), (rings[1], 40, 30)]
    threads = [threading.Thread(target=many, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for ring in rings:
        ring.close("was closed")


def test_rings_of_two_threads() -> None:
    shared_world(3).run(in_threads)


def wrong_splits(rank: int, size: int) -> None:
    ring = a_ring()
    rows = torch.zeros(4)
    with pytest.raises(MismatchError, match="rank 1 sends 3 rows to rank 0, which expects 2"):
        ring.all_to_all_v(rows, rows, [2, 2], [3, 1] if rank else [2, 2])
    with pytest.raises(PeerError):
        ring.meet()
    ring.close("was closed")
    assert engines() == []


def test_splits_that_disagree_are_told_on_all_ranks() -> None:
    shared_world(2).run(wrong_splits)


def late(rank: int, size: int) -> float:
    """Rank 1 waits itself before it issues the next: a sender is held up and nothing is lost."""
    ring = a_ring(slots=2, slot_bytes=64, most=64)
    handles = []
    for k in range(3):
        if rank == 1:
            time.sleep(0.2)
        inp = torch.full((size * 500,), 10 * rank + k)
        out = torch.zeros_like(inp)
        handles.append((k, out, ring.all_to_all_v(out, inp, [500] * size, [500] * size)))
    for k, out, handle in handles:
        handle.wait()
        assert torch.equal(out, (10 * torch.arange(size) + k).repeat_interleave(500))
    ring.close("was closed")
    return 0.0


def test_a_rank_that_is_late() -> None:
    shared_world(3).run(late)


def aborted(rank: int, size: int) -> str:
    ring = a_ring()
    if rank == 0:
        ring.abort("changed its mind")
    with pytest.raises(PeerError) as caught:
        ring.meet()
    ring.close("was closed")
    return str(caught.value)


def test_the_reason_of_an_abort_is_read_on_all_ranks() -> None:
    for text in shared_world(3).run(aborted):
        assert "changed its mind" in text


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as made:
        yield made


def keep_on(rank: int, size: int, timeout_s: float, who: int, how: int) -> tuple[str, float]:
    """Exchange until an error; rank `who` sends itself a signal in the middle of an operation."""
    ring = a_ring(timeout_s, slots=2, slot_bytes=64, most=64)
    inp, out = torch.ones(size * 5000), torch.empty(size * 5000)
    number, start = 0, time.monotonic()
    try:
        while True:
            number += 1
            start = time.monotonic()
            handle = ring.all_to_all_v(out, inp, [5000] * size, [5000] * size)
            if rank == who and number == 5:
                os.kill(os.getpid(), how)
            handle.wait()
    except PeerError as error:
        took = time.monotonic() - start
        ring.close("was closed")
        assert engines() == []
        with pytest.raises(PeerError):
            ring.meet()
        assert held() == 0
        return str(error), took


@pytest.mark.parametrize("who", [1, 0])
def test_a_killed_rank_is_named_long_before_the_time_limit(world: World, who: int) -> None:
    answers = world.run(keep_on, 60.0, who, signal.SIGKILL, lost=[who])
    for text, took in (answer for answer in answers if answer):
        assert f"rank {who}" in text
        assert took < 20


def test_a_stopped_rank_is_named_within_the_time_limit(world: World) -> None:
    answers = world.run(keep_on, 2.0, 2, signal.SIGSTOP, lost=[2])
    os.kill(world.pid(2), signal.SIGKILL)  # it will not end by itself
    for text, took in answers[:2]:
        assert "rank 2 did not answer" in text
        assert took < 15


def too_small(rank: int, size: int) -> str:
    handshake = Handshake(resolve(), verify=False, timeout_s=TIMEOUT_S)
    reserve, before = shared_memory._reserve, held()

    def full(file: int, nbytes: int) -> None:
        reserve(file, nbytes)
        if rank == 1:
            raise OSError(28, "no space")

    shared_memory._reserve = full
    try:
        with pytest.raises(
            OSError, match="rank 1 could not make or open memory that the ranks share: No space left"
        ) as caught:
            Fabric(SharedMemory(handshake))
    finally:
        shared_memory._reserve = reserve
    assert held() == before
    handshake.group.close("was closed")
    return str(caught.value)


def test_too_little_memory_is_told_on_all_ranks_with_what_to_do() -> None:
    for text in shared_world(3).run(too_small):
        assert "MiB more for one ring" in text


def test_memory_is_there_when_it_was_promised(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file, pytest.raises(OSError, match=r"too large|No space"):
        shared_memory._reserve(file.fileno(), 1 << 62)


def other_hosts(rank: int, size: int) -> None:
    context = resolve()
    handshake = Handshake(context, verify=False, timeout_s=TIMEOUT_S)
    handshake.group._neighbours = Neighbours({})
    with pytest.raises(ValueError, match=r"processes of one host.*use gloo"):
        SharedMemory(handshake)
    handshake.group.close("was closed")


def test_ranks_of_several_hosts_are_refused() -> None:
    shared_world(2).run(other_hosts)


def a_word() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32)


def test_a_thread_that_waits_ends_and_lets_nothing_after_it_happen() -> None:
    queue, word = CopyThread("fscomm test"), a_word()
    queue.wait(word, 1)
    queue.write(word, 7)
    assert not queue.wait_for(2, 0.05)
    queue.end()
    queue.join()
    assert engines() == []
    assert word.item() == 0


def test_an_error_in_a_thread_is_not_lost() -> None:
    queue = CopyThread("fscomm test")
    queue.copy(torch.zeros(2, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="ended with an error"):
        queue.wait_for(1, 10)
    queue.end()
    queue.join()


def test_what_was_done_is_not_kept() -> None:
    """An idle thread holds neither tensors of the user nor memory of the ring."""
    import gc
    import weakref

    queue = CopyThread("fscomm test")
    out: Any = np.zeros(8, np.uint8)
    seen = weakref.ref(out)
    queue.copy(torch.from_numpy(out), torch.zeros(8, dtype=torch.uint8))
    assert queue.wait_for(1, 10)
    del out
    gc.collect()
    assert seen() is None
    queue.end()
    queue.join()


def test_waiting_costs_next_to_nothing() -> None:
    """Processor time of eight waiting threads; a loop without sleep would take all of it."""
    queues, word = [CopyThread("fscomm test") for _ in range(8)], a_word()
    for queue in queues:
        queue.wait(word, 1)
    time.sleep(0.1)
    start, used = time.monotonic(), time.process_time()
    time.sleep(0.5)
    share = (time.process_time() - used) / (time.monotonic() - start)
    word[0] = 1
    for queue in queues:
        assert queue.wait_for(1, 10)
        queue.end()
        queue.join()
    assert share < 0.5
