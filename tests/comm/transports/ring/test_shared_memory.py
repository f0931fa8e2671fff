"""Rings in memory that processes share: the same bytes as torch's, who is named when one is missing, what is left."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.transports.handshake import Handshake
from fscomm.transports.ring import shared_memory
from fscomm.transports.ring.fabric import Fabric
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import CopyThread, SharedMemory
from fsranks.errors import MismatchError, PeerError
from fsranks.local_processes import Neighbours
from fsranks.rank_context import resolve

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def held() -> int:
    """Memory of rings that this process has open or mapped."""
    links = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path)]
    return sum("/memfd:fscomm" in line for line in [*links, *Path("/proc/self/maps").read_text().splitlines()])


def a_ring(timeout_s: float = PATIENCE_S, *, slots: int = 3, slot_bytes: int = 128, most: int = 4096) -> Ring:
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


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.long)])
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


def too_small(rank: int, size: int) -> str:
    handshake = Handshake(resolve(), verify=False, timeout_s=PATIENCE_S)
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
    handshake = Handshake(context, verify=False, timeout_s=PATIENCE_S)
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
        queue.wait_for(1, PATIENCE_S)
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
    assert queue.wait_for(1, PATIENCE_S)
    del out
    gc.collect()
    assert seen() is None
    queue.end()
    queue.join()
