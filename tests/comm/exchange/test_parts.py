"""Many parts over one transport: which is issued when, and what counts as under way."""

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from test_wire_gate import Clock
from worlds import shared_world

from fscomm.device import Host
from fscomm.exchange.parts import IN_FLIGHT, exchange
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import STARVED_S, WirePriority
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import AloneTransport, Transport
from fsranks.control_group import AllToAll
from fsranks.errors import PeerError
from fsranks.rank_context import resolve

BUDGET = 100
SIZES = st.integers(0, 40).map(lambda entries: 4 * entries)


class Wire(AloneTransport):
    """Takes parts and gives out handles; says what happened, in order, and fails where it is told."""

    def __init__(self, *, fails_to_issue: int = -1, fails_to_end: int = -1, seed: int = 0) -> None:
        super().__init__("wire")
        self.log: list[str] = []
        self.under_way: list[Wired] = []
        self.most_bytes = 0
        self.most_parts = 0
        self._fails_to_issue = fails_to_issue
        self._fails_to_end = fails_to_end
        self._random = random.Random(seed)
        self._number = 0

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> "Wired":
        assert (list(out_splits), list(in_splits)) == ([len(out)], [len(inp)])
        number, self._number = self._number, self._number + 1
        self.log.append(f"issue {number}")
        if number == self._fails_to_issue:
            raise PeerError("lost while issuing")
        self.under_way.append(Wired(self, number, out, inp, fails=number == self._fails_to_end))
        for each in self.under_way:  # any of them may be complete early, out of step
            if self._random.random() < 0.5:
                each.complete()
        self.most_bytes = max(self.most_bytes, sum(each.nbytes for each in self.under_way))
        self.most_parts = max(self.most_parts, len(self.under_way))
        return self.under_way[-1]


class Wired:
    def __init__(self, wire: Wire, number: int, out: torch.Tensor, inp: torch.Tensor, *, fails: bool) -> None:
        self._wire, self._number, self._out, self._inp, self._fails = wire, number, out, inp, fails
        self.nbytes = max(out.nbytes, inp.nbytes)

    def done(self) -> bool:
        return not torch.isnan(self._out).any()

    def complete(self) -> None:
        self._out.fill_(float(self._number))

    def wait(self) -> None:
        self._wire.log.append(f"wait {self._number}")
        assert self._wire.under_way.pop(0) is self, "handles are waited for in the order they were given out"
        if self._fails:
            raise PeerError("lost on the way")
        self.complete()


def parts_of(
    sizes: Sequence[tuple[int, int]], log: list[str] | None = None
) -> tuple[Iterator[AllToAll], list[torch.Tensor]]:
    """Parts that bring and take so many bytes, and the tensors that they fill."""
    outs = [torch.full((brings // 4,), math.nan) for brings, _ in sizes]

    def parts() -> Iterator[AllToAll]:
        for number, (out, (_, takes)) in enumerate(zip(outs, sizes, strict=True)):
            if log is not None:
                log.append(f"ask {number}")
            yield out, torch.zeros(takes // 4), [len(out)], [takes // 4]

    return parts(), outs


def nothing_counts(gate: WireGate, budget: int = BUDGET) -> bool:
    """Whether the whole budget is free, and no more than that."""
    gate.settle()
    return gate.try_exclusive(4) and gate.try_exclusive(budget - 4) and not gate.try_exclusive(4)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> WireGate:
    return WireGate(clock, schedule=WirePriority(budget_bytes=BUDGET))


class Scripted(WireGate):
    """Does the next thing of a script where it would block."""

    def __init__(self, clock: Clock, *script: Callable[["Scripted"], None]) -> None:
        super().__init__(clock, schedule=WirePriority(budget_bytes=BUDGET))
        self.script = list(script)

    def wait_exclusive(self, nbytes: int) -> None:
        self.script.pop(0)(self)
        super().wait_exclusive(nbytes)


def collision_ends(wire: Wire) -> Callable[[Scripted], None]:
    def ends(gate: Scripted) -> None:
        wire.log.append("collision")
        gate.leave()

    return ends


def filled(outs: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(out, torch.full_like(out, float(number))) for number, out in enumerate(outs))


@given(st.lists(st.tuples(SIZES, SIZES), max_size=30), st.integers(0, 9))
def test_exclusive_stays_within_the_budget(sizes: list[tuple[int, int]], seed: int) -> None:
    gate = WireGate(Clock(), schedule=WirePriority(budget_bytes=BUDGET))
    wire = Wire(seed=seed)
    parts, outs = parts_of(sizes)
    exchange(wire, parts, gate)
    assert filled(outs)
    assert wire.most_bytes <= max([BUDGET, *(max(pair) for pair in sizes)])
    assert not wire.under_way
    assert nothing_counts(gate)


def test_parts_are_asked_for_one_by_one_and_the_budget_is_used(gate: WireGate) -> None:
    wire = Wire()
    parts, _ = parts_of([(40, 40)] * 4, wire.log)
    exchange(wire, parts, gate)
    assert wire.log == [
        *("ask 0", "issue 0", "ask 1", "issue 1", "ask 2", "wait 0", "issue 2", "ask 3", "wait 1", "issue 3"),
        *("wait 2", "wait 3"),
    ]


@pytest.mark.parametrize("sizes", [[(40, 4)] * 6, [(4, 40)] * 6])
def test_the_larger_direction_counts(gate: WireGate, sizes: list[tuple[int, int]]) -> None:
    wire = Wire()
    exchange(wire, parts_of(sizes)[0], gate)
    assert wire.most_parts == 2


def test_collision_parts_go_a_few_at_a_time() -> None:
    wire = Wire()
    parts, outs = parts_of([(400, 400)] * 7, wire.log)
    exchange(wire, parts, None)
    assert filled(outs)
    assert wire.most_parts == IN_FLIGHT == 2
    assert wire.log[:6] == ["ask 0", "issue 0", "ask 1", "issue 1", "ask 2", "wait 0"]


def test_nothing_to_exchange(gate: WireGate) -> None:
    wire = Wire()
    exchange(wire, [], gate)
    exchange(wire, [], None)
    assert not wire.log


def test_collision_traffic_is_let_by_first(clock: Clock) -> None:
    wire = Wire()
    gate = Scripted(clock, collision_ends(wire))
    gate.enter()
    exchange(wire, parts_of([(4, 4)])[0], gate)
    assert wire.log == ["collision", "issue 0", "wait 0"]


def test_what_is_under_way_ends_while_collision_traffic_runs(clock: Clock) -> None:
    """Its budget is free for when the wire is."""
    wire = Wire()
    gate = Scripted(clock, collision_ends(wire))

    def parts() -> Iterator[AllToAll]:
        yield from parts_of([(4, 4)] * 2)[0]
        gate.enter()
        yield from parts_of([(4, 4)])[0]

    exchange(wire, parts(), gate)
    assert wire.log == ["issue 0", "issue 1", "wait 0", "wait 1", "collision", "issue 2", "wait 2"]


def test_starved_parts_go_one_at_a_time(clock: Clock) -> None:
    def time_passes(gate: Scripted) -> None:
        clock.now_s += STARVED_S / 2
        gate.enter()  # collision exchanges go on
        gate.leave()
        clock.now_s += STARVED_S / 2

    wire = Wire()
    gate = Scripted(clock, *[time_passes] * 3)
    gate.enter()
    exchange(wire, parts_of([(4, 4)] * 3)[0], gate)
    assert wire.most_parts == 1
    assert not gate.script


def test_stopped(clock: Clock) -> None:
    wire = Wire()
    gate = Scripted(clock, lambda gate: gate.stop())
    gate.enter()
    exchange(wire, parts_of([(4, 4), (400, 400), (400, 400)])[0], gate)
    assert wire.most_parts == 3


@pytest.mark.parametrize("number", [0, 2, 5])
@pytest.mark.parametrize("fails", ["fails_to_issue", "fails_to_end"])
def test_an_error_gives_the_budget_back(gate: WireGate, fails: str, number: int) -> None:
    with pytest.raises(PeerError, match="lost"):
        exchange(Wire(**{fails: number}), parts_of([(40, 40)] * 6)[0], gate)
    assert nothing_counts(gate)


def test_an_error_of_the_parts_gives_the_budget_back(gate: WireGate) -> None:
    def parts() -> Iterator[AllToAll]:
        yield from parts_of([(40, 40)] * 2)[0]
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        exchange(Wire(), parts(), gate)
    assert nothing_counts(gate)


@pytest.mark.parametrize("wakes", [WireGate.leave, WireGate.stop])
def test_who_waits_for_a_turn_is_woken(clock: Clock, wakes: Callable[[WireGate], None]) -> None:
    gate = WireGate(clock)
    gate.enter()
    wire = Wire()
    thread = waiting(gate, lambda: exchange(wire, parts_of([(4, 4)])[0], gate))
    assert not wire.log
    wakes(gate)
    thread.join(PATIENCE_S)
    assert wire.log == ["issue 0", "wait 0"], "not woken"


def test_who_waits_for_room_is_woken(gate: WireGate) -> None:
    """By another worker of the same budget, or by its own helper thread."""
    assert gate.try_exclusive(BUDGET)
    passed = threading.Event()
    thread = waiting(gate, lambda: (gate.wait_exclusive(4), passed.set())[1])
    assert not passed.is_set()
    gate.exclusive_done(BUDGET)
    thread.join(PATIENCE_S)
    assert passed.is_set(), "not woken"


def case_beside_collision_traffic(rank: int, world_size: int, transport: str) -> None:
    """Each rank's gate is open when it likes; what one holds back, the others wait for."""
    context = resolve()
    exclusive, collision = (
        open_transport(transport, context, Host(), timeout_s=PATIENCE_S, verify=False) for _ in range(2)
    )
    gate = WireGate(schedule=WirePriority(budget_bytes=3000, starved_s=0.01))
    pauses = random.Random(rank)
    failures: list[BaseException] = []

    def worker() -> None:
        try:
            exchange_all(exclusive, rank, world_size, parts=60, seed=1, gate=gate)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=worker)
    thread.start()
    for number in range(12):
        gate.enter()
        torch.ones(pauses.randrange(1, 1_000_000)).sum()  # takes a while, on each rank another one
        exchange_all(collision, rank, world_size, parts=3, seed=number, gate=None)
        gate.leave(expecting=number % 3 == 0)
        if number % 4 == 0:
            gate.settle()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not failures, failures
    assert nothing_counts(gate, 3000)
    for each in (exclusive, collision):
        each.close("the test is over")


def exchange_all(
    transport: Transport, rank: int, world_size: int, *, parts: int, seed: int, gate: WireGate | None
) -> None:
    """Parts of random splits, zeros among them; value = which rank sent it to which, in which part."""
    drawn = torch.randint(-40, 200, (parts, world_size, world_size), generator=torch.Generator().manual_seed(seed))
    wanted: list[torch.Tensor] = []
    outs: list[torch.Tensor] = []

    def asked() -> Iterator[AllToAll]:
        for number, of_all in enumerate(drawn.clamp(min=0)):
            mine = [value_of(number, rank, peer).repeat(int(of_all[rank, peer])) for peer in range(world_size)]
            come = [value_of(number, peer, rank).repeat(int(of_all[peer, rank])) for peer in range(world_size)]
            wanted.append(torch.cat(come))
            outs.append(torch.full_like(wanted[-1], -1))
            yield outs[-1], torch.cat(mine), of_all[:, rank].tolist(), of_all[rank].tolist()

    exchange(transport, asked(), gate)
    assert len(outs) == parts
    assert all(torch.equal(out, want) for out, want in zip(outs, wanted, strict=True))


def value_of(number: int, sender: int, receiver: int) -> torch.Tensor:
    return torch.tensor([100 * number + 10 * sender + receiver])


@pytest.mark.parametrize(
    ("transport", "ranks"), [("gloo", 2), pytest.param("gloo", 3, marks=pytest.mark.long), ("copy-engine", 2)]
)
def test_exclusive_beside_collision_traffic(transport: str, ranks: int) -> None:
    shared_world(ranks).run(case_beside_collision_traffic, transport)


def waiting(gate: WireGate, work: Callable[[], None]) -> threading.Thread:
    """A thread that does `work` and is known to wait inside the gate."""
    blocked = threading.Event()

    class Announced(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            blocked.set()  # the lock is held, and given back only when this thread can be woken
            return super().wait(PATIENCE_S)

    gate._changed = Announced()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert blocked.wait(PATIENCE_S)
    return thread
