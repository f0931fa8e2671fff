"""What NCCL is asked for; the order of streams and the buffers of the padded all-to-all. `contract/` has the rest."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_driver import Board, FakeGroup
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.device import Host
from fscomm.transports import nccl, together
from fscomm.transports.nccl import NcclTransport, PaddedTransport
from fscomm.transports.together import StepFailed
from fscomm.transports.transport import Transport
from fsranks.control_group import ControlGroup
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

    def __enter__(self) -> None:
        self._before, FakeStream.current = FakeStream.current, self

    def __exit__(self, *_: object) -> None:
        FakeStream.current = self._before

    def issue(self, what: str, run: Callable[[], Any]) -> None:
        self.todo.append((what, run))


class Streams(Host):
    """It has given out `made`."""

    def __init__(self) -> None:
        self.made: list[FakeStream] = []

    def stream(self) -> "FakeStream":
        self.made.append(FakeStream())
        return self.made[-1]

    def mark(self) -> Any:
        return FakeStream.current

    def is_done(self, mark: Any) -> bool:
        return not mark.todo


def alone() -> Any:
    return FakeGroup(Board(), 0, 1, PATIENCE_S)


def test_an_operation_stays_in_one_stream_and_the_next_takes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight may run as late as it likes: nothing of it was overwritten by what was issued meanwhile."""
    device, caller = Streams(), FakeStream()
    monkeypatch.setattr(FakeStream, "current", caller, raising=False)

    def copy(out: torch.Tensor, inp: torch.Tensor) -> None:
        FakeStream.current.issue("copy", lambda: out.copy_(inp))

    transport = PaddedTransport(Backend(), alone(), device, copy=copy)
    streams = device.made
    rows = [torch.randn(k, 5) for k in range(4)]
    outs = [torch.full_like(inp, torch.nan) for inp in rows]
    handles = [
        transport.all_to_all_v(out, inp, [k], [k], largest_bytes=60)
        for k, (out, inp) in enumerate(zip(outs, rows, strict=True))
    ]
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
    for largest in (10, 5000):
        buffers.grow(largest)
        first, second = buffers.next(), buffers.next()
        assert first is not second
        assert buffers.next() is first
        shapes.append([tuple(each.shape) for each in second])
    assert shapes == [[(2, 4096)] * 2, [(2, 8192)] * 2]
    assert made == ["the backend's"] * 2
    assert backend.registered == [(pool, True) for pool in entered]


@pytest.mark.parametrize(
    "transport",
    [
        NcclTransport(Backend(), alone(), torch.device("cpu")),
        PaddedTransport(Backend(), alone(), Host()),
    ],
    ids=lambda transport: transport.name,
)
def test_tensors_elsewhere_are_refused(transport: Transport) -> None:
    rows = torch.zeros(1, 1, device="meta")
    with pytest.raises(ValueError, match="made for tensors on cpu, got one on meta"):
        transport.all_to_all_v(rows, rows, [1], [1], largest_bytes=4)


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


def test_a_backend_is_made_with_patience_and_without_ctas_and_with_priority_if_asked() -> None:
    shared_world(2).run(made)


def made(rank: int, world_size: int) -> None:
    context, device = resolve(), torch.device("cuda", 0)
    group = ControlGroup(context, timeout_s=PATIENCE_S)

    def make(zero_cta: bool = False, context: RankContext = context, *, urgent: bool = False) -> Any:
        return nccl.nccl_backend(context, group, device, zero_cta=zero_cta, urgent=urgent)

    with pytest.raises(StepFailed, match="on ranks 0, 1: ValueError: NCCL needs a process group"):
        make(False, RankContext(rank=0, world_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NCCL_CTA_POLICY", raising=False)
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
        patch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
        patch.setattr(together, "gpu_id", lambda where: f"GPU {rank}")
        for zero_cta, urgent in ((False, False), (False, True), (True, False)):
            backend = make(zero_cta, urgent=urgent)
            store, *ranks, options = backend.made
            assert (store, ranks) == (dist.PrefixStore, [rank, world_size])
            assert options.config.cta_policy == (2 if zero_cta else 0)
            assert options.is_high_priority_stream == urgent
            assert options._timeout.days >= 30
            assert backend.calls == ["numbered", device]
        refuse(patch, rank, make)
    group.close("done")


def share_in_tests(patch: pytest.MonkeyPatch, rank: int, make: Callable[..., Any]) -> None:
    """By a switch that all ranks set, each with another host for NCCL; never with buffers of one NVLink domain."""
    shared = pytest.raises(StepFailed, match="ranks 0, 1 share a GPU: NCCL wants a GPU for each rank")
    patch.setenv("NCCL_HOSTID", f"of rank {rank}")
    patch.setenv("FREESCALE_SHARED_GPU", "1" if rank else "0")
    with shared:
        make()
    patch.setenv("FREESCALE_SHARED_GPU", "1")
    make()
    with shared:
        make(True)
    patch.setenv("NCCL_HOSTID", "of both")
    with pytest.raises(StepFailed, match="SHARED_GPU=1, but ranks 0, 1 have the same NCCL_HOSTID"):
        make()
    patch.delenv("FREESCALE_SHARED_GPU")


def refuse(patch: pytest.MonkeyPatch, rank: int, make: Callable[..., Any]) -> None:
    """What one rank alone lacks is told to all."""
    patch.setattr(dist, "is_nccl_available", lambda: rank == 0)
    with pytest.raises(StepFailed, match=r"^on rank 1: RuntimeError: torch .* install a CUDA build of torch"):
        make()
    patch.setattr(dist, "is_nccl_available", lambda: True)
    for policy, refused in (("1", True), ("2", False), ("NCCL_CTA_POLICY_ZERO", False), ("3", False)):
        patch.setenv("NCCL_CTA_POLICY", policy if rank else "2")
        told = pytest.raises(StepFailed, match=rf"on rank 1: RuntimeError: NCCL_CTA_POLICY={policy} overrides .* unset")
        with told if refused else contextlib.nullcontext():
            make(True)
    patch.delenv("NCCL_CTA_POLICY")
    patch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7) if rank else (2, 27, 5))
    with pytest.raises(StepFailed, match=r"one version of NCCL: on rank 0: NCCL 2\.27\.5; on rank 1: NCCL 2\.29\.7"):
        make()
    patch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    patch.setattr(together, "gpu_id", lambda where: "the only GPU")
    with pytest.raises(StepFailed, match="ranks 0, 1 share a GPU: NCCL wants a GPU for each rank"):
        make()
    share_in_tests(patch, rank, make)
    patch.setattr(FakeNccl, "Options", lambda: SimpleNamespace(config=object()))
    with pytest.raises(StepFailed, match=r"on ranks 0, 1: RuntimeError: torch .* cannot ask NCCL for zero-CTA"):
        make(True)
