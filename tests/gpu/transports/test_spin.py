"""While a kernel holds every SM: what needs one cannot begin, and what copy engines do completes."""

import importlib.util
import time

import pytest
import torch
import torch.distributed as dist
from held_sms import Multiprocessors
from worlds import World

from fscomm.device import CudaDevice
from fscomm.transports.opening import open_transport
from fscomm.transports.ring.cuda_driver import CudaDriver
from fscomm.transports.ring.ring import Ring
from fsranks.control_group import ControlGroup
from fsranks.rank_context import resolve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
LIMIT_S = 30.0
BYTES = 64 << 20


def within(done, limit_s):
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.001)
    return done()


def issued(copy):
    """`copy` in a stream of its own; whether it is done."""
    event, stream = torch.cuda.Event(), torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream):
        copy()
        event.record()
    return event.query


@pytest.fixture
def sms():
    return Multiprocessors(torch.device("cuda", 0), limit_s=20)


def test_a_kernel_waits_until_they_are_let_go(sms):
    with sms.hold_all_sms():
        done = sms.sm_copy()
        assert not within(done, 1.0)
    assert within(done, LIMIT_S)


def test_copies_to_and_from_the_host_do_not(sms):
    host = torch.randint(0, 255, (BYTES,), dtype=torch.uint8).pin_memory()
    back = torch.empty_like(host).pin_memory()
    device = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with sms.hold_all_sms():
        assert within(issued(lambda: device.copy_(host, non_blocking=True)), LIMIT_S)
        assert within(issued(lambda: back.copy_(device, non_blocking=True)), LIMIT_S)
        assert not within(sms.sm_copy(), 0.2), "nothing was held"
    assert torch.equal(back, host)


def test_they_are_let_go_after_an_error(sms):
    with pytest.raises(ZeroDivisionError), sms.hold_all_sms():
        _ = 1 / 0
    assert within(sms.sm_copy(), LIMIT_S)


def test_the_kernel_ends_by_itself():
    brief = Multiprocessors(torch.device("cuda", 0), limit_s=3)
    with brief.hold_all_sms():
        assert within(brief.sm_copy(), LIMIT_S)


class ByKernel:
    """A transport whose handles wait for one more kernel: a fall-back as it would be."""

    def __init__(self, inner, sms):
        self.inner, self.sms = inner, sms

    def all_to_all_v(self, *given, largest_bytes):
        return AfterKernel(self.inner.all_to_all_v(*given, largest_bytes=largest_bytes), self.sms.sm_copy())


class AfterKernel:
    def __init__(self, handle, copied):
        self.handle, self.copied = handle, copied

    def done(self):
        return self.handle.done() and self.copied()

    def wait(self):
        self.handle.wait()


def by_name(name, device):
    return open_transport(name, resolve(), device, timeout_s=LIMIT_S)


def copy_engine(name, device):
    """Also where ranks share a GPU, which users are refused."""
    group = ControlGroup(resolve(), timeout_s=LIMIT_S)
    return Ring(CudaDriver(group, device.where), group, name=name)


def own_or_first(rank, world_size):
    return torch.device("cuda", rank if torch.cuda.device_count() >= world_size else 0)


def moved_while_held(rank, world_size, name, falls_back=None, limit_s=LIMIT_S):
    """Whether rows came while every rank held all its SMs; raises if nothing was held, or other rows came.

    Ranks that share a GPU take turns on its SMs, and each holds them in its own.
    """
    where = own_or_first(rank, world_size)
    device, sms = CudaDevice(where), Multiprocessors(where)
    device.enter()
    inner = (copy_engine if name == "copy-engine" else by_name)(name, device)
    transport = ByKernel(inner, sms) if rank == falls_back else inner
    splits = [1 << 12] * world_size
    inp = torch.arange(sum(splits) * 16, device=where).view(-1, 16) + rank
    largest_bytes = inp.nbytes // world_size
    out = torch.full_like(inp, -1)
    for _ in range(4):  # so often that all is allocated and loaded
        inner.all_to_all_v(out, inp, splits, splits, largest_bytes=largest_bytes).wait()
    out.fill_(-1)
    torch.cuda.synchronize(where)
    with sms.hold_all_sms():
        dist.barrier()
        handle = transport.all_to_all_v(out, inp, splits, splits, largest_bytes=largest_bytes)
        moved = within(handle.done, limit_s)
        dist.barrier()  # no rank lets go before all are through: what is still to leave it may need its SMs
        assert not within(sms.sm_copy(), 0.2), "nothing was held"
    handle.wait()
    dist.barrier()
    first = torch.arange(len(inp) * 16, device=where).view(-1, 16).split(splits)[rank]
    assert torch.equal(out, torch.cat([first + source for source in range(world_size)]))
    inner.close("the test is over")
    return moved


needs_bindings = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs cuda-bindings")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.parametrize(
    "name",
    [
        "host-staged",
        "host-staged:shared-memory",
        pytest.param("copy-engine", marks=(two_gpus, needs_bindings)),
        pytest.param("nccl-ce", marks=(two_gpus, needs_bindings)),
    ],
)
def test_rows_pass_without_sms(name):
    with World(2) as world:
        assert world.run(moved_while_held, name, timeout_s=150) == [True, True]


@needs_bindings
@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="ranks have a CUDA device each")
def test_ranks_that_share_a_gpu_are_refused_copy_engine_for_a_reason():
    """A driver may copy within one GPU by kernels, asked or not, as that of CUDA 13.0 does. Where it does not, ranks
    that share a GPU could be served: `fscomm.transports.ring.cuda_driver.SHARED`.
    """
    with World(2) as world:
        assert world.run(moved_while_held, "copy-engine", None, 5.0, timeout_s=150) == [False, False]


def test_a_fall_back_to_kernels_is_caught():
    with World(2) as world:
        assert world.run(moved_while_held, "host-staged", 1, 5.0, timeout_s=150) == [True, False]
