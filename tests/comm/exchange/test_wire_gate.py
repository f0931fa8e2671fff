"""The wire: who may go when, who waits and is woken, and which parts of an exchange are under way. Time is played."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from fscomm.exchange import wire_gate
from fscomm.exchange.wire_gate import GRACE_S, IN_FLIGHT, OpenWire, WireGate
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.transport import Chunk
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext

BUDGET = 100
SIZES = st.integers(0, 40).map(lambda entries: 4 * entries)
ACTIONS = (
    *("begin", "end", "expect", "stop_expecting_control_word", "stop", "half the wait", "await ids", "get ids"),
    *("operation", "let go of it", "let go of the next"),
)


class Clock:
    """`tick` seconds go by whenever it is asked."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now_s = 100.0
        self.tick = tick
        self.asked = threading.Semaphore(0)

    def __call__(self) -> float:
        self.asked.release()
        self.now_s += self.tick
        return self.now_s


class Account:
    """One gate, and beside it, in the plainest words, what it was told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.gate = WireGate(self.clock)
        self.collision = 0
        self.expecting_until = 0.0
        self.operation = 0  # 0: none was begun
        self.awaited: set[int] = set()
        self.waiting = ExitStack()  # the training thread, for ids
        self.ids_awaited = False
        self.stopped = False

    def act(self, action: str) -> None:
        if action == "begin":
            self.collision += 1
            self.gate.enter()
        elif action in ("end", "expect") and self.collision:
            self.collision -= 1
            if action == "expect":
                self.expecting_until = self.clock.now_s + GRACE_S
            self.gate.leave(expecting=action == "expect")
        elif action == "stop_expecting_control_word":
            self.expecting_until = 0.0
            self.gate.stop_expecting_control_word()
        elif action == "stop":
            self.stopped = True
            self.gate.stop()
        elif action == "half the wait":
            self.clock.now_s += GRACE_S / 2
        elif action == "operation":
            self.operation += 1
            self.gate.begin(self.operation)
        elif action in ("let go of it", "let go of the next"):
            last = self.operation + (action == "let go of the next")
            self.awaited |= set(range(1, last + 1))
            self.gate.release_up_to(last)
        elif action == "await ids" and not self.ids_awaited:
            self.ids_awaited = True
            self.waiting.enter_context(self.gate.awaiting_ids())
        elif action == "get ids":
            self.ids_awaited = False
            self.waiting.close()

    def check(self) -> None:
        """Each goes now if it may. If nothing changes, it goes at the time that the gate says, and not before."""
        now = self.clock.now_s
        is_open = self.stopped or (not self.collision and now >= self.expecting_until)
        goes_on = is_open or self.operation in self.awaited
        exclusive_at, ids_at = self.gate.exclusive_at(), self.gate.ids_at()
        assert (exclusive_at <= now) == goes_on
        assert (ids_at <= now) == (is_open or self.ids_awaited)
        assert self.gate.expecting_until() == (-math.inf if self.stopped else self.expecting_until or -math.inf)
        assert goes_on or exclusive_at == (math.inf if self.collision else self.expecting_until)


@pytest.mark.parametrize("first", ACTIONS)
def test_every_answer_is_that_of_the_rules(first: str) -> None:
    """Whatever four things happen, one after the other."""
    for others in itertools.product(ACTIONS, repeat=3):
        account = Account()
        for action in (first, *others):
            account.act(action)
            account.check()


def test_a_wait_for_a_control_word_ends_by_itself() -> None:
    clock = Clock(tick=0.001)
    gate = WireGate(clock, grace_s=0.02)
    gate.enter()
    gate.leave(expecting=True)
    begun = clock.now_s
    gate.wait()
    assert clock.now_s >= begun + 0.02


def test_what_another_rank_waits_for_goes() -> None:
    """That rank says so while this one holds it back; later operations are held back again."""
    said = iter([0, 0, 3, 0])
    gate = WireGate(Clock(), awaited=lambda: next(said))
    gate.enter()
    gate.begin(3)
    gate.wait()
    assert gate.exclusive_at() == -math.inf
    gate.begin(4)
    assert gate.exclusive_at() == math.inf
    assert next(said) == 0


WAITING = ExitStack()  # training threads, still when their test ends


def lets_ids_go(gate: WireGate) -> None:
    WAITING.enter_context(gate.awaiting_ids())


def waits_for_the_wire(gate: WireGate) -> None:
    gate.enter()


def waits_for_a_control_word(gate: WireGate) -> None:
    gate.enter()
    gate.leave(expecting=True)


@pytest.mark.parametrize(
    ("closes", "waits", "wakes"),
    [
        (waits_for_the_wire, WireGate.wait, WireGate.leave),
        (waits_for_the_wire, WireGate.wait, WireGate.stop),
        (waits_for_a_control_word, WireGate.wait, WireGate.stop_expecting_control_word),
        (waits_for_the_wire, WireGate.wait_for_ids, lets_ids_go),
    ],
)
def test_who_waits_is_woken(
    closes: Callable[[WireGate], None],
    waits: Callable[[WireGate], None],
    wakes: Callable[[WireGate], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by time, and not by a look at what other ranks said."""
    monkeypatch.setattr(wire_gate, "_LOOK_S", threading.TIMEOUT_MAX)
    clock = Clock()
    gate = WireGate(clock, grace_s=math.inf)
    closes(gate)
    while clock.asked.acquire(blocking=False):
        pass
    thread = threading.Thread(target=waits, args=[gate], daemon=True)
    thread.start()
    assert clock.asked.acquire(timeout=PATIENCE_S)  # it has the lock, and gives it back only when it can be woken
    wakes(gate)
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "not woken"


class Wire(GlooTransport):
    """Takes parts and gives out handles; says what happened, in order, and fails where it is told."""

    def __init__(self, *, fails_to_issue: int = -1, fails_to_end: int = -1) -> None:
        super().__init__(RankContext(rank=0, world_size=1), timeout_s=PATIENCE_S)
        self.log: list[str] = []
        self.under_way: list[Wired] = []
        self.most_bytes = 0
        self.most_parts = 0
        self._fails_to_issue = fails_to_issue
        self._fails_to_end = fails_to_end
        self._number = 0

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
    ) -> "Wired":
        assert (list(out_splits), list(in_splits)) == ([len(out)], [len(inp)])
        number, self._number = self._number, self._number + 1
        self.log.append(f"issue {number}")
        if number == self._fails_to_issue:
            raise PeerError("lost while issuing")
        self.under_way.append(Wired(self, number, out, inp, fails=number == self._fails_to_end))
        self.most_bytes = max(self.most_bytes, sum(each.nbytes for each in self.under_way))
        self.most_parts = max(self.most_parts, len(self.under_way))
        return self.under_way[-1]


class Wired:
    def __init__(self, wire: Wire, number: int, out: torch.Tensor, inp: torch.Tensor, *, fails: bool) -> None:
        self._wire, self._number, self._out, self._fails = wire, number, out, fails
        self.nbytes = max(out.nbytes, inp.nbytes)

    def follow(self) -> None:
        self._wire.log.append(f"wait {self._number}")
        assert self._wire.under_way.pop(0) is self, "handles are waited for in the order they were given out"
        if self._fails:
            raise PeerError("lost on the way")
        self._out.fill_(float(self._number))


def parts_of(sizes: Sequence[tuple[int, int]], log: list[str]) -> tuple[Iterator[Chunk], list[torch.Tensor]]:
    """Parts that bring and take so many bytes, and the tensors that they fill."""
    outs = [torch.full((brings // 4,), math.nan) for brings, _ in sizes]

    def parts() -> Iterator[Chunk]:
        for number, (out, (_, takes)) in enumerate(zip(outs, sizes, strict=True)):
            log.append(f"ask {number}")
            yield Chunk(out, torch.zeros(takes // 4), [len(out)], [takes // 4], largest_bytes=max(out.nbytes, takes))

    return parts(), outs


def filled(outs: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(out, torch.full_like(out, float(number))) for number, out in enumerate(outs))


@given(st.lists(st.tuples(SIZES, SIZES), max_size=30))
def test_exclusive_stays_within_the_budget(sizes: list[tuple[int, int]]) -> None:
    wire = Wire()
    parts, outs = parts_of(sizes, wire.log)
    WireGate(budget_bytes=BUDGET).exchange(wire, parts)
    assert filled(outs)
    assert wire.most_bytes <= max([BUDGET, *(max(pair) for pair in sizes)])
    assert not wire.under_way


@pytest.mark.parametrize(
    ("gate", "size"),
    [*((WireGate(budget_bytes=BUDGET), size) for size in ((40, 40), (40, 4), (4, 40))), (OpenWire(), (400, 400))],
)
def test_two_parts_at_a_time_are_under_way_and_asked_for_one_by_one(
    gate: WireGate | OpenWire, size: tuple[int, int]
) -> None:
    """Of exclusive parts the larger direction counts; of collision parts the number, whatever their size."""
    wire = Wire()
    parts, outs = parts_of([size] * 4, wire.log)
    gate.exchange(wire, parts)
    assert filled(outs)
    assert wire.most_parts == IN_FLIGHT
    assert wire.log == [
        *("ask 0", "issue 0", "ask 1", "issue 1", "ask 2", "wait 0", "issue 2", "ask 3", "wait 1", "issue 3"),
        *("wait 2", "wait 3"),
    ]


def test_the_pace_of_a_link_is_that_of_exclusive_chunks_without_the_time_they_are_held_back() -> None:
    """Of small exchanges it is not taken: they are mostly latency."""
    clock, wire = Clock(), Wire()
    gate = WireGate(clock, budget_bytes=1 << 20, awaited=lambda: 0)
    follow = Wired.follow

    def parts(nbytes: int) -> Iterator[Chunk]:
        for number, part in enumerate(parts_of([(nbytes, 4)] * 3, wire.log)[0]):
            if number == 1:  # a control word is expected for a while
                gate.enter()
                gate.leave(expecting=True)
                clock.tick = 0.001
            yield part
            clock.tick = 0.0

    def followed(handle: Wired) -> None:
        clock.now_s += 0.002
        follow(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wired, "follow", followed)
        gate.exchange(wire, parts(4 << 10))
        assert gate.us_per_mb == 0
        held = clock.now_s
        gate.exchange(wire, parts(1 << 20))
    assert clock.now_s - held > GRACE_S + 0.006
    least = 6_000 / 3 / 1.048576
    assert least <= gate.us_per_mb < 2 * least  # the clock is asked a few times, a millisecond each


def test_what_is_under_way_ends_before_a_closed_gate_is_waited_for() -> None:
    wire = Wire()
    gate = WireGate(Clock(), budget_bytes=BUDGET, awaited=lambda: 1)  # another rank wants it at the first look
    gate.begin(1)

    def parts() -> Iterator[Chunk]:
        for number, part in enumerate(parts_of([(4, 4)] * 3, wire.log)[0]):
            if number == 2:
                gate.enter()
            yield part

    gate.exchange(wire, parts())
    assert wire.log[-5:] == ["ask 2", "wait 0", "wait 1", "issue 2", "wait 2"]


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("fails", ["fails_to_issue", "fails_to_end", "fails_to_make"])
def test_what_comes_after_an_error_has_the_whole_budget(fails: str, number: int) -> None:
    wire = Wire(**({fails: number} if fails != "fails_to_make" else {}))
    gate = WireGate(budget_bytes=BUDGET)

    def parts() -> Iterator[Chunk]:
        for i, part in enumerate(parts_of([(40, 40)] * 6, wire.log)[0]):
            if fails == "fails_to_make" and i == number:
                raise PeerError("lost its rows")
            yield part

    with pytest.raises(PeerError, match="lost"):
        gate.exchange(wire, parts())
    wire = Wire()
    gate.exchange(wire, parts_of([(BUDGET // 2, 4)] * 3, wire.log)[0])
    assert wire.most_parts == 2
