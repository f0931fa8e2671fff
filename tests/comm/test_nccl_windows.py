"""Rings over NCCL's one-sided operations: a fake of them in one process, with all ranks on one fake CUDA."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import Event, FakeCuda
from hypothesis import given, settings
from hypothesis import strategies as st

from fscomm.transports.cuda_api import Cuda
from fscomm.transports.cuda_driver import CudaStreams
from fscomm.transports.nccl_windows import NcclWindows, bindings
from fscomm.transports.ring_plan import plan, room_for

SLOTS, SLOT_BYTES = 2, 64
HERE = torch.device("cpu")


class Network:
    """A communicator, as all its ranks see it."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.windows: dict[int, list[torch.Tensor]] = defaultdict(list)  # by rank
        self.signals: dict[tuple[int, int], int] = defaultdict(int)  # at a rank, from a rank
        self.aborted: list[int] = []


class FakeCommunicator:
    """Its operations run one after the other, whatever their stream: the most that NCCL may order."""

    host_rma_support = True

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank = network, rank
        self._awaited: dict[int, int] = defaultdict(int)
        self._last: Event | None = None

    def register_window(self, memory: torch.Tensor, flags: str) -> SimpleNamespace:
        assert flags == "symmetric"
        self.network.windows[self.rank].append(memory)
        return SimpleNamespace(number=len(self.network.windows[self.rank]) - 1)

    def put_signal(self, local: torch.Tensor, peer: int, window: Any, offset: int, *, stream: int) -> None:
        assert any(
            memory.data_ptr() <= local.data_ptr() < memory.data_ptr() + len(memory)
            for memory in self.network.windows[self.rank]
        ), "the local buffer is not registered"

        def run() -> None:
            self.network.windows[peer][window.number][offset : offset + len(local)] = local
            self.network.signals[peer, self.rank] += 1

        self._issue("put", run, stream)

    def signal(self, peer: int, *, stream: int) -> None:
        def run() -> None:
            self.network.signals[peer, self.rank] += 1

        assert self.network.windows[self.rank], "no window was registered, so nothing counts signals"
        self._issue("signal", run, stream)

    def wait_signal(self, wanted: SimpleNamespace, *, stream: int) -> None:
        assert wanted.op_count > 0
        self._awaited[wanted.peer] += wanted.op_count
        count, at = self._awaited[wanted.peer], (self.rank, wanted.peer)
        self._issue("wait", lambda: None, stream, lambda: self.network.signals[at] >= count)

    def abort(self) -> None:
        self.network.aborted.append(self.rank)

    def _issue(
        self, what: str, run: Callable[[], object], stream: int, ready: Callable[[], bool] = lambda: True
    ) -> None:
        before, fake = self._last, self.network.fake

        def in_turn() -> bool:
            return (before is None or before.stream.done >= before.number) and ready()

        self._last = fake.issue(fake.streams[stream], what, run, in_turn)


class Fleet:
    """The fabrics of all ranks. `made` communicators come in the order in which ranks ask: each asks for two."""

    def __init__(self, size: int) -> None:
        self.fake, self.size = FakeCuda(), size
        self.networks = [Network(self.fake) for _ in range(2)]
        self.fabrics = [self._fabric(rank) for rank in range(size)]
        self._put = [[0] * size for _ in range(size)]  # [of][to]
        self._taken = [[0] * size for _ in range(size)]

    def _fabric(self, rank: int) -> NcclWindows:
        networks = iter(self.networks)

        def init(world_size: int, rank: int, unique: bytes) -> FakeCommunicator:
            assert (world_size, unique) == (self.size, b"\0" * 128)
            return FakeCommunicator(next(networks), rank)

        nccl = SimpleNamespace(
            empty=lambda nbytes, dtype, device: torch.full((nbytes,), 0xCC, dtype=dtype, device=device),
            Communicator=SimpleNamespace(init=init),
            UniqueId=SimpleNamespace(from_bytes=bytes),
            get_unique_id=lambda: b"\0" * 128,
            WindowFlag=SimpleNamespace(COLL_SYMMETRIC="symmetric"),
            WaitSignalDesc=SimpleNamespace,
        )
        group = SimpleNamespace(all_gather=lambda mine: np.stack([mine] * self.size))
        handshake: Any = SimpleNamespace(rank=rank, world_size=self.size, group=group)
        streams = CudaStreams(HERE, cuda=Cuda(0, self.fake), current_stream=lambda: self.fake.caller)  # type: ignore[arg-type, return-value]
        return NcclWindows(handshake, streams, nccl=nccl, slots=SLOTS, slot_bytes=SLOT_BYTES)

    def issue(self, rank: int, sent: list[torch.Tensor], received: list[torch.Tensor]) -> Any:
        """As a ring does it."""
        fabric, slot_bytes = self.fabrics[rank], self.fabrics[rank].slot_bytes
        fabric.begin()
        fabric.copy(received[rank], sent[rank])
        for chunk in plan(rank, [len(b) for b in sent], [len(b) for b in received], slot_bytes):
            part, peer = slice(chunk.start, chunk.stop), chunk.peer
            if chunk.is_put:
                number = self._put[rank][peer]
                if room := room_for(number, fabric.slots):
                    fabric.await_room(peer, room)
                fabric.put(peer, number % fabric.slots, sent[peer][part])
                self._put[rank][peer] += 1
            else:
                number = self._taken[rank][peer]
                fabric.await_arrival(peer, number + 1)
                fabric.take(peer, number % fabric.slots, received[peer][part])
                self._taken[rank][peer] += 1
        return fabric.mark()


class Exchange:
    """sizes: [W senders][W receivers] bytes."""

    def __init__(self, fleet: Fleet, sizes: list[list[int]], seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.fleet = fleet
        self.sent = [
            [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=random) for n in of_rank] for of_rank in sizes
        ]
        self.received = [
            [torch.full((sizes[of][to],), 0x7F, dtype=torch.uint8) for of in range(fleet.size)]
            for to in range(fleet.size)
        ]

    def issue(self, rank: int) -> Any:
        return self.fleet.issue(rank, self.sent[rank], self.received[rank])

    def check(self) -> None:
        for to in range(self.fleet.size):
            for of in range(self.fleet.size):
                assert torch.equal(self.received[to][of], self.sent[of][to]), (of, to)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rows_arrive_whatever_the_sizes_and_whoever_comes_first(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 4))
    sizes = st.lists(
        st.lists(st.integers(0, 5 * SLOT_BYTES), min_size=size, max_size=size), min_size=size, max_size=size
    )
    fleet = Fleet(size)
    exchanges = [Exchange(fleet, data.draw(sizes), seed) for seed in range(2)]
    marks = []
    for exchange in exchanges:  # ranks issue both, one after the other
        marks += [(rank, exchange.issue(rank)) for rank in data.draw(st.permutations(range(size)))]
    for rank, mark in marks:
        assert fleet.fabrics[rank].wait(mark, 5.0)
        assert fleet.fabrics[rank].is_done(mark)
    for exchange in exchanges:
        exchange.check()


def test_slots_grow_and_counts_go_on() -> None:
    fleet = Fleet(2)
    for seed, slot_bytes in enumerate((SLOT_BYTES, 4 * SLOT_BYTES, 4 * SLOT_BYTES, 64 * SLOT_BYTES)):
        for fabric in fleet.fabrics:
            if fabric.slot_bytes != slot_bytes:
                fabric.resize(slot_bytes)
        exchange = Exchange(fleet, [[5, 900], [901, 64]], seed)
        marks = [exchange.issue(rank) for rank in range(2)]
        assert all(fabric.wait(mark, 5.0) for fabric, mark in zip(fleet.fabrics, marks, strict=True))
        exchange.check()


def test_a_slot_is_not_filled_again_before_it_was_emptied() -> None:
    fleet = Fleet(2)
    rows = [torch.full((SLOT_BYTES,), number, dtype=torch.uint8) for number in range(3)]
    for number in range(2):
        fleet.fabrics[0].put(1, number, rows[number])
    fleet.fabrics[0].await_room(1, 1)
    fleet.fabrics[0].put(1, 0, rows[2])
    mark = fleet.fabrics[0].mark()
    inbox = fleet.fabrics[1]._inbox
    assert not fleet.fabrics[0].is_done(mark)
    assert fleet.fabrics[0].behind({1: (0, 1)}) == [1]
    assert inbox[:SLOT_BYTES].tolist() == rows[0].tolist()
    out = torch.empty(SLOT_BYTES, dtype=torch.uint8)
    fleet.fabrics[1].await_arrival(0, 1)
    fleet.fabrics[1].take(0, 0, out)
    assert fleet.fabrics[0].wait(mark, 5.0)
    assert fleet.fabrics[0].behind({1: (0, 1)}) == []
    assert out.tolist() == rows[0].tolist()
    assert inbox[:SLOT_BYTES].tolist() == rows[2].tolist()


def test_who_is_waited_for_is_named() -> None:
    fleet = Fleet(3)
    first = fleet.fabrics[0]
    first.await_arrival(2, 1)
    first.await_arrival(1, 1)
    assert first.behind({1: (1, 0), 2: (1, 0)}) == [2]
    fleet.fabrics[2].put(0, 0, torch.zeros(1, dtype=torch.uint8))
    assert first.behind({1: (1, 0), 2: (1, 0)}) == [1]


def test_poison_aborts_once() -> None:
    fleet = Fleet(2)
    assert not fleet.fabrics[0].poisoned()
    fleet.fabrics[0].poison()
    fleet.fabrics[0].close()
    assert fleet.fabrics[0].poisoned()
    assert not fleet.fabrics[1].poisoned()
    assert [network.aborted for network in fleet.networks] == [[0], [0]]


def test_without_one_sided_operations_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(2)
    monkeypatch.setattr(FakeCommunicator, "host_rma_support", False)
    with pytest.raises(RuntimeError, match="NCCL >= 2"):
        fleet._fabric(0)
    assert fleet.networks[0].aborted == [0]


def test_without_nccl4py_it_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="pip install 'nccl4py"):
        bindings()
