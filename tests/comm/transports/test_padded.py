"""The padded all-to-all over a gloo backend, its plan, and the order of its streams."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import over_gloo
import pytest
import torch
import transport_contract as contract
from over_gloo import PADDED
from patience import PATIENCE_S
from transport_jobs import AllToAll, one_pair
from worlds import shared_world

from fscomm.transports import nccl
from fsranks.rank_context import resolve

SIZE = 3


@pytest.mark.parametrize(
    ("case", "args"),
    [
        pytest.param(contract.all_kinds, (True,), marks=pytest.mark.long),
        (contract.many_in_flight, (False,)),
        (contract.growth, (True,)),
        pytest.param(contract.giant_pair, (), marks=pytest.mark.long),
        (contract.done_without_wait, ()),
        (contract.kept_alive, ()),
        pytest.param(contract.two_classes, (), marks=pytest.mark.long),
        (contract.autograd, ()),
        (contract.closed, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_contract(case: Any, args: tuple[object, ...]) -> None:
    shared_world(SIZE).run(over_gloo.run, case, PADDED, *args)


def test_nothing_is_left_after_close() -> None:
    shared_world(2).run(over_gloo.run, contract.nothing_left, PADDED, True)


def test_buffers_are_as_large_on_all_ranks_and_grow_only_when_they_must() -> None:
    for slots in shared_world(SIZE).run(grown):
        assert slots == [4096, 4096, 1 << 14, 1 << 14, 1 << 14]


def grown(rank: int, world_size: int) -> list[int]:
    transport = over_gloo.open_padded(resolve(), PATIENCE_S, True)
    found = []
    for rows in (0, 1024, 1025 * 3, 7, 4096):  # float32
        AllToAll("growing", one_pair(world_size, rows)).run(transport)
        found.append(transport._registered._slot)  # type: ignore[attr-defined]
    transport.close("done")
    return found


class FakeStream:
    """Runs nothing until told to, and notes what was issued to it; `current` is the innermost in use."""

    current: "FakeStream"

    def __init__(self, name: str) -> None:
        self.name = name
        self.todo: list[tuple[str, Callable[[], Any]]] = []

    def issue(self, what: str, run: Callable[[], Any]) -> None:
        self.todo.append((what, run))


class FakeWork:
    """Waiting for it orders the current stream, as NCCL's does: the exchange runs in its place there."""

    def __init__(self, exchange: Callable[[], Any]) -> None:
        self._exchange = exchange

    def wait(self) -> None:
        FakeStream.current.issue("exchange", self._exchange)


class FakeDevice:
    where = torch.device("cpu")

    def mark(self) -> object:
        return (FakeStream.current, len(FakeStream.current.todo))

    def is_done(self, mark: tuple[FakeStream, int]) -> bool:
        return not mark[0].todo

    def after(self, mark: object) -> None:
        del mark


def test_an_operation_stays_in_one_stream_and_the_next_takes_the_other() -> None:
    """What is in flight may run as late as it likes: nothing of it was overwritten by what was issued meanwhile."""
    for whats in shared_world(2).run(streamed):
        for what in whats:
            filled = what.index("exchange")
            assert what[:filled] == ["copy"] * filled
            assert what.count("exchange") == 2  # of four operations


def streamed(rank: int, world_size: int) -> list[list[str]]:
    streams = [FakeStream("first"), FakeStream("second")]
    caller = FakeStream("caller")
    FakeStream.current = caller

    @contextlib.contextmanager
    def in_stream(stream: FakeStream, where: torch.device) -> Iterator[None]:
        FakeStream.current = stream
        yield
        FakeStream.current = caller

    def copy(out: torch.Tensor, inp: torch.Tensor) -> None:
        FakeStream.current.issue("copy", lambda: out.copy_(inp))

    with pytest.MonkeyPatch.context() as patch:
        made = iter(streams)
        patch.setattr(nccl, "_stream", lambda where: next(made))
        patch.setattr(nccl, "_in_stream", in_stream)
        transport = over_gloo.open_padded(resolve(), PATIENCE_S, True)
        carrier = transport._backend  # type: ignore[attr-defined]

        class Late:
            """Issues to a stream what the real backend would do."""

            abort = carrier.abort

            def alltoall_base(self, out: torch.Tensor, inp: torch.Tensor, *splits: list[int]) -> FakeWork:
                return FakeWork(lambda: carrier.alltoall_base(out, inp, *splits).wait())

        transport._backend = Late()  # type: ignore[attr-defined]
        transport._device = FakeDevice()  # type: ignore[attr-defined]
        transport._copy = copy  # type: ignore[attr-defined]
        jobs = [AllToAll("streamed", [[k + 3] * world_size] * world_size, (5,)) for k in range(4)]
        handles = [job.begin(transport) for job in jobs]
        assert not any(handle.done() for handle in handles)
        whats = [[what for what, _ in stream.todo] for stream in streams]
        while any(stream.todo for stream in streams):  # an operation of each in turn, as NCCL runs them in order
            for stream in streams:
                over = [what for what, _ in stream.todo].index("exchange") + 1 + world_size
                for _, run in stream.todo[:over]:
                    run()
                del stream.todo[:over]
        for handle, job in zip(handles, jobs, strict=True):
            handle.wait()
            job.check()
        transport.close("done")
    return whats


class FakePool:
    made: list[object]

    def __init__(self, allocator: object) -> None:
        FakePool.made.append(allocator)


def test_buffers_on_a_gpu_are_registered_as_windows_once_they_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    FakePool.made = []
    entered: list[object] = []
    registered: list[tuple[object, bool, int]] = []

    class Backend:
        mem_allocator = "the backend's"

        def register_mem_pool(self, pool: object, symm: bool) -> None:
            registered.append((pool, symm, len(buffers._pairs)))

    @contextlib.contextmanager
    def use(pool: object, where: torch.device) -> Iterator[None]:
        entered.append((pool, where))
        yield

    monkeypatch.setattr(torch.cuda, "MemPool", FakePool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    buffers = nccl.Registered(Backend(), torch.device("meta"), 2)
    for largest in (10, 4096, 5000, 100):
        buffers.grow(largest)
    assert FakePool.made == ["the backend's"] * 2
    assert [(symm, pairs) for _, symm, pairs in registered] == [(True, 2)] * 2
    assert [pool for pool, _, _ in registered] == [pool for pool, _ in entered]  # type: ignore[misc]
    first, second = buffers.next(), buffers.next()
    assert first is not second
    assert buffers.next() is first
    assert first.sent.shape == first.received.shape == (2, 8192)
