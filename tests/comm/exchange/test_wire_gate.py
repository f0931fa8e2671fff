"""Who may use the wire when: by a clock of the test's own, and threads that are known to wait before they are woken."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S

from fscomm.exchange import wire_gate as gate_of_threads
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import GRACE_S, STARVED_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> WireGate:
    return WireGate(clock)


def is_open(gate: WireGate) -> bool:
    """Whether an exclusive chunk may go."""
    goes = gate.try_exclusive(1)
    if goes:
        gate.exclusive_done(1)
    return goes


def test_nothing_of_the_collision_class(gate: WireGate) -> None:
    assert is_open(gate)
    gate.wait()


def test_closed_until_the_last_collision_exchange_is_over(gate: WireGate) -> None:
    gate.enter()
    gate.enter()
    assert not is_open(gate)
    gate.leave()
    assert not is_open(gate)
    gate.leave()
    assert is_open(gate)


def test_quiet_while_a_control_word_is_expected(gate: WireGate, clock: Clock) -> None:
    gate.enter()
    gate.leave(expecting=True)
    assert not is_open(gate)
    clock.now_s += 0.9 * GRACE_S
    assert not is_open(gate)
    clock.now_s += 0.2 * GRACE_S
    assert is_open(gate)


def test_the_quiet_time_starts_at_the_end_of_the_last_exchange(gate: WireGate, clock: Clock) -> None:
    for _ in range(2):
        gate.enter()
        clock.now_s += 0.9 * GRACE_S
        gate.leave(expecting=True)
    clock.now_s += 0.9 * GRACE_S
    assert not is_open(gate)


def test_an_exchange_that_expects_nothing_does_not_end_the_quiet_time(gate: WireGate) -> None:
    gate.enter()
    gate.leave(expecting=True)
    gate.enter()
    gate.leave()
    assert not is_open(gate)


def test_settled_as_soon_as_the_word_came(gate: WireGate) -> None:
    gate.enter()
    gate.leave(expecting=True)
    gate.settle()
    assert is_open(gate)


def test_settling_does_not_let_exclusive_pass_a_collision_exchange(gate: WireGate) -> None:
    gate.enter()
    gate.settle()
    assert not is_open(gate)


def test_stopped_for_good(gate: WireGate) -> None:
    gate.enter()
    gate.leave(expecting=True)
    gate.enter()
    gate.stop()
    assert is_open(gate)
    gate.enter()
    gate.wait()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """With a condition that lets the clock advance instead of waiting."""
    waits: list[float] = []

    class Advancing(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None, "nobody will wake it"
            waits.append(timeout)
            clock.now_s += timeout / 2 if len(waits) == 1 else timeout  # woken early once
            return False

    monkeypatch.setattr(gate_of_threads, "threading", SimpleNamespace(Condition=Advancing))
    return waits


def test_the_quiet_time_is_waited_for_and_no_longer(waits: list[float], clock: Clock) -> None:
    gate = WireGate(clock)
    gate.enter()
    gate.leave(expecting=True)
    gate.wait()
    assert waits == pytest.approx([GRACE_S, GRACE_S / 2])


def test_a_collision_exchange_that_waits_for_exclusive_work_holds_it_back_for_a_while_only(
    waits: list[float], clock: Clock
) -> None:
    gate = WireGate(clock)
    gate.enter()
    gate.wait()
    assert waits == pytest.approx([STARVED_S, STARVED_S / 2])


def settles(gate: WireGate) -> None:
    gate.settle()


def leaves(gate: WireGate) -> None:
    gate.leave()


def stops(gate: WireGate) -> None:
    gate.stop()


@pytest.mark.parametrize(("expecting", "wakes"), [(False, leaves), (False, stops), (True, settles), (True, stops)])
def test_who_waits_is_woken(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, expecting: bool, wakes: Callable[[WireGate], None]
) -> None:
    waiting = threading.Event()

    class Announced(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()  # the lock is held, and given back only when this thread can be woken
            return super().wait(PATIENCE_S)

    monkeypatch.setattr(gate_of_threads, "threading", SimpleNamespace(Condition=Announced))
    gate = WireGate(clock)
    gate.enter()
    if expecting:
        gate.leave(expecting=True)
    passed = threading.Event()

    def exclusive() -> None:
        gate.wait()
        passed.set()

    thread = threading.Thread(target=exclusive, daemon=True)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    assert not passed.is_set()
    wakes(gate)
    assert passed.wait(PATIENCE_S), "not woken"
    thread.join(PATIENCE_S)
