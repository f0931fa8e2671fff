"""Transports between processes on one GPU, and on two where there are two: what arrives, in which order, by what."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transport_jobs import DTYPES, KINDS, POISON, TRAILING, Job, as_bytes, one_pair, sizes_of
from worlds import World

from fscomm.device import Device, device_of
from fscomm.transports.opening import open_transport
from fscomm.transports.ring.cuda_driver import CudaDriver
from fscomm.transports.ring.ring import Ring
from fscomm.transports.transport import Handle, Transport
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a CUDA device for each of two ranks")
each_transport = pytest.mark.parametrize(
    "name",
    ["copy-engine", "host-staged", pytest.param("nccl", marks=two_gpus), pytest.param("nccl-ce", marks=two_gpus)],
)
sm_free = pytest.mark.parametrize("name", ["copy-engine", "host-staged", pytest.param("nccl-ce", marks=two_gpus)])

TIMEOUT_S = 120  # of a case; the first CUDA call of a process takes seconds
LIMIT_S = 60.0
SLEEP = 200_000_000  # cycles, about a tenth of a second


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, World]]:
    """Three ranks share the GPUs there are; NCCL wants one for each."""
    made = {"shared": World(3)}
    if torch.cuda.device_count() >= 2:
        made["apart"] = World(2)
    yield made
    for world in made.values():
        world.close()


def world_for(worlds: dict[str, World], name: str) -> World:
    return worlds["apart" if name.startswith("nccl") else "shared"]


def opened(name: str, *, timeout_s: float = LIMIT_S) -> tuple[Transport, Device]:
    """The ranks' GPUs in turn, in a stream that is not the default one. Users are refused `copy-engine` where ranks
    share a GPU; it brings rows there, too."""
    context = resolve()
    device = device_of(torch.device("cuda", context.rank % torch.cuda.device_count()))
    device.enter()
    if name == "copy-engine":
        group = ControlGroup(context, timeout_s=timeout_s)
        return Ring(CudaDriver(group, device.where), group, name=name), device
    return open_transport(name, context, device, timeout_s=timeout_s), device


class OnGpu:
    """A job whose tensors are on the GPU. `out` lies between two rows of its own, all poisoned."""

    def __init__(self, job: Job, device: Device) -> None:
        self.job, where = job, device.where
        self.inp = job.inp.to(where)
        framed = torch.empty(len(job.out) + 2, *job.out.shape[1:], dtype=job.out.dtype)
        as_bytes(framed).fill_(POISON)
        self._framed = framed.to(where)
        self.out = self._framed[1:-1]

    def begin(self, transport: Transport) -> Handle:
        splits = self.job.out_splits, self.job.in_splits
        return transport.all_to_all_v(self.out, self.inp, *splits, largest_bytes=self.job.largest_bytes)

    def check(self) -> None:
        framed = self._framed.cpu()
        assert torch.equal(as_bytes(framed[1:-1]), as_bytes(self.job.expected)), self.job.what
        for row in (framed[0], framed[-1]):
            assert (as_bytes(row) == POISON).all(), f"{self.job.what}: written outside of out"


@each_transport
def test_rows_arrive(worlds: dict[str, World], name: str) -> None:
    world_for(worlds, name).run(all_kinds, name, timeout_s=TIMEOUT_S)


def all_kinds(rank: int, world_size: int, name: str) -> None:
    transport, device = opened(name)
    jobs: list[Job] = [
        Job(kind, sizes_of(kind, world_size, k), TRAILING[k % len(TRAILING)], dtype)
        for k, kind in enumerate(KINDS)
        for dtype in DTYPES
    ]
    jobs += [Job("growth", one_pair(world_size, rows), (64,)) for rows in (1 << 10, 1 << 17, 3)]
    for first in range(0, len(jobs), 8):
        flying = [OnGpu(job, device) for job in jobs[first : first + 8]]
        handles = [each.begin(transport) for each in flying]
        for handle, each in zip(handles, flying, strict=True):
            handle.wait()
            assert handle.done()
            each.check()
    transport.barrier()
    transport.close("done")


@each_transport
def test_streams_order_what_is_sent_and_what_is_read(worlds: dict[str, World], name: str) -> None:
    world_for(worlds, name).run(ordered, name, timeout_s=TIMEOUT_S)


def ordered(rank: int, world_size: int, name: str) -> None:
    """Rows are made behind a kernel that takes long, and read by one without the host in between."""
    transport, device = opened(name)
    for turn in range(3):
        inp = torch.zeros(world_size << 14, 16, device=device.where)
        out = torch.full_like(inp, float("nan"))
        torch.cuda._sleep(SLEEP)
        inp += 10 * turn + rank
        splits = [1 << 14] * world_size
        handle = transport.all_to_all_v(out, inp, splits, splits, largest_bytes=inp.nbytes // world_size)
        handle.wait()
        read = out.view(world_size, -1).sum(1, dtype=torch.float64)
        out.fill_(float("nan"))
        expected = [(10 * turn + sender) * 16.0 * (1 << 14) for sender in range(world_size)]
        assert read.tolist() == expected
    transport.close("done")


@sm_free
def test_no_kernel_belongs_to_a_transfer(worlds: dict[str, World], name: str, tmp_path: Path) -> None:
    for kernels, copies, control in world_for(worlds, name).run(traced, name, str(tmp_path), timeout_s=TIMEOUT_S):
        assert control, "the trace does not show kernels at all"
        assert kernels == []
        assert copies, "the trace does not show copies at all"


def traced(rank: int, world_size: int, name: str, folder: str) -> tuple[list[str], list[str], list[str]]:
    """Kernels and copies of an operation that was warmed up, and the kernels of one that has some."""
    transport, device = opened(name)
    inp = torch.ones(world_size << 12, 64, device=device.where)
    out = torch.empty_like(inp)
    splits = [1 << 12] * world_size
    other = torch.ones(1 << 20, device=device.where)

    def exchange() -> None:
        transport.all_to_all_v(out, inp, splits, splits, largest_bytes=inp.nbytes // world_size).wait()

    def trace(what: str, run: object) -> tuple[list[str], list[str]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()  # type: ignore[operator]
            torch.cuda.synchronize()
        path = os.path.join(folder, f"{what} {rank}.json")
        profile.export_chrome_trace(path)
        events = json.loads(Path(path).read_text())["traceEvents"]
        return (
            [event["name"] for event in events if event.get("cat") == "kernel"],
            [event["name"] for event in events if event.get("cat") == "gpu_memcpy"],
        )

    for _ in range(3):
        exchange()
    torch.cuda.synchronize()
    control, _ = trace("control", lambda: other.mul_(2))
    kernels, copies = trace("exchange", lambda: [exchange() for _ in range(4)])
    transport.close("done")
    return kernels, copies, control


@each_transport
def test_a_killed_rank_is_named_and_the_others_live(name: str) -> None:
    size = 2 if name.startswith("nccl") else 3
    with World(size) as world:
        found = world.run(killed, name, lost=[1], timeout_s=TIMEOUT_S)
    for rank, text in enumerate(found):
        assert rank == 1 or "rank 1" in text, (rank, text)


def killed(rank: int, world_size: int, name: str) -> str:
    """Rank 1 ends with an operation under way that it has not waited for."""
    transport, device = opened(name, timeout_s=20.0)
    jobs = [OnGpu(Job("killed", [[1 << 14] * world_size] * world_size, (64,)), device) for _ in range(2)]
    jobs[0].begin(transport).wait()
    jobs[0].check()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError) as caught:
        jobs[1].begin(transport).wait()
    transport.close("lost a rank")
    assert torch.ones(4, device=device.where).sum().item() == 4, "the device is lost"
    return str(caught.value)
