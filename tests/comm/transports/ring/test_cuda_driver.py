"""The copy engine on fake CUDA: the contract between processes that share its memory, and the order within a stream."""

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transport_contract as contract
from fake_cuda import FakeCuda
from transport_jobs import MORE, AllToAll, after_agreement, one_pair
from worlds import World, shared_world

from fscomm.transports.handshake import Handshake
from fscomm.transports.ring import descriptors
from fscomm.transports.ring.cuda_api import Cuda, CudaError
from fscomm.transports.ring.cuda_driver import CudaDriver
from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.streams import StreamFabric
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext, resolve

SIZE = 3
TIMEOUT_S = 60
NAME = "copy-engine on fake CUDA"
HERE = torch.device("cpu")


def driver_on(fake: FakeCuda, handshake: Handshake) -> CudaDriver:
    return CudaDriver(handshake, HERE, cuda=Cuda(0, fake), current_stream=lambda: fake.caller)  # type: ignore[arg-type]


def open_ring(context: RankContext, timeout_s: float, verify: bool) -> Transport:
    if context.world_size == 1:
        return AloneTransport(NAME)
    handshake = Handshake(context, verify=verify, timeout_s=timeout_s)
    return Ring(StreamFabric(driver_on(FakeCuda(), handshake)), handshake, name=NAME)


def run(rank: int, world_size: int, case: Any, *args: object) -> None:
    MORE[NAME] = open_ring
    case(rank, world_size, NAME, *args)


@pytest.mark.parametrize(
    ("case", "args"),
    [
        (contract.many_in_flight, (False,)),
        (contract.growth, (True,)),
        (contract.two_classes, ()),
        (contract.closed, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_contract(case: Any, args: tuple[object, ...]) -> None:
    shared_world(SIZE).run(run, case, *args, timeout_s=TIMEOUT_S)


def test_nothing_is_left_after_close() -> None:
    shared_world(2).run(run, contract.nothing_left, False, timeout_s=TIMEOUT_S)


def test_a_killed_rank_is_named() -> None:
    with World(SIZE) as world:
        found = world.run(killed, lost=[1])
    assert all("rank 1" in text for text in (found[0], found[2]))


def killed(rank: int, world_size: int) -> str:
    ring = open_ring(resolve(), 30.0, True)
    jobs = [AllToAll("killed", [[400] * world_size] * world_size, (64,)) for _ in range(2)]
    jobs[0].run(ring)
    if rank == 1:
        with after_agreement(lambda: signal.raise_signal(signal.SIGKILL)):
            jobs[1].begin(ring)
    with pytest.raises(PeerError) as caught:
        jobs[1].run(ring)
    ring.close("lost a rank")
    return str(caught.value)


class Alone:
    """A handshake of one rank with itself, for a driver whose words the test writes."""

    rank, world_size, timeout_s, one_host = 0, 1, 1.0, True

    class group:
        rank, world_size, timeout_s = 0, 1, 1.0

        @staticmethod
        def all_gather(mine: Any) -> Any:
            return mine[None]


@pytest.fixture
def fake() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def driver(fake: FakeCuda) -> CudaDriver:
    return driver_on(fake, Alone())  # type: ignore[arg-type]


def words(memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return memory[:4].view(torch.int32), memory[128:132].view(torch.int32)


def test_what_is_issued_runs_behind_the_caller_and_in_order(fake: FakeCuda, driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    mine, peers = words(memory)
    assert memory.tolist() == [0] * 1000
    queue = driver.queue("send")
    opened = threading.Event()
    fake.hold(fake.caller, opened.is_set)
    rows = torch.arange(16, dtype=torch.uint8)
    fake.log.clear()
    queue.begin()
    queue.wait(mine, 2)
    queue.copy(memory[256:272], rows)
    queue.write(peers, 7)
    mark = queue.mark()
    assert not driver.is_done(mark)
    assert fake.log == []
    opened.set()
    assert not driver.wait(mark, 0.01)
    number = fake.streams.index(queue.stream)
    assert fake.log == [(0, "held"), (number, "behind")]
    driver.write_now(mine, 1)
    assert not driver.wait(mark, 0.01)
    assert driver.read_now(peers) == 0
    driver.write_now(mine, 2)
    assert driver.wait(mark, 1.0)
    assert driver.read_now(peers) == 7
    assert torch.equal(memory[256:272], rows)
    assert [what for of, what in fake.log if of == number] == ["behind", "wait", "batch copy", "write"]
    assert fake.log.count((0, "behind")) == 1  # the caller goes on behind the mark
    driver.close()
    assert fake.mapped == {}


def test_a_queue_that_waits_holds_up_neither_the_other_nor_words_written_now(
    fake: FakeCuda, driver: CudaDriver
) -> None:
    (memory,) = driver.memory(1000)
    mine, peers = words(memory)
    waiting, other = driver.queue("receive"), driver.queue("send")
    waiting.wait(mine, 1)
    waiting.write(peers, 1)
    other.copy(memory[256:260], torch.tensor([1, 2, 3, 4], dtype=torch.uint8))
    assert driver.wait(other.mark(), 1.0)
    assert not driver.is_done(waiting.mark())
    threading.Thread(target=driver.write_now, args=(mine, 1)).start()
    assert driver.wait(waiting.mark(), 5.0)
    assert driver.read_now(peers) == 1
    driver.close()


@pytest.mark.parametrize("start", [0, (1 << 31) - 1, -1])
def test_words_count_in_a_circle(driver: CudaDriver, start: int) -> None:
    (memory,) = driver.memory(1000)
    mine, _ = words(memory)
    queue = driver.queue("receive")
    driver.write_now(mine, start)
    following = (start + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
    queue.wait(mine, following)
    mark = queue.mark()
    assert not driver.is_done(mark)
    driver.write_now(mine, following)
    assert driver.is_done(mark)
    assert driver.read_now(mine) == following
    driver.close()


def test_close_ends_a_queue_that_waits_and_is_final(fake: FakeCuda, driver: CudaDriver) -> None:
    (memory,) = driver.memory(1000)
    mine, _ = words(memory)
    queue = driver.queue("receive")
    for value in (5, 9):
        queue.wait(mine, value)
    assert fake.mapped
    driver.close()
    assert fake.mapped == {}
    assert not queue.stream.todo
    driver.close()
    driver.write_now(mine, 1)  # nobody writes into memory that is gone
    with pytest.raises(PeerError, match="given back"):
        driver.read_now(mine)


def test_memory_under_a_queue_that_does_not_end_stays(
    fake: FakeCuda, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fscomm.transports.ring.cuda_driver._END_S", 0.01)
    driver.memory(1000)
    queue = driver.queue("receive")
    fake.hold(queue.stream, lambda: False)
    driver.close()
    assert fake.mapped


def test_words_of_memory_that_was_replaced_can_still_be_written(fake: FakeCuda, driver: CudaDriver) -> None:
    """By a thread that gives up the ring just when it grows."""
    (old,) = driver.memory(1000)
    (new,) = driver.memory(1 << 20)
    assert len(new) == 1 << 20
    driver.write_now(words(old)[0], 3)
    assert driver.read_now(words(old)[0]) == 3
    assert driver.read_now(words(new)[0]) == 0
    driver.close()


def test_an_older_driver_copies_as_it_likes() -> None:
    fake = FakeCuda(version=12070)
    driver = driver_on(fake, Alone())  # type: ignore[arg-type]
    (memory,) = driver.memory(1000)
    queue = driver.queue("send")
    queue.copy(memory[256:257], torch.ones(1, dtype=torch.uint8))
    queue.copy(memory[:0], memory[:0])
    assert driver.wait(queue.mark(), 1.0)
    assert [what for _, what in fake.log if "copy" in what] == ["copy"]
    with pytest.raises(ValueError, match="3 bytes cannot be copied to 2"):
        queue.copy(memory[:2], memory[:3])
    driver.close()


def test_errors_of_the_driver_name_the_call() -> None:
    fake = FakeCuda()
    cuda = Cuda(3, fake)
    fake.lacks_memory = True
    with pytest.raises(CudaError, match="cuMemCreate on CUDA device 3: CUDA_ERROR_OUT_OF_MEMORY"):
        cuda("cuMemCreate", 1 << 16, None, 0)


def test_ranks_that_are_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="all ranks on one host"):
        CudaDriver(SimpleNamespace(one_host=False), HERE)  # type: ignore[arg-type]


def test_without_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(ImportError, match="pip install cuda-bindings"):
        Cuda(0)


def test_a_rank_without_memory_is_named_everywhere() -> None:
    shared_world(SIZE).run(without_memory)


def without_memory(rank: int, world_size: int) -> None:
    handshake = Handshake(resolve(), verify=True, timeout_s=10.0)
    fake = FakeCuda(lacks_memory=rank == 1)
    driver = driver_on(fake, handshake)
    before = len(os.listdir("/proc/self/fd"))
    match = "rank 1 could not make memory" + (".*OUT_OF_MEMORY" if rank == 1 else "")
    with pytest.raises(PeerError, match=match):
        driver.memory(1000)
    assert len(os.listdir("/proc/self/fd")) == before
    driver.close()
    handshake.group.close("done")


def test_descriptors_go_to_whom_they_were_meant_for() -> None:
    shared_world(4).run(handed_over)


def handed_over(rank: int, world_size: int) -> None:
    handshake = Handshake(resolve(), verify=True, timeout_s=10.0)
    for _ in range(3):
        mine = os.memfd_create("mine")
        os.write(mine, f"of {rank}".encode())
        found = descriptors.exchange(handshake.group, mine)
        os.close(mine)
        assert sorted(found) == [r for r in range(world_size) if r != rank]
        for peer, descriptor in found.items():
            assert os.pread(descriptor, 10, 0) == f"of {peer}".encode()
            os.close(descriptor)
    handshake.group.close("done")


def test_two_rings_may_grow_at_once_in_any_order() -> None:
    shared_world(2).run(growing_at_once)


def growing_at_once(rank: int, world_size: int) -> None:
    """Each rank begins with the other ring, and does not come to the second before the first is through."""
    rings = [open_ring(resolve(), float(TIMEOUT_S), True) for _ in range(2)]
    jobs = [AllToAll("growing", one_pair(world_size, 1 << 14), (64,)) for _ in rings]
    dist.barrier()
    threads = [threading.Thread(target=job.run, args=(ring,)) for ring, job in zip(rings, jobs, strict=True)]
    for thread in threads if rank else threads[::-1]:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    for ring, job in zip(rings, jobs, strict=True):
        job.check()
        ring.close("done")
