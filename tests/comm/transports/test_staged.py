"""`host-staged` of one rank: its pieces, its buffers, and what ends it. `contract/` has the rest."""

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from fake_driver import Board, FakeGroup
from patience import PATIENCE_S, until

from fscomm.device import Host
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.staged import host_staged as staged
from fscomm.transports.staged.host_staged import HostStaged
from fscomm.transports.transport import Handle
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext


@contextlib.contextmanager
def closed_at_the_end(transport: HostStaged) -> Iterator[HostStaged]:
    try:
        yield transport
    finally:
        transport.close("is done with the test")
        until(lambda: not any(thread.name == "fscomm host-staged" for thread in threading.enumerate()), "its end")


class Wire(GlooTransport):
    """The host collective of the only rank; `before` is called before each piece."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(RankContext(rank=0, world_size=1), timeout_s=PATIENCE_S)
        self.before, self.aborted = before, threading.Event()

    def all_to_all_v(self, *given: Any, largest_bytes: int) -> Handle:
        self.before()
        return super().all_to_all_v(*given, largest_bytes=largest_bytes)

    def abort(self, reason: str) -> None:
        self.aborted.set()


class Alone:
    """The only rank, whose rows all go to itself, two floats each, in pieces of at most `chunk` bytes."""

    def __init__(self, device: Host, wire: Wire | None = None, *, limit_s: float = PATIENCE_S, chunk: int = 64) -> None:
        self.board = Board()
        group: Any = FakeGroup(self.board, 0, 1, limit_s)
        self.transport = HostStaged(wire or Wire(), group, device, chunk_bytes=chunk)

    def begin(self, rows: int = 64) -> Handle:
        inp = torch.arange(2 * rows).view(rows, 2).float()
        self.out = torch.zeros_like(inp)
        return self.send(inp, self.out)

    def send(self, inp: torch.Tensor, out: torch.Tensor) -> Handle:
        return self.transport.all_to_all_v(out, inp, [len(inp)], [len(inp)], largest_bytes=inp.nbytes)

    def told(self) -> list[str]:
        """What the other ranks were."""
        return [event[2] for event in self.board.events if event[0] == "abort"]


class Noting(Host):
    """Notes what begins in which of its two streams: the first is the way down, the second the way up."""

    def __init__(self) -> None:
        self.names = iter(("down", "up"))
        self.events: list[str] = []

    def stream(self) -> Any:
        stream = mock.MagicMock()
        stream.__exit__.return_value = False
        stream.__enter__.side_effect = functools.partial(self.events.append, next(self.names))
        return stream


def test_three_pieces_are_under_way_at_once() -> None:
    """One comes down while the one before it is on the wire, and goes up before the next one is."""
    device = Noting()
    alone = Alone(device, Wire(lambda: device.events.append("wire")))
    with closed_at_the_end(alone.transport):
        alone.begin(rows=40).wait()
        first = ["down", "down", "wire", "down"]
        assert device.events == [*first, *["up", "wire", "down"] * 2, "up", "wire", "up", "wire", "up"]


def said(handle: Handle) -> str:
    with pytest.raises(PeerError) as caught:
        handle.wait()
    return str(caught.value)


class Remembering(Host):
    """Knows what was staged."""

    def __init__(self) -> None:
        self.staged: list[int] = []
        self.refs: list[weakref.ref[torch.Tensor]] = []

    def staging(self, like: torch.Tensor) -> torch.Tensor:
        made = torch.full_like(like, 99)
        self.staged.append(made.nbytes)
        self.refs.append(weakref.ref(made))
        return made

    def held(self) -> list[int]:
        gc.collect()
        return [made.nbytes for ref in self.refs if (made := ref()) is not None]


def test_buffers_are_reused_and_grow_and_go_at_the_end() -> None:
    device = Remembering()
    alone = Alone(device, chunk=4096)
    with closed_at_the_end(alone.transport):
        for rows in [8] * 20 + [4, 2, 8]:
            alone.begin(rows).wait()
        assert device.staged == [64] * 6
        for rows in (16, 16, 1000, 3000, 16):
            alone.begin(rows).wait()
            assert torch.equal(alone.out, torch.arange(2 * rows).view(rows, 2).float())
        assert device.staged == [64] * 6 + [128] * 4 + [4096] * 6
        assert device.held() == [4096] * 6
    assert device.held() == []


def test_abort_ends_what_is_under_way_and_tells_the_others() -> None:
    reached = threading.Event()
    passed = iter([None])

    def hold_the_second() -> None:
        if next(passed, "none") is not None:
            reached.set()
            wire.aborted.wait(PATIENCE_S)

    wire = Wire(hold_the_second)
    alone = Alone(Host(), wire)
    with closed_at_the_end(alone.transport) as transport:
        handle = alone.begin()
        assert reached.wait(PATIENCE_S)
        assert not handle.done()
        transport.abort("was told to stop")
        assert {said(handle), said(handle)} == {"host-staged is over on rank 0: was told to stop"}
        assert handle.done()
        for call in (transport.barrier, alone.begin):
            with pytest.raises(PeerError, match="was told to stop"):
                call()
    assert alone.told() == ["was told to stop"]
    assert wire.aborted.is_set()


class Stuck(Host):
    """A device that gets nowhere, at last or with anything at all."""

    def __init__(self, *, at_last: bool = False) -> None:
        self.at_last = at_last

    def mark(self) -> str:
        return "never"

    def is_done(self, mark: Any) -> bool:
        return self.at_last or mark is None

    def wait(self, mark: Any, limit_s: float) -> None:
        raise TimeoutError(f"nothing within {limit_s:g} s")


def test_waiting_for_a_device_has_the_limit_of_the_transport() -> None:
    alone = Alone(Stuck(at_last=True))
    with closed_at_the_end(alone.transport):
        assert said(alone.begin()) == f"nothing within {PATIENCE_S:g} s"
    alone = Alone(Stuck(), limit_s=0.0)
    with closed_at_the_end(alone.transport):
        assert "the device did not come to copy the rows within 0 s" in said(alone.begin())
    assert "the device did not come" in alone.told()[0]


@pytest.mark.parametrize("end", [HostStaged.abort, HostStaged.close])
def test_abort_and_close_end_waiting_for_a_device(
    end: Callable[[HostStaged, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "_GRACE_S", 0.1)
    alone = Alone(Stuck())
    handle = alone.begin()
    end(alone.transport, "had enough")
    assert said(handle) == "host-staged is over on rank 0: had enough"
    assert end is HostStaged.close or alone.told() == ["had enough"]
    with closed_at_the_end(alone.transport):
        pass


def test_whatever_fails_in_the_thread_is_told() -> None:
    def fail() -> None:
        raise OSError("the adapter is gone")

    alone = Alone(Host(), Wire(fail))
    with closed_at_the_end(alone.transport):
        assert said(alone.begin()) == "host-staged is over on rank 0: failed: OSError: the adapter is gone"
    assert alone.told() == ["failed: OSError: the adapter is gone"]


def test_a_chunk_has_at_least_one_byte() -> None:
    with pytest.raises(ValueError, match="chunk_bytes must be at least 1, got 0"):
        HostStaged(None, None, Host(), chunk_bytes=0)  # type: ignore[arg-type]
