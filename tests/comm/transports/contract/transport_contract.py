"""What every transport has to do, as cases for the ranks of a world."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S, until
from transport_jobs import (
    DTYPES,
    KINDS,
    POISON,
    TRAILING,
    Job,
    as_bytes,
    attempt,
    mixed_jobs,
    open_by,
    opened,
    sizes_of,
)

from fscomm.transports.transport import Transport
from fsranks.errors import MismatchError


def all_kinds(rank: int, world_size: int, name: str) -> None:
    """Each dtype with each kind of splits, and each trailing shape with most of them."""
    with opened(name) as transport:
        assert (transport.rank, transport.world_size) == (rank, world_size)
        assert transport.name
        for k, dtype in enumerate(DTYPES):
            for n, kind in enumerate(KINDS):
                trailing = TRAILING[(k + n) % len(TRAILING)]
                Job(kind, sizes_of(kind, world_size, k), trailing, dtype).run(transport)


def many_in_flight(rank: int, world_size: int, name: str) -> None:
    """Operations get on by themselves, too, so that a worker may look after others meanwhile."""
    with opened(name) as transport:
        for seed, waits in ((0, True), (100, False)):
            jobs = mixed_jobs(world_size, 16, seed)
            handles = [job.begin(transport) for job in jobs]
            for handle, job in zip(handles, jobs, strict=True):
                assert handle.done() in (False, True)
                if waits:
                    handle.wait()
                    assert handle.done() is True
                else:
                    until(handle.done, job.what)
                    handle.wait()
                job.check()


def not_done_while_a_rank_holds_back(rank: int, world_size: int, name: str) -> None:
    """Rank 1 does not come before the others have looked. Nobody but the transport holds the rows that they send:
    others are put in their place if it does not.
    """
    with opened(name) as transport:
        job = Job("held", [[60] * world_size] * world_size, (64,))
        if rank == 1:
            dist.barrier()
        splits = job.out_splits, job.in_splits
        handle = transport.all_to_all_v(job.out, job.inp.clone(), *splits, largest_bytes=job.largest_bytes)
        litter = [torch.full_like(job.inp, k) for k in range(4)]
        if rank != 1:
            for _ in range(100):
                assert not handle.done()
            dist.barrier()
        handle.wait()
        job.check()
        assert len(litter) == 4


def growth(rank: int, world_size: int, name: str) -> None:
    """Larger operations while smaller ones are under way, and back."""

    def about(rows: int) -> Job:
        """A few more from higher ranks and to higher ranks."""
        ranks = range(world_size)
        sizes = [[rows + sender + receiver for receiver in ranks] for sender in ranks]
        return Job(f"{rows} rows", sizes)

    with opened(name) as transport:
        jobs = [about(n) for n in (10, 1 << 14, 3, 1 << 16, 0, 7, (1 << 17) + 5, 1)]
        for handle, job in [(job.begin(transport), job) for job in jobs]:
            handle.wait()
            job.check()
        for small in mixed_jobs(world_size, 4):
            small.run(transport)


def two_classes(rank: int, world_size: int, name: str, wait_s: float = PATIENCE_S) -> None:
    """Two instances, a thread each. Every second rank begins with one class when it is through with the other."""
    exclusive, collisions = open_by(name), open_by(name)
    sizes = [[1 << 11] * world_size] * world_size
    work = {
        "exclusive": (exclusive, [Job("exclusive", sizes, (64,)) for _ in range(4)] + mixed_jobs(world_size, 8)),
        "collisions": (collisions, mixed_jobs(world_size, 20)),
    }
    over: dict[str, threading.Event] = {what: threading.Event() for what in work}
    failed: list[BaseException] = []

    def drive(what: str, first: str | None) -> None:
        transport, jobs = work[what]
        try:
            if first is not None:
                assert over[first].wait(wait_s)
            for job in jobs:
                job.run(transport)
            over[what].set()
        except BaseException as error:
            failed.append(error)

    for order in ({}, {"exclusive": "collisions"} if rank % 2 else {}):
        for event in over.values():
            event.clear()
        threads = [threading.Thread(target=drive, args=(what, order.get(what))) for what in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        for _, jobs in work.values():
            for job in jobs:
                as_bytes(job.out).fill_(POISON)
    exclusive.close("done")
    collisions.close("done")


def barrier_waits_for_all(rank: int, world_size: int, name: str, folder: Path) -> None:
    with opened(name) as transport:
        for k in range(world_size + 2):
            (folder / f"{k} {rank}").touch()
            transport.barrier()
            assert all((folder / f"{k} {r}").exists() for r in range(world_size)), k
        under_way, after = mixed_jobs(world_size, 2)
        handle = under_way.begin(transport)
        transport.barrier()
        handle.wait()
        under_way.check()
        after.run(transport)


def bad_calls(transport: Transport) -> list[tuple[str, Callable[[], object]]]:
    w = transport.world_size
    rows, out = torch.zeros(2 * w, 4), torch.zeros(2 * w, 4)
    two, wide = [2] * w, torch.zeros(4, 2 * w).t()

    def call(*given: Any, largest_bytes: int = 1 << 20) -> object:
        return transport.all_to_all_v(*given, largest_bytes=largest_bytes)

    meta = torch.zeros(2 * w, 4, device="meta")
    elsewhere = ("was made for tensors on cpu, got one on meta", lambda: call(meta, meta, two, two))
    return [
        *([elsewhere] if transport.name.startswith("nccl") else []),
        ("out_splits", lambda: call(out, rows, [*two, 0], two)),
        ("inp_splits", lambda: call(out, rows, two, two[1:])),
        ("add up", lambda: call(out, rows, [3, *two[1:]], two)),
        ("add up", lambda: call(out, rows, two, [1, *two[1:]])),
        ("out_splits", lambda: call(out[:1], rows, [-1, *([0] * (w - 2)), 2][-w:] if w > 1 else [-1], two)),
        ("dtype", lambda: call(out.double(), rows, two, two)),
        ("shape", lambda: call(torch.zeros(2 * w, 5), rows, two, two)),
        ("shape", lambda: call(torch.zeros(2 * w), rows, two, two)),
        ("contiguous", lambda: call(wide, rows, two, two)),
        ("contiguous", lambda: call(out, wide, two, two)),
        ("sends 32 bytes to another, more than largest_bytes=31", lambda: call(out, rows, two, two, largest_bytes=31)),
    ]


def input_errors(rank: int, world_size: int, name: str) -> None:
    """On one rank alone: nothing was issued, or the others would not meet it afterwards."""
    with opened(name) as transport:
        if rank == world_size - 1:
            for match, call in bad_calls(transport):
                with pytest.raises(ValueError, match=match) as caught:
                    call()
                assert not isinstance(caught.value, MismatchError)
        for job in mixed_jobs(world_size, 4):
            job.run(transport)


def in_shared_memory() -> set[str]:
    """The shared memory that this process maps, by inode."""
    return {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:fscomm" in line}


def left_open() -> tuple[int, int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(in_shared_memory())


def nothing_left(rank: int, world_size: int, name: str) -> None:
    """Nor is the transport of any use after it was closed, be it more than once."""
    kept = []  # what is closed holds nothing, also while somebody holds it
    for k in range(6):
        with opened(name) as transport:
            kept.append(transport)
            for job in mixed_jobs(world_size, 3, seed=k):
                job.run(transport)
            mapped = in_shared_memory()
        assert not [path for path in mapped - in_shared_memory() if os.path.exists(path)]
        if k == 1:
            before = left_open()
    kept[-1].close("done")
    assert attempt(lambda: job.run(kept[-1])).startswith("PeerError")
    # A connection's thread ends a moment after it. Each number by itself: more of one kind is not made good by another.
    until(lambda: all(now <= then for now, then in zip(left_open(), before, strict=True)), f"no more than {before}")
