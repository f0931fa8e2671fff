"""What NCCL is asked for; the order of streams and the buffers of the padded all-to-all. `contract/` has the rest."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_driver import Agreed, FakeHandshake
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.device import Host
from fscomm.transports import nccl
from fscomm.transports.nccl import NcclTransport, PaddedTransport
from fscomm.transports.transport import Transport
from fsranks.rank_context import RankContext, resolve


class Backend:
    """Of the only rank; what it exchanges is issued to the current stream."""

    mem_allocator = "the backend's"

    def __init__(self) -> None:
        self.registered: list[tuple[object, bool]] = []

    def abort(self) -> None:
        pass

    def alltoall_base(self, out: torch.Tensor, inp: torch.Tensor, *splits: list[int]) -> "FakeWork":
        return FakeWork(lambda: out.copy_(inp))

    def register_mem_pool(self, pool: object, symm: bool) -> None:
        self.registered.append((pool, symm))


class FakeWork:
    """Waiting for it orders the current stream, as NCCL's does: the exchange runs in its place there."""

    def __init__(self, exchange: Callable[[], Any]) -> None:
        self._exchange = exchange

    def wait(self) -> None:
        FakeStream.current.issue("exchange", self._exchange)


class FakeStream:
    """Runs nothing until told to, and notes what was issued to it; `current` is the innermost in use."""

    current: "FakeStream"

    def __init__(self) -> None:
        self.todo: list[tuple[str, Callable[[], Any]]] = []

    def issue(self, what: str, run: Callable[[], Any]) -> None:
        self.todo.append((what, run))


class Streams(Host):
    def mark(self) -> Any:
        return FakeStream.current

    def is_done(self, mark: Any) -> bool:
        return not mark.todo


def alone(agreed: Agreed) -> Any:
    return FakeHandshake(agreed, 0, 1, PATIENCE_S)


def test_an_operation_stays_in_one_stream_and_the_next_takes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight may run as late as it likes: nothing of it was overwritten by what was issued meanwhile."""
    streams, caller = [FakeStream(), FakeStream()], FakeStream()
    made = iter(streams)

    @contextlib.contextmanager
    def in_stream(stream: FakeStream, where: torch.device) -> Iterator[None]:
        FakeStream.current = stream
        yield
        FakeStream.current = caller

    def copy(out: torch.Tensor, inp: torch.Tensor) -> None:
        FakeStream.current.issue("copy", lambda: out.copy_(inp))

    monkeypatch.setattr(nccl, "_stream", lambda where: next(made))
    monkeypatch.setattr(nccl, "_in_stream", in_stream)
    agreed = Agreed()
    agreed.largest = 60
    transport = PaddedTransport(Backend(), alone(agreed), Streams(), copy=copy)
    rows = [torch.randn(k, 5) for k in range(4)]
    outs = [torch.full_like(inp, torch.nan) for inp in rows]
    handles = [transport.all_to_all_v(out, inp, [k], [k]) for k, (out, inp) in enumerate(zip(outs, rows, strict=True))]
    assert not any(handle.done() for handle in handles)
    whats = [[what for what, _ in stream.todo] for stream in streams]
    assert whats == [
        ["exchange", "copy", "exchange", "copy"],
        ["copy", "exchange", "copy"] * 2,
    ]  # the first has no rows
    assert caller.todo == []
    while any(stream.todo for stream in streams):  # in turn, so that each could overwrite what the other uses
        for stream in streams:
            for _, run in stream.todo[:1]:
                run()
            del stream.todo[:1]
    for handle, out, inp in zip(handles, outs, rows, strict=True):
        handle.wait()
        assert torch.equal(out, inp)


def test_buffers_on_a_gpu_are_registered_as_windows_once_they_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    entered: list[object] = []

    @contextlib.contextmanager
    def use(pool: object, where: torch.device) -> Iterator[None]:
        entered.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "MemPool", lambda allocator: made.append(allocator) or len(made))
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    backend = Backend()
    buffers = nccl.Registered(backend, torch.device("meta"), 2)
    shapes = []
    for largest in (10, 4096, 5000, 100):
        buffers.grow(largest)
        first, second = buffers.next(), buffers.next()
        assert first is not second
        assert buffers.next() is first
        shapes.append(tuple(second.sent.shape))
        assert second.received.shape == second.sent.shape
    assert shapes == [(2, 4096), (2, 4096), (2, 8192), (2, 8192)]
    assert made == ["the backend's"] * 2
    assert backend.registered == [(pool, True) for pool in entered]


@pytest.mark.parametrize(
    "transport",
    [
        NcclTransport(Backend(), alone(Agreed()), torch.device("cpu")),
        PaddedTransport(Backend(), alone(Agreed()), Host()),
    ],
    ids=lambda transport: transport.name,
)
def test_tensors_elsewhere_are_refused(transport: Transport) -> None:
    rows = torch.zeros(1, 1, device="meta")
    with pytest.raises(ValueError, match="made for tensors on cpu, got one on meta"):
        transport.all_to_all_v(rows, rows, [1], [1])


class FakeNccl:
    """A ProcessGroupNCCL that only says how it was made."""

    NCCL_CTA_POLICY_ZERO = 2

    class Options:
        def __init__(self) -> None:
            self.config = SimpleNamespace(cta_policy=0)

    def __init__(self, store: dist.Store, rank: int, size: int, options: Any) -> None:
        self.made = (type(store), rank, size, options)
        self.calls: list[object] = []
        self._set_sequence_number_for_group = lambda: self.calls.append("numbered")
        self.eager_connect_single_device = self.calls.append


def test_a_backend_is_made_with_patience_and_without_ctas_if_asked() -> None:
    shared_world(2).run(made)


def made(rank: int, world_size: int) -> None:
    context, device = resolve(), torch.device("cuda", 0)

    def make(zero_cta: bool, context: RankContext = context) -> Any:
        return nccl.nccl_backend(context, device, timeout_s=PATIENCE_S, zero_cta=zero_cta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_nccl_available", lambda: False)
        with pytest.raises(RuntimeError, match="install a CUDA build of torch"):
            make(False)
    with pytest.raises(ValueError, match="process group"):
        make(False, RankContext(rank=0, world_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
        for zero_cta in (False, True):
            backend = make(zero_cta)
            store, *ranks, options = backend.made
            assert (store, ranks) == (dist.PrefixStore, [rank, world_size])
            assert options.config.cta_policy == (2 if zero_cta else 0)
            assert options._timeout.days >= 30
            assert backend.calls == ["numbered", device]
        patch.setattr(FakeNccl, "Options", lambda: SimpleNamespace(config=object()))
        with pytest.raises(RuntimeError, match="cannot ask NCCL for zero-CTA"):
            make(True)
