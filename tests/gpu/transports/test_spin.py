"""While a kernel holds every SM: what needs one cannot begin, and what copy engines do completes."""

import importlib.util
import time

import pytest
import torch
import torch.distributed as dist
from worlds import World

from fscomm.device import Cuda
from fscomm.transports.opening import open_transport
from fscomm.transports.selftest import BOUND_S, Multiprocessors, check
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


def gather(text):
    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts


class ByKernel:
    """A transport whose handles wait for one more kernel: a fall-back as it would be."""

    def __init__(self, inner, sms):
        self.inner, self.sms = inner, sms
        self.name, self.rank, self.world_size = inner.name, inner.rank, inner.world_size

    def all_to_all_v(self, *given):
        return self.wrap(self.inner.all_to_all_v(*given))

    def all_gather(self, *given):
        return self.wrap(self.inner.all_gather(*given))

    def wrap(self, handle):
        return AfterKernel(handle, self.sms.sm_copy())


class AfterKernel:
    def __init__(self, handle, copied):
        self.handle, self.copied = handle, copied

    def done(self):
        return self.handle.done() and self.copied()

    def wait(self):
        self.handle.wait()


def warm_up(rank, world_size, name, falls_back=None):
    """Both ranks on one GPU, each with all its multiprocessors held: they take turns on them."""
    where = torch.device("cuda", 0)
    device = Cuda(where)
    device.enter()
    inner = open_transport(name, resolve(), device, timeout_s=LIMIT_S, verify=True)
    try:
        transport = ByKernel(inner, Multiprocessors(where)) if rank == falls_back else inner
        return check(transport, device, gather=gather, bound_s=BOUND_S if falls_back is None else 5.0)
    finally:
        inner.close("the test is over")


needs_bindings = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs cuda-bindings")


@pytest.mark.parametrize(
    "name", ["host-staged", "host-staged:shared-memory", pytest.param("copy-engine", marks=needs_bindings)]
)
def test_rows_pass_without_sms(name):
    """A driver may copy within one GPU by kernels, asked or not (CUDA 13.0 does): then the warm-up has to tell."""
    with World(2) as world:
        answers = world.run(warm_up, name, timeout_s=150)
    if name == "copy-engine" and answers != [None, None]:
        assert answers[0] == answers[1]
        assert answers[0].startswith("on ranks 0, 1: with every SM held by a kernel")
        pytest.skip("this driver copies within one GPU by kernels, and the warm-up tells so: it needs two GPUs")
    assert answers == [None, None]


def test_a_fall_back_to_kernels_is_caught_on_hardware():
    with World(2) as world:
        answers = world.run(warm_up, "host-staged", 1, timeout_s=150)
    assert answers[0] == answers[1]
    assert answers[0].startswith("on rank 1: with every SM held by a kernel")
