"""The copy engine by the real cuda-bindings on host memory: the contract, one rank, what is refused and why."""

import contextlib
import gc
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import host_cuda
import numpy as np
import pytest
import torch
import transport_contract as contract
from host_cuda import HERE, NAME, Setup, called, driver_for, failing, on_host_cuda, shim, world_for
from patience import PATIENCE_S, until
from transport_jobs import Job, open_by

from fscomm import device
from fscomm.device import poll
from fscomm.transports import together
from fscomm.transports.ring import cuda_driver
from fscomm.transports.ring.cuda_driver import CudaDriver, CudaError, DriverCalls, check_gpus
from fscomm.transports.ring.slots import store
from fscomm.transports.together import StepFailed
from fsranks.control_group import Alone, ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

pytestmark = pytest.mark.xdist_group("worlds")
setup = host_cuda.setup
long = pytest.mark.long
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
OPENING = (
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemImportFromShareableHandle",
    "cuMemHostRegister",
)


@on_host_cuda
@pytest.mark.parametrize(
    ("case", "args"),
    [
        (contract.many_in_flight, ()),
        (contract.growth, ()),
        (contract.not_done_while_a_rank_holds_back, ()),
        pytest.param(contract.two_classes, (), marks=long),
        pytest.param(contract.nothing_left, (), marks=long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_contract(setup: Setup, case: Any, args: tuple[object, ...]) -> None:
    world_for(setup, 3).run(host_cuda.run, setup, case, NAME, *args)


class AloneWithLimit(Alone):
    """The only rank, for a driver whose words the test writes."""

    timeout_s = PATIENCE_S


def of_one_rank(rank: int, world_size: int, case: Callable[[CudaDriver], None]) -> None:
    """All that a case of a driver maps is given back when the driver is closed."""
    before = shim().shim_mapped()
    driver = driver_for(AloneWithLimit())
    case(driver)
    driver.close()
    assert shim().shim_mapped() == before


def words(driver: CudaDriver) -> tuple[torch.Tensor, torch.Tensor]:
    (of_this_rank,) = driver.words(64)
    assert of_this_rank.tolist() == [0] * 64
    return of_this_rank[:1], of_this_rank[32:33]


def held(driver: CudaDriver, stream: Any, word: torch.Tensor) -> None:
    """`stream` goes on when the word is 1. The driver does not know of it."""
    driver.cuda("cuStreamWaitValue32", stream, word.data_ptr(), 1, 0)


def until_idle() -> None:
    """Nothing runs any more: what is not done now waits, and does so until a word is stored."""
    until(lambda: shim().shim_idle(), "the end of all that can run")


def what_is_issued_runs_behind_the_caller_and_in_order(driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    mine, peers = words(driver)
    (gate,) = driver.words(1)
    queue = driver.queue("send")
    rows = torch.arange(1, 17, dtype=torch.uint8)
    before = called("cuMemcpyBatchAsync"), called("cuMemcpyAsync")
    held(driver, driver.cuda.current_stream(), gate)
    store(mine, 2)
    queue.begin()
    queue.wait(mine, 2)
    queue.copy(memory[256:272], rows)
    queue.copy(memory[:0], memory[:0])
    queue.write(peers, 7)
    mark = queue.mark()
    until_idle()
    assert not driver.is_done(mark), "it did not run behind the caller"
    store(mine, 1)
    store(gate, 1)
    until_idle()
    assert not driver.is_done(mark), "it did not wait for the word"
    assert peers.item() == 0
    store(mine, 2)
    behind = called("cuStreamWaitEvent")
    assert driver.wait(mark, PATIENCE_S)
    assert called("cuStreamWaitEvent") == behind + 1  # the caller's stream goes on behind the mark
    assert peers.item() == 7
    assert torch.equal(memory[256:272], rows)
    assert (called("cuMemcpyBatchAsync"), called("cuMemcpyAsync")) == (before[0] + 1, before[1])
    with pytest.raises(ValueError, match="3 bytes cannot be copied to 2"):
        queue.copy(memory[:2], memory[:3])


def words_count_in_a_circle(driver: CudaDriver) -> None:
    mine, peers = words(driver)
    for start in (0, (1 << 31) - 1, -1):
        queue = driver.queue("receive")
        store(mine, start)
        following = (start + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
        queue.wait(mine, following)
        queue.write(peers, following)
        until_idle()
        assert not driver.is_done(queue.mark()), start
        store(mine, following)
        assert driver.wait(queue.mark(), PATIENCE_S), start
        assert peers.item() == following


def close_ends_queues_that_wait_and_is_final(driver: CudaDriver) -> None:
    driver.memory(1000)
    mine, _ = words(driver)
    for queue in (driver.queue("receive"), driver.queue("send")):
        for value in (5, 9):
            queue.wait(mine, value)
    driver.close()
    driver.close()
    store(mine, 1)  # a thread that holds a word may still give up the ring


def a_graph_that_is_being_captured_is_named(driver: CudaDriver) -> None:
    """The caller's stream, whose graph would draw in the ring's; and any other, while which no events may be asked."""
    cuda, (memory,) = driver.cuda, driver.memory(1000)
    queue = driver.queue("send")
    queue.copy(memory[:4], memory[4:8])
    mark, other = queue.mark(), driver.cuda.stream()
    for stream, use in ((driver.cuda.current_stream(), queue.begin), (other, lambda: driver.wait(mark, PATIENCE_S))):
        cuda("cuStreamBeginCapture", stream, cuda.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        with pytest.raises(CudaError, match="a CUDA graph is being captured"):
            use()
        cuda("cuStreamEndCapture", stream)
    queue.begin()
    assert driver.wait(queue.mark(), PATIENCE_S)


def workers_may_ask_while_another_thread_captures(driver: CudaDriver) -> None:
    """A worker's thread, once it is `CudaDevice.enter`ed, in the mode of captures that torch has by default."""
    cuda, mark, stream = driver.cuda, driver.queue("send").mark(), driver.cuda.stream()

    def work(enter: Callable[[], None]) -> bool:
        enter()
        return poll(mark.done, PATIENCE_S)

    torch_cuda = dict.fromkeys(("set_device", "set_stream", "Stream"), mock.DEFAULT)
    with mock.patch.multiple(torch.cuda, **torch_cuda), ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        cuda("cuStreamBeginCapture", stream, cuda.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        assert one.submit(work, device.CudaDevice(torch.device("cuda", 0)).enter).result()
        with pytest.raises(CudaError, match="a CUDA graph is being captured"):
            other.submit(work, lambda: None).result()
        cuda("cuStreamEndCapture", stream)


def errors_of_the_driver_name_the_call(driver: CudaDriver) -> None:
    """A function that the driver has not is an error of the bindings' own; an old driver is refused at once."""
    with pytest.raises(CudaError) as caught:
        driver.cuda("cuMemAlloc", 1)
    assert re.match(r"cuMemAlloc on CUDA device 0: .*cuMemAlloc.* not found", str(caught.value))
    with failing("cuMemAddressReserve", OUT_OF_MEMORY), pytest.raises(CudaError) as caught:
        DriverCalls(3)("cuMemAddressReserve", 1 << 16, 0, 0, 0)
    assert str(caught.value) == "cuMemAddressReserve on CUDA device 3: CUDA_ERROR_OUT_OF_MEMORY"
    bindings = driver.cuda.driver.CUDA_VERSION // 1000
    shim().shim_version(12080)
    too_old = pytest.raises(CudaError, match=r"a driver of CUDA 12\.8 has not all functions that cuda-bindings 13")
    with too_old if bindings > 12 else contextlib.nullcontext():
        DriverCalls(0)
    shim().shim_version(host_cuda.NEWEST)


def an_older_driver_copies_as_it_likes(driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    queue = driver.queue("send")
    before = called("cuMemcpyAsync"), called("cuMemcpyBatchAsync")
    queue.copy(memory[256:257], torch.ones(1, dtype=torch.uint8))
    assert driver.wait(queue.mark(), PATIENCE_S)
    assert (called("cuMemcpyAsync"), called("cuMemcpyBatchAsync")) == (before[0] + 1, before[1])


@on_host_cuda
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (what_is_issued_runs_behind_the_caller_and_in_order, {}),
        (words_count_in_a_circle, {}),
        (close_ends_queues_that_wait_and_is_final, {}),
        (close_ends_queues_that_wait_and_is_final, {"queues": 1}),
        (a_graph_that_is_being_captured_is_named, {}),
        (workers_may_ask_while_another_thread_captures, {}),
        (errors_of_the_driver_name_the_call, {}),
        (an_older_driver_copies_as_it_likes, {"driver": 12070}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_one_rank(setup: Setup, case: Callable[[CudaDriver], None], changes: dict[str, int]) -> None:
    if case is an_older_driver_copies_as_it_likes and not setup.version.startswith("12."):
        pytest.skip("only cuda-bindings 12 serve a driver that is older than CUDA 12.8")
    setup = replace(setup, **changes)
    world_for(setup, 1).run(host_cuda.run, setup, of_one_rank, case)


def kept(rank: int, world_size: int) -> None:
    """Its memory, and the words, which go with the last object that refers to them otherwise."""
    driver, of_test = driver_for(AloneWithLimit()), driver_for(AloneWithLimit())
    (gate,) = of_test.words(1)
    driver.memory(1000)
    mine, _ = words(driver)
    address = mine.data_ptr()
    queue = driver.queue("receive")
    held(driver, queue.stream, gate)
    mark, before = queue.mark(), shim().shim_mapped()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "_END_S", 0.01)
        driver.close()
    del driver, mine, _
    assert shim().shim_mapped() == before
    assert any(line.startswith(f"{address:x}-") for line in Path("/proc/self/maps").read_text().splitlines())
    store(gate, 1)
    assert poll(mark.done, PATIENCE_S)
    of_test.close()


@on_host_cuda
def test_what_a_queue_that_does_not_end_uses_stays(setup: Setup) -> None:
    world_for(setup, 1).run(host_cuda.run, setup, kept)


class Told:
    """A group of ranks whose words a test gives."""

    rank, world_size, timeout_s = 0, 3, PATIENCE_S

    def __init__(self, *given: Any) -> None:
        self.given = list(given)

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """Of this rank, and what the others give next; of none, the same."""
        others = self.given.pop(0) if self.given else None
        if others is None:
            return np.stack([mine] * self.world_size)
        if mine.dtype == np.uint8:
            others = [np.frombuffer(each.encode().ljust(len(mine), b"\0"), np.uint8) for each in others]
        return np.stack([mine, *others])


def asked(group: Told, monkeypatch: pytest.MonkeyPatch, *, sees: int = 3) -> str:
    """Why rings are refused to rank 0 of three GPUs that are joined by NVLink, of which it sees so many."""
    links = SimpleNamespace(matrix=[[1] * 3] * 3)
    monkeypatch.setattr(torch._C._distributed_c10d, "_detect_dma_connectivity", lambda *_: links, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: sees)
    for module in (cuda_driver, together):
        monkeypatch.setattr(module, "gpu_id", lambda where: f"GPU {where.index}")
    try:
        check_gpus(group, torch.device("cuda", 0))  # type: ignore[arg-type]
    except StepFailed as failed:
        return str(failed)
    return ""


def test_what_would_hang_or_bring_wrong_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """errors of naming GPUs, GPUs, errors of looking for links, links: what the other ranks give, in turn."""
    gpus, joined, unseen = ["GPU 1", "GPU 2"], np.ones((2, 3), np.int8), np.zeros((2, 3), np.int8)

    def said(*given: Any, **changes: Any) -> str:
        return asked(Told(None, *given), monkeypatch, **changes)

    assert said(gpus, None, joined) == ""
    assert said(gpus, None, unseen) == "whether NVLink joins the GPUs of ranks 1 and 2 cannot be seen: " + SEE_ALL
    assert said(gpus, None, joined, sees=1) == ""  # the others see it
    over_pcie = np.array([[1, 1, -1], [1, 0, 1]], np.int8)
    assert said(gpus, None, over_pcie).startswith("no NVLink between the GPUs of ranks 1 and 2: a word in host memory")
    monkeypatch.setenv("FREESCALE_SHARED_GPU", "1")  # which is for nccl
    shared = said(["GPU 0", "GPU 2"])
    assert shared.startswith("ranks 0, 1 share a GPU: drivers copy within a GPU by kernels")
    assert "take host-staged" in shared


SEE_ALL = "let every process see all GPUs (CUDA_VISIBLE_DEVICES)"


def test_ranks_that_are_apart_are_refused() -> None:
    group = Told(["elsewhere", "elsewhere"])
    with pytest.raises(StepFailed, match=r"one host, rank 0 and ranks 1, 2 are apart: take nccl-ce, or host-staged"):
        CudaDriver(group, HERE)  # type: ignore[arg-type]


def test_without_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(ImportError, match="pip install cuda-bindings"):
        DriverCalls(0)


def memory_files() -> int:
    return sum("/memfd:" in os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


def refused(rank: int, world_size: int) -> list[str]:
    """Rank 1's driver fails a call of opening a ring: what is said, and that nothing is left."""
    gc.freeze()  # collecting then looks at what is made from here on, and not at all of torch
    before, said = (memory_files(), shim().shim_mapped()), []
    for call in OPENING:
        with failing(call, OUT_OF_MEMORY) if rank == 1 else contextlib.nullcontext():
            try:
                host_cuda.open_ring(resolve(), PATIENCE_S)
                said.append("")
            except PeerError as error:
                said.append(str(error))
        gc.collect()
        assert (memory_files(), shim().shim_mapped()) == before, call
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    failing_here = failing("cuInit", OUT_OF_MEMORY) if rank == 1 else contextlib.nullcontext()
    with failing_here, pytest.raises(PeerError, match=r"^on rank 1: CudaError: cuInit on CUDA device 0"):
        CudaDriver(group, torch.device("cpu", 0))
    group.close("done")
    shim().shim_alias(4096 if rank == 1 else 0)
    with pytest.raises(PeerError, match=r"^on rank 1: CudaError: CUDA device 0 reaches host memory at other addresses"):
        host_cuda.open_ring(resolve(), PATIENCE_S)
    shim().shim_alias(0)
    return said


@on_host_cuda
def test_a_rank_whose_driver_fails_is_named_by_all(setup: Setup) -> None:
    for said in world_for(setup, 3).run(host_cuda.run, setup, refused):
        assert said == [f"on rank 1: CudaError: {call} on CUDA device 0: CUDA_ERROR_OUT_OF_MEMORY" for call in OPENING]


def breaks(rank: int, world_size: int) -> str:
    """In the middle of an operation."""
    transport = open_by(NAME)
    job = Job("breaks", [[500] * world_size] * world_size, (64,))

    def twice() -> None:  # a rank may have got all of the first before rank 1 broke
        job.run(transport)
        job.run(transport)

    fails = failing("cuMemcpyBatchAsync", ILLEGAL_ADDRESS, after=3) if rank == 1 else contextlib.nullcontext()
    with fails, pytest.raises(PeerError if rank != 1 else CudaError) as caught:
        twice()
    return str(caught.value)


@on_host_cuda
def test_an_error_of_the_driver_in_an_operation_is_told_to_all(setup: Setup) -> None:
    other, mine, third = world_for(setup, 3).run(host_cuda.run, setup, breaks)
    why = "cuMemcpyBatchAsync on CUDA device 0: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert mine == why
    for said in (other, third):
        assert "rank 1" in said
        assert why in said
