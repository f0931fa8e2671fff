"""`host-staged` between ranks: rows are those of torch.distributed, on a device that runs at once and on one that is
as late as it may be; errors name ranks and leave no thread."""

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from late_device import Eager, Late, copied_by
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.device import Host
from fscomm.transports import staged
from fscomm.transports.handshake import Handshake
from fscomm.transports.opening import host_collective
from fscomm.transports.staged import HostStaged
from fscomm.transports.transport import Handle
from fsranks.errors import MismatchError, PeerError
from fsranks.rank_context import resolve

POISON = 0x7F
ROWS = [
    (torch.int64, ()),
    (torch.float16, (3,)),
    (torch.bfloat16, (2, 5)),
    (torch.float32, (64,)),
    (torch.uint8, (1,)),
    (torch.float32, (0,)),
]
DEVICES = {"eager": Eager, "late": Late}


@contextlib.contextmanager
def opened(
    device: Host, *, timeout_s: float = PATIENCE_S, chunk_bytes: int = 4 << 20, depth: int = 3
) -> Iterator[HostStaged]:
    context = resolve()
    handshake = Handshake(context, verify=True, timeout_s=timeout_s)
    below = host_collective("gloo", context, timeout_s=timeout_s)
    transport = HostStaged(below, handshake, device, chunk_bytes=chunk_bytes, depth=depth)
    try:
        yield transport
    finally:
        transport.close("is done with the test")
        assert not any(thread.name == "fscomm host-staged" for thread in threading.enumerate())


@contextlib.contextmanager
def before_exchange(transport: HostStaged, action: Callable[[], Any]) -> Iterator[None]:
    """In the transport's thread, `action` runs before each piece goes on the wire."""
    exchange = transport._host.all_to_all_v

    def act(*given: Any) -> Handle:
        action()
        return exchange(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport._host, "all_to_all_v", act)
        yield


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class Job:
    """Rows that the device makes only once it comes to it, as it does what `out` was used for before."""

    def __init__(self, device: Eager, sizes: torch.Tensor, dtype: torch.dtype, trailing: tuple[int, ...]) -> None:
        """sizes: [W senders, W receivers]."""
        rank = dist.get_rank()
        self.in_splits, self.out_splits = sizes[rank].tolist(), sizes[:, rank].tolist()
        sent = torch.randint(0, 256, (sum(self.in_splits), *trailing, dtype.itemsize), dtype=torch.uint8)
        rows = sent.reshape(-1).view(dtype).view(-1, *trailing) if sent.numel() else sent.view(dtype).squeeze(-1)
        self.expected = torch.empty(sum(self.out_splits), *trailing, dtype=dtype)
        dist.all_to_all_single(self.expected, rows, self.out_splits, self.in_splits)
        self.inp, self.out = torch.zeros_like(rows), torch.zeros_like(self.expected)
        device.issue(lambda: self.inp.copy_(rows))
        device.issue(lambda: as_bytes(self.out).fill_(POISON))

    def begin(self, transport: HostStaged) -> None:
        self.handle = transport.all_to_all_v(self.out, self.inp, self.out_splits, self.in_splits)

    def check(self) -> None:
        self.handle.wait()
        assert self.handle.done()
        assert torch.equal(as_bytes(self.out), as_bytes(self.expected))


def some_sizes(world_size: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    even = torch.randint(0, 9, (world_size, world_size), generator=generator)
    skewed, silent, alone = even.clone(), even.clone(), torch.zeros_like(even)
    skewed[seed % world_size] += 40
    silent[:, seed % world_size] = 0
    alone[-1, 0] = 33
    return [even, skewed, silent, alone, torch.zeros_like(even)]


def exact(rank: int, world_size: int, kind: str, chunk_bytes: int, depth: int) -> None:
    device = DEVICES[kind]()
    with pytest.MonkeyPatch.context() as patch, opened(device, chunk_bytes=chunk_bytes, depth=depth) as transport:
        patch.setattr(staged, "_pairs", copied_by(device))
        for seed, (dtype, trailing) in enumerate(ROWS):
            jobs = [Job(device, sizes, dtype, trailing) for sizes in some_sizes(world_size, seed)]
            for job in jobs:
                job.begin(transport)
            for job in jobs:
                job.check()
                if isinstance(device, Late):
                    assert {each.data_ptr() for each in (job.inp, job.out) if each.numel()} <= device.read
        transport.meet()


@pytest.mark.parametrize(
    ("chunk_bytes", "depth"), [(64, 3), (100, 1), pytest.param(4 << 20, 3, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("kind", ["late", pytest.param("eager", marks=pytest.mark.long)])
@pytest.mark.parametrize("world_size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4))])
def test_rows_are_those_of_torch_distributed(world_size: int, kind: str, chunk_bytes: int, depth: int) -> None:
    shared_world(world_size).run(exact, kind, chunk_bytes, depth)


def gathered(rank: int, world_size: int, kind: str) -> None:
    device = DEVICES[kind]()
    with pytest.MonkeyPatch.context() as patch, opened(device, chunk_bytes=64) as transport:
        patch.setattr(staged, "_pairs", copied_by(device))
        for number, (dtype, trailing) in enumerate(ROWS * 2):
            rows = torch.randint(0, 99, (number, *trailing)).to(dtype)
            expected = torch.empty(world_size * number, *trailing, dtype=dtype)
            dist.all_gather_into_tensor(expected, rows)
            inp, out = torch.zeros_like(rows), torch.zeros_like(expected)
            device.issue(functools.partial(inp.copy_, rows))
            device.issue(functools.partial(as_bytes(out).fill_, POISON))
            transport.all_gather(out, inp).wait()
            assert torch.equal(as_bytes(out), as_bytes(expected))


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_gathered_rows_are_those_of_torch_distributed(world_size: int, kind: str) -> None:
    shared_world(world_size).run(gathered, kind)


def reused(rank: int, world_size: int) -> tuple[list[int], list[int], int]:
    """The bytes of all buffers that were staged: for many operations of one size, and for ever larger ones."""
    device = Eager()
    with opened(device, chunk_bytes=4096) as transport:
        seen = []
        for rows in [8] * 20 + [4, 2, 8, 16, 16, 1000, 3000, 16]:
            sizes = torch.zeros(world_size, world_size, dtype=torch.int64)
            sizes[0, 1:] = rows  # only rank 0 sends, but all hold as much
            job = Job(device, sizes, torch.float32, (2,))
            job.begin(transport)
            job.check()
            seen.append(list(device.staged))
        staging = [weakref.ref(each) for each in transport._stages._buffers._buffers]
        held = transport._stages._buffers.held_bytes()
    gc.collect()
    assert not any(each() for each in staging)
    return seen[19], seen[-1], held


def test_buffers_are_reused_and_grow_on_all_ranks_alike() -> None:
    ranks = shared_world(2).run(reused)
    assert ranks[0] == ranks[1]
    for_one_size, for_all, held = ranks[0]
    assert for_one_size == [128] * 6
    assert for_all == [128] * 6 + [256] * 4 + [4096] * 6
    assert held == 6 * 4096


def disagree(rank: int, world_size: int) -> None:
    device = Eager()
    with opened(device) as transport:
        out, inp = torch.empty(4, 2), torch.empty(3, 2)
        with pytest.raises(ValueError, match="add up to 4, but inp has 3 rows"):
            transport.all_to_all_v(out, inp, [2, 2], [2, 2])
        with pytest.raises(MismatchError, match="rank 1 sends 1 rows to rank 0, which expects 3"):
            transport.all_to_all_v(out, inp, [[1, 3], [2, 2]][rank], [[1, 2], [1, 2]][rank])
        job = Job(device, torch.tensor([[1, 2], [3, 4]]), torch.int64, ())
        job.begin(transport)
        job.check()


def test_splits_that_disagree_are_noticed_before_anything_moves() -> None:
    shared_world(2).run(disagree)


def aborted(rank: int, world_size: int) -> list[str]:
    """Rank 1 holds back the second piece; rank 0 gives up. What both are told."""
    release = threading.Event()
    holding = threading.Semaphore(1)  # lets one piece through

    def hold() -> None:
        if not holding.acquire(blocking=False):
            release.wait(PATIENCE_S)

    told = []
    with opened(Host(), chunk_bytes=64) as transport:
        inp = torch.ones(2 * 32)
        out = torch.empty_like(inp)
        with before_exchange(transport, hold) if rank == 1 else contextlib.nullcontext():
            handle = transport.all_to_all_v(out, inp, [32, 32], [32, 32])
            if rank == 0:
                threading.Timer(0.1, transport.abort, ["was told to stop"]).start()
            else:
                while not transport._handshake.group._store.wait(["note/0"], 0.01):
                    pass
                release.set()
            for call in (handle.wait, handle.wait, transport.meet, lambda: transport.all_gather(out, inp[:32])):
                with pytest.raises(PeerError) as caught:
                    call()
                told.append(str(caught.value))
            assert handle.done()
    return told


def test_abort_ends_what_is_under_way_and_tells_the_others() -> None:
    mine, theirs = shared_world(2).run(aborted)
    assert set(mine) == {"host-staged is over on rank 0: was told to stop"}
    assert [each for each in theirs if "rank 0 was told to stop" not in each] == []


def left(rank: int, world_size: int) -> None:
    with opened(Host()) as transport:
        if rank == 0:
            transport.abort("has no more rows")
        else:
            with pytest.raises(PeerError, match="rank 0 has no more rows"):
                transport.meet()
        dist.barrier()


def test_a_rank_that_waits_for_the_others_to_come_is_told_too() -> None:
    shared_world(2).run(left)


class Stuck(Host):
    """A device that gets nowhere."""

    def mark(self) -> str:
        return "never"

    def is_done(self, mark: Any) -> bool:
        return mark is None


def stuck(rank: int, world_size: int, abort: bool, limit_s: float = PATIENCE_S) -> str:
    device = Stuck() if rank == 1 else Host()
    with opened(device, timeout_s=limit_s) as transport:
        rows = torch.ones(2 * world_size)
        handle = transport.all_to_all_v(torch.empty_like(rows), rows, [2] * world_size, [2] * world_size)
        if rank == 1 and abort:
            transport.abort("had enough")
        with pytest.raises(PeerError) as caught:
            handle.wait()
    return str(caught.value)


class LateAtLast(Host):
    """A device that gets nowhere with what it was given last."""

    def wait(self, mark: Any, limit_s: float) -> None:
        raise TimeoutError(f"nothing within {limit_s:g} s")


def late_at_last(rank: int, world_size: int) -> None:
    with opened(LateAtLast()) as transport:
        rows = torch.ones(world_size)
        handle = transport.all_to_all_v(torch.empty_like(rows), rows, [1] * world_size, [1] * world_size)
        with pytest.raises(PeerError, match=f"nothing within {PATIENCE_S:g} s"):
            handle.wait()


def test_waiting_for_rows_that_are_on_their_way_to_the_device_has_the_limit_of_the_transport() -> None:
    shared_world(2).run(late_at_last)


def test_abort_ends_waiting_for_the_device() -> None:
    said = shared_world(2).run(stuck, True)
    assert said[1] == "host-staged is over on rank 1: had enough"
    assert "rank 1 had enough" in said[0]


def breaks(rank: int, world_size: int) -> str:
    def fail() -> None:
        raise OSError("the adapter is gone")

    with opened(Host()) as transport:
        rows = torch.ones(world_size)
        with before_exchange(transport, fail) if rank == 1 else contextlib.nullcontext():
            handle = transport.all_to_all_v(torch.empty_like(rows), rows, [1] * world_size, [1] * world_size)
            with pytest.raises(PeerError) as caught:
                handle.wait()
    return str(caught.value)


def test_whatever_fails_in_the_thread_reaches_all_ranks() -> None:
    said = shared_world(2).run(breaks)
    assert said[1] == "host-staged is over on rank 1: failed: OSError: the adapter is gone"
    assert "rank 1 failed: OSError: the adapter is gone" in said[0]


def closed_under_way(rank: int, world_size: int) -> str:
    """Nobody should; the thread ends all the same, and nobody waits in vain."""
    with pytest.MonkeyPatch.context() as patch, opened(Stuck(), timeout_s=PATIENCE_S) as transport:
        patch.setattr(staged, "_GRACE_S", 0.1)
        rows = torch.ones(world_size)
        handle = transport.all_to_all_v(torch.empty_like(rows), rows, [1] * world_size, [1] * world_size)
    with pytest.raises(PeerError) as caught:
        handle.wait()
    return str(caught.value)


def test_closing_ends_the_thread_whatever_it_waits_for() -> None:
    for said in shared_world(2).run(closed_under_way):
        assert "is done with the test" in said


def test_a_chunk_has_at_least_one_byte() -> None:
    with pytest.raises(ValueError, match="chunk_bytes must be at least 1, got 0"):
        HostStaged(None, None, Host(), chunk_bytes=0)  # type: ignore[arg-type]
