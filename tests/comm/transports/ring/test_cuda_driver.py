"""The copy engine by the real cuda-bindings on host memory: one rank, and what is refused and why."""

import contextlib
import gc
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_cuda
import pytest
import torch
from host_cuda import HERE, Setup, called, driver_for, failing, on_host_cuda, shim, world_for
from patience import PATIENCE_S, until
from worlds import shared_world

from fscomm.transports.handshake import Handshake
from fscomm.transports.ring import cuda_driver, shared_memory
from fscomm.transports.ring.cuda_api import Cuda, CudaError
from fscomm.transports.ring.cuda_driver import CudaDriver
from fscomm.transports.ring.fabric import store
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

setup = host_cuda.setup
OUT_OF_MEMORY = 2


class Alone:
    """A handshake of one rank with itself, for a driver whose words the test writes."""

    rank, world_size, timeout_s, one_host = 0, 1, 1.0, True

    class group:
        rank, world_size, timeout_s = 0, 1, 1.0

        @staticmethod
        def all_gather(mine: Any) -> Any:
            return mine[None]


def alone(setup: Setup, case: Callable[..., None], *args: Any) -> None:
    world_for(setup, 1).run(host_cuda.run, setup, of_one_rank, case, *args)


def of_one_rank(rank: int, world_size: int, case: Callable[..., None], *args: Any) -> None:
    """All that a case of a driver maps is given back when the driver is closed."""
    before = shim().shim_mapped()
    driver = driver_for(Alone())
    case(driver, *args)
    driver.close()
    assert shim().shim_mapped() == before


def words(driver: CudaDriver) -> tuple[torch.Tensor, torch.Tensor]:
    (of_this_rank,) = driver.words(64)
    assert of_this_rank.tolist() == [0] * 64
    return of_this_rank[:1], of_this_rank[32:33]


def held(driver: CudaDriver, stream: Any, word: torch.Tensor) -> None:
    """`stream` goes on when the word is 1. The driver does not know of it."""
    driver.cuda("cuStreamWaitValue32", stream, word.data_ptr(), 1, 0)


def until_idle(driver: CudaDriver) -> None:
    """Nothing runs any more: what is not done now waits, and does so until a word is stored."""
    until(lambda: shim().shim_idle(), "the end of all that can run")


def in_order(driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    mine, peers = words(driver)
    (gate,) = driver.words(1)
    queue = driver.queue("send")
    rows = torch.arange(1, 17, dtype=torch.uint8)
    before = called("cuMemcpyBatchAsync"), called("cuMemcpyAsync")
    held(driver, driver.current_stream(), gate)
    store(mine, 2)
    queue.begin()
    queue.wait(mine, 2)
    queue.copy(memory[256:272], rows)
    queue.write(peers, 7)
    mark = queue.mark()
    until_idle(driver)
    assert not driver.is_done(mark), "it did not run behind the caller"
    store(mine, 1)
    store(gate, 1)
    until_idle(driver)
    assert not driver.is_done(mark), "it did not wait for the word"
    assert peers.item() == 0
    store(mine, 2)
    assert driver.wait(mark, PATIENCE_S)
    assert peers.item() == 7
    assert torch.equal(memory[256:272], rows)
    assert (called("cuMemcpyBatchAsync"), called("cuMemcpyAsync")) == (before[0] + 1, before[1])


@on_host_cuda
def test_what_is_issued_runs_behind_the_caller_and_in_order(setup: Setup) -> None:
    alone(setup, in_order)


def behind_a_mark(driver: CudaDriver) -> None:
    (word,) = driver.words(1)
    queue = driver.queue("send")
    queue.wait(word, 1)
    mark = queue.mark()
    store(word, 1)
    before = called("cuStreamWaitEvent")
    assert driver.wait(mark, PATIENCE_S)
    assert called("cuStreamWaitEvent") == before + 1  # the caller's stream goes on behind the mark


@on_host_cuda
def test_the_caller_goes_on_behind_what_it_waited_for(setup: Setup) -> None:
    alone(setup, behind_a_mark)


def independent(driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    mine, peers = words(driver)
    waiting, other = driver.queue("receive"), driver.queue("send")
    waiting.wait(mine, 1)
    waiting.write(peers, 1)
    other.copy(memory[256:260], torch.tensor([1, 2, 3, 4], dtype=torch.uint8))
    assert driver.wait(other.mark(), PATIENCE_S)
    assert not driver.is_done(waiting.mark())
    threading.Thread(target=store, args=(mine, 1)).start()
    assert driver.wait(waiting.mark(), PATIENCE_S)
    assert peers.item() == 1


@on_host_cuda
def test_a_queue_that_waits_holds_up_neither_the_other_nor_stores(setup: Setup) -> None:
    alone(setup, independent)


def circle(driver: CudaDriver) -> None:
    mine, peers = words(driver)
    for start in (0, (1 << 31) - 1, -1):
        queue = driver.queue("receive")
        store(mine, start)
        following = (start + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
        queue.wait(mine, following)
        queue.write(peers, following)
        until_idle(driver)
        assert not driver.is_done(queue.mark()), start
        store(mine, following)
        assert driver.wait(queue.mark(), PATIENCE_S), start
        assert peers.item() == following


@on_host_cuda
def test_words_count_in_a_circle(setup: Setup) -> None:
    alone(setup, circle)


def ended(driver: CudaDriver) -> None:
    driver.memory(1000)
    mine, _ = words(driver)
    for queue in (driver.queue("receive"), driver.queue("send")):
        for value in (5, 9):
            queue.wait(mine, value)
    driver.close()
    driver.close()
    store(mine, 1)  # a thread that holds a word may still give up the ring


@on_host_cuda
def test_close_ends_queues_that_wait_and_is_final(setup: Setup) -> None:
    alone(setup, ended)
    alone(replace(setup, queues=1), ended)


def kept(rank: int, world_size: int) -> None:
    """Its memory, and the words, which go with the last object that refers to them otherwise."""
    driver, of_test = driver_for(Alone()), driver_for(Alone())
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
    assert cuda_driver.poll(mark.done, PATIENCE_S)
    of_test.close()


@on_host_cuda
def test_what_a_queue_that_does_not_end_uses_stays(setup: Setup) -> None:
    world_for(setup, 1).run(host_cuda.run, setup, kept)


def copies(driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    queue = driver.queue("send")
    before = called("cuMemcpyAsync"), called("cuMemcpyBatchAsync")
    queue.copy(memory[256:257], torch.ones(1, dtype=torch.uint8))
    queue.copy(memory[:0], memory[:0])
    assert driver.wait(queue.mark(), PATIENCE_S)
    assert (called("cuMemcpyAsync"), called("cuMemcpyBatchAsync")) == (before[0] + 1, before[1])
    with pytest.raises(ValueError, match="3 bytes cannot be copied to 2"):
        queue.copy(memory[:2], memory[:3])


@on_host_cuda
def test_an_older_driver_copies_as_it_likes(setup: Setup) -> None:
    if not setup.version.startswith("12."):
        pytest.skip("only cuda-bindings 12 serve a driver that is older than CUDA 12.8")
    alone(replace(setup, driver=12070), copies)


def newer_than_driver(rank: int, world_size: int) -> list[str]:
    """Rank 0's driver is new enough."""
    said = []
    if rank == 0:
        shim().shim_version(host_cuda.NEWEST)
    handshake = Handshake(resolve(), verify=True, timeout_s=PATIENCE_S)
    for make in (lambda: Cuda(0), lambda: CudaDriver(handshake, torch.device("cpu", 0), current_stream=lambda: 0)):
        try:
            make()
            said.append("")
        except (CudaError, PeerError) as error:
            said.append(f"{type(error).__name__}: {error}")
    handshake.group.close("done")
    return said


@on_host_cuda
def test_bindings_that_are_newer_than_the_driver_are_refused_on_all_ranks_alike(setup: Setup) -> None:
    setup = replace(setup, driver=12080)
    answers = world_for(setup, 2).run(host_cuda.run, setup, newer_than_driver)
    if setup.version.startswith("12."):
        assert answers == [["", ""], ["", ""]]
        return
    why = "a driver of CUDA 12.8 has not all functions that cuda-bindings 13 calls"
    assert answers[0][0] == ""
    assert answers[1][0].startswith(f"CudaError: {why}")
    assert {together for _, together in answers} == {answers[0][1]}
    assert answers[0][1].startswith(f"PeerError: on rank 1: CudaError: {why}")


def missing(rank: int, world_size: int) -> str:
    """As bindings say it: by an error of their own."""
    with pytest.raises(CudaError) as caught:
        Cuda(0)("cuMemAlloc", 1)
    return str(caught.value)


@on_host_cuda
def test_a_function_that_the_driver_has_not_is_an_error_of_the_driver(setup: Setup) -> None:
    (said,) = world_for(setup, 1).run(host_cuda.run, setup, missing)
    assert re.match(r"cuMemAlloc on CUDA device 0: .*cuMemAlloc.* not found", said)


def fails(rank: int, world_size: int) -> None:
    with failing("cuMemAddressReserve", OUT_OF_MEMORY), pytest.raises(CudaError) as caught:
        Cuda(3)("cuMemAddressReserve", 1 << 16, 0, 0, 0)
    assert str(caught.value) == "cuMemAddressReserve on CUDA device 3: CUDA_ERROR_OUT_OF_MEMORY"


@on_host_cuda
def test_errors_of_the_driver_name_the_call(setup: Setup) -> None:
    world_for(setup, 1).run(host_cuda.run, setup, fails)


def capturing(driver: CudaDriver) -> None:
    cuda, (memory,) = driver.cuda, driver.memory(1000)
    queue = driver.queue("send")
    queue.copy(memory[:4], memory[4:8])
    mark, other = queue.mark(), driver.stream()
    for stream, use in ((driver.current_stream(), queue.begin), (other, lambda: driver.wait(mark, PATIENCE_S))):
        cuda("cuStreamBeginCapture", stream, cuda.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        with pytest.raises(CudaError, match="a CUDA graph is being captured"):
            use()
        cuda("cuStreamEndCapture", stream)
    queue.begin()
    assert driver.wait(queue.mark(), PATIENCE_S)


@on_host_cuda
def test_a_graph_that_is_being_captured_is_named(setup: Setup) -> None:
    """The caller's stream, whose graph would draw in the ring's; and any other, while which no events may be asked."""
    alone(setup, capturing)


def test_ranks_that_are_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="all ranks on one host"):
        CudaDriver(SimpleNamespace(one_host=False), HERE)  # type: ignore[arg-type]


def test_without_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(ImportError, match="pip install cuda-bindings"):
        Cuda(0)


def test_descriptors_go_to_whom_they_were_meant_for() -> None:
    shared_world(3).run(handed_over)


def handed_over(rank: int, world_size: int) -> None:
    handshake = Handshake(resolve(), verify=True, timeout_s=PATIENCE_S)
    for _ in range(3):
        mine = os.memfd_create("mine")
        os.write(mine, f"of {rank}".encode())
        found = shared_memory.exchange_files(handshake.group, mine)
        os.close(mine)
        assert sorted(found) == [r for r in range(world_size) if r != rank]
        for peer, descriptor in found.items():
            assert os.pread(descriptor, 10, 0) == f"of {peer}".encode()
            os.close(descriptor)
    handshake.group.close("done")


def memory_files() -> int:
    return sum("/memfd:" in os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


def refused(rank: int, world_size: int, call: str) -> str:
    """Rank 1's driver fails a call of opening a ring: what is said, and that nothing is left."""
    gc.freeze()  # collecting then looks at what is made from here on, and not at all of torch
    before = memory_files(), shim().shim_mapped()
    with failing(call, OUT_OF_MEMORY) if rank == 1 else contextlib.nullcontext():
        try:
            host_cuda.open_ring(resolve(), PATIENCE_S)
            said = ""
        except PeerError as error:
            said = str(error)
    gc.collect()
    assert (memory_files(), shim().shim_mapped()) == before
    return said


@on_host_cuda
@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemImportFromShareableHandle",
        "cuMemHostRegister",
    ],
)
def test_a_rank_whose_driver_fails_is_named_by_all(setup: Setup, call: str) -> None:
    for said in world_for(setup, 3).run(host_cuda.run, setup, refused, call):
        assert said == f"on rank 1: CudaError: {call} on CUDA device 0: CUDA_ERROR_OUT_OF_MEMORY"


def elsewhere(rank: int, world_size: int) -> str:
    shim().shim_alias(4096 if rank == 1 else 0)
    with pytest.raises(PeerError) as caught:
        host_cuda.open_ring(resolve(), PATIENCE_S)
    shim().shim_alias(0)
    return str(caught.value)


@on_host_cuda
def test_a_device_that_has_other_addresses_for_host_memory_is_refused(setup: Setup) -> None:
    for said in world_for(setup, 2).run(host_cuda.run, setup, elsewhere):
        assert said.startswith("on rank 1: CudaError: CUDA device 0 reaches host memory at other addresses")
