"""Threads at the wire: who waits, who is woken, and which parts of an exchange are under way when.

Time is played. The rules are those of `test_wire_priority.py`.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from fscomm.exchange.wire_gate import IN_FLIGHT, OpenWire, WireGate
from fscomm.exchange.wire_priority import GRACE_S, WirePriority
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.transport import Part
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext

BUDGET = 100
SIZES = st.integers(0, 40).map(lambda entries: 4 * entries)


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


def gate_of(clock: Clock, wait_s: float = math.inf) -> WireGate:
    """Nobody who waits is let go by time alone, unless it is `wait_s`."""
    return WireGate(clock, schedule=WirePriority(budget_bytes=BUDGET, grace_s=wait_s))


def is_open(gate: WireGate) -> bool:
    """Whether an exclusive chunk may go."""
    goes = gate.try_exclusive(4)
    if goes:
        gate.exclusive_done(4)
    return goes


def nothing_counts(gate: WireGate) -> bool:
    """Whether the whole budget is free, and no more than that."""
    gate.settle()
    return gate.try_exclusive(4) and gate.try_exclusive(BUDGET - 4) and not gate.try_exclusive(4)


def test_closed_for_collision_exchanges_and_for_a_control_word_after_them() -> None:
    clock = Clock()
    gate = WireGate(clock)
    assert is_open(gate)
    gate.wait()
    gate.enter()
    gate.enter()
    gate.leave()
    assert not is_open(gate)
    gate.leave(expecting=True)
    clock.now_s += 0.9 * GRACE_S
    assert not is_open(gate)
    clock.now_s += 0.2 * GRACE_S
    assert is_open(gate)
    gate.enter()
    gate.leave(expecting=True)
    gate.settle()
    assert is_open(gate)
    gate.enter()
    gate.stop()
    assert is_open(gate)
    gate.wait()


def test_a_wait_for_a_control_word_ends_by_itself() -> None:
    clock = Clock(tick=0.001)
    gate = gate_of(clock, wait_s=0.02)
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
    assert is_open(gate)
    gate.begin(4)
    assert not is_open(gate)
    assert next(said) == 0


WAITING = ExitStack()  # training threads, still when their test ends


def lets_ids_go(gate: WireGate) -> None:
    WAITING.enter_context(gate.awaiting_ids())


def waits_for_the_wire(gate: WireGate) -> None:
    gate.enter()


def waits_for_a_control_word(gate: WireGate) -> None:
    gate.enter()
    gate.leave(expecting=True)


def waits_for_room(gate: WireGate) -> None:
    """That of another worker of the same budget, or of its own helper thread."""
    assert gate.try_exclusive(BUDGET)


@pytest.mark.parametrize(
    ("closes", "waits", "wakes"),
    [
        (waits_for_the_wire, WireGate.wait, WireGate.leave),
        (waits_for_the_wire, WireGate.wait, WireGate.stop),
        (waits_for_a_control_word, WireGate.wait, WireGate.settle),
        (waits_for_the_wire, WireGate.wait_for_ids, lets_ids_go),
        (waits_for_the_wire, lambda gate: gate.wait_exclusive(4), WireGate.leave),
        (waits_for_room, lambda gate: gate.wait_exclusive(4), lambda gate: gate.exclusive_done(BUDGET)),
    ],
)
def test_who_waits_is_woken(
    closes: Callable[[WireGate], None], waits: Callable[[WireGate], None], wakes: Callable[[WireGate], None]
) -> None:
    clock = Clock()
    gate = gate_of(clock)
    closes(gate)
    while clock.asked.acquire(blocking=False):
        pass
    thread = threading.Thread(target=waits, args=[gate], daemon=True)
    thread.start()
    for _ in range(2):  # the second time it has the lock, and gives it back only when it can be woken
        assert clock.asked.acquire(timeout=PATIENCE_S)
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

    def wait(self) -> None:
        self._wire.log.append(f"wait {self._number}")
        assert self._wire.under_way.pop(0) is self, "handles are waited for in the order they were given out"
        if self._fails:
            raise PeerError("lost on the way")
        self._out.fill_(float(self._number))


def parts_of(sizes: Sequence[tuple[int, int]], log: list[str]) -> tuple[Iterator[Part], list[torch.Tensor]]:
    """Parts that bring and take so many bytes, and the tensors that they fill."""
    outs = [torch.full((brings // 4,), math.nan) for brings, _ in sizes]

    def parts() -> Iterator[Part]:
        for number, (out, (_, takes)) in enumerate(zip(outs, sizes, strict=True)):
            log.append(f"ask {number}")
            yield Part(out, torch.zeros(takes // 4), [len(out)], [takes // 4], largest_bytes=max(out.nbytes, takes))

    return parts(), outs


def filled(outs: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(out, torch.full_like(out, float(number))) for number, out in enumerate(outs))


@given(st.lists(st.tuples(SIZES, SIZES), max_size=30))
def test_exclusive_stays_within_the_budget(sizes: list[tuple[int, int]]) -> None:
    gate = gate_of(Clock())
    wire = Wire()
    parts, outs = parts_of(sizes, wire.log)
    gate.exchange(wire, parts)
    assert filled(outs)
    assert wire.most_bytes <= max([BUDGET, *(max(pair) for pair in sizes)])
    assert not wire.under_way
    assert nothing_counts(gate)


@pytest.mark.parametrize("size", [(40, 40), (40, 4), (4, 40)])
def test_parts_are_asked_for_one_by_one_and_the_budget_is_used(size: tuple[int, int]) -> None:
    """The larger direction of a part counts."""
    wire = Wire()
    parts, _ = parts_of([size] * 4, wire.log)
    gate_of(Clock()).exchange(wire, parts)
    assert wire.log == [
        *("ask 0", "issue 0", "ask 1", "issue 1", "ask 2", "wait 0", "issue 2", "ask 3", "wait 1", "issue 3"),
        *("wait 2", "wait 3"),
    ]


def test_collision_parts_go_a_few_at_a_time() -> None:
    wire = Wire()
    parts, outs = parts_of([(400, 400)] * 7, wire.log)
    OpenWire().exchange(wire, parts)
    assert filled(outs)
    assert wire.most_parts == IN_FLIGHT == 2
    assert wire.log[:6] == ["ask 0", "issue 0", "ask 1", "issue 1", "ask 2", "wait 0"]


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("fails", ["fails_to_issue", "fails_to_end", "fails_to_make"])
def test_an_error_gives_the_budget_back(fails: str, number: int) -> None:
    wire = Wire(**({fails: number} if fails != "fails_to_make" else {}))
    gate = gate_of(Clock())

    def parts() -> Iterator[Part]:
        for i, part in enumerate(parts_of([(40, 40)] * 6, wire.log)[0]):
            if fails == "fails_to_make" and i == number:
                raise PeerError("lost its rows")
            yield part

    with pytest.raises(PeerError, match="lost"):
        gate.exchange(wire, parts())
    assert nothing_counts(gate)
