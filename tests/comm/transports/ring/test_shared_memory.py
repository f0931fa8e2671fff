"""Rings in memory that processes share: bytes through slots that are far too small, what is left, too little memory."""

import gc
import os
import resource
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import PATIENCE_S
from transport_jobs import Job, mixed_jobs
from worlds import shared_world

from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.shared_memory import CopyThread, SharedMemory
from fscomm.transports.ring.slots import Slots
from fscomm.transports.together import StepFailed
from fsranks.control_group import ControlGroup
from fsranks.rank_context import resolve

COULD_NOT = "could not make or open memory that the ranks share"


def held() -> int:
    """Memory of rings that this process has open or mapped."""
    links = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path)]
    return sum("/memfd:fscomm" in line for line in [*links, *Path("/proc/self/maps").read_text().splitlines()])


def engines() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fscomm ")]


def exchange(rank: int, size: int) -> None:
    before = threading.active_count(), held()
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    ring = Ring(SharedMemory(group), group, name="shared-memory", slots=3, slot_bytes=128, most_slot_bytes=4096)
    assert held() > before[1]
    assert len(engines()) == 2
    for seed in range(4):
        pieces = [
            [3000 if (sender, receiver) == (0, size - 1) else seed for receiver in range(size)]
            for sender in range(size)
        ]
        jobs = [Job("a giant piece", pieces, (3,)), *mixed_jobs(size, 5, 5 * seed)]
        handles = [job.begin(ring) for job in jobs]
        for handle, job in zip(handles, jobs, strict=True):
            handle.wait()
            job.check()
    ring.barrier()
    ring.close("was closed")
    assert engines() == []
    assert (threading.active_count(), held()) == before


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_same_as_torch(size: int) -> None:
    shared_world(size).run(exchange)


def opened(group: ControlGroup) -> Slots:
    return Slots(SharedMemory(group), number=4, slot_bytes=1 << 16)


def too_large(rank: int, size: int) -> str:
    """For rank 1 alone."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    before, limits = held(), resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(StepFailed, match="MiB more for one ring") as caught:
            opened(group)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert held() == before
    group.close("was closed")
    return str(caught.value)


def test_too_little_memory_is_told_on_all_ranks_with_what_to_do() -> None:
    for said in shared_world(3).run(too_large):
        assert said.startswith(f"on rank 1: OSError: [Errno 27] {COULD_NOT}: File too large. The 3 ranks need")


def test_a_thread_that_waits_ends_and_lets_nothing_after_it_happen() -> None:
    queue, word = CopyThread("fscomm test"), torch.zeros(1, dtype=torch.int32)
    queue.wait(word, 1)
    queue.write(word, 7)
    assert not queue.wait_for(2, 0.0)
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
