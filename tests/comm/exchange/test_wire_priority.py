"""The rules of the wire against a plain account of what happened, in time that the test makes."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import Clock, Engine, Process

from fscomm.exchange.wire_priority import GRACE_S, STARVED_S, WirePriority

BUDGET = 100
MOMENTS = st.sampled_from([0.0, GRACE_S / 2, GRACE_S, STARVED_S / 2, STARVED_S])
CHUNKS = st.integers(0, 2 * BUDGET)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["begin", "end", "expect", "settle", "done", "ask again"]), st.none()),
    st.tuples(st.just("pass"), MOMENTS),
    st.tuples(st.just("ask"), CHUNKS),
)


class Account:
    """One schedule, and beside it, in the plainest words, what it was told."""

    def __init__(self) -> None:
        self.schedule = WirePriority(budget_bytes=BUDGET)
        self.now = 5.0
        self.collision = 0
        self.moved_at = 0.0  # something of the collision class began or ended
        self.quiet_until = 0.0
        self.in_flight: list[int] = []
        self.next: int | None = None  # the chunk whose turn it will be
        self.kept_off_since: float | None = None

    def act(self, action: str, value: float | int | None) -> None:
        if action == "begin":
            self.moved_at = self.moved_at if self.collision else self.now
            self.collision += 1
            self.schedule.begin_collision(self.now)
        elif action in ("end", "expect") and self.collision:
            self.collision -= 1
            self.moved_at = self.now
            if action == "expect":
                self.quiet_until = self.now + GRACE_S
            self.schedule.end_collision(self.now, expecting=action == "expect")
        elif action == "settle":
            self.quiet_until = 0.0
            self.schedule.settle()
        elif action == "done" and self.in_flight:
            self.schedule.done(self.in_flight.pop(0))
        elif action == "pass":
            assert value is not None
            self.now += value
        elif action == "ask" and self.next is None:
            self.next = int(value or 0)
            self.ask()
        elif action == "ask again" and self.next is not None:
            self.ask()

    def ask(self) -> None:
        """Check the answer for the next chunk, and issue it if it may go."""
        assert self.next is not None
        has_room = not self.in_flight_bytes or self.in_flight_bytes + self.next <= BUDGET
        is_open = self.now >= (self.moved_at + STARVED_S if self.collision else self.quiet_until)
        if has_room and not is_open and self.kept_off_since is None:
            self.kept_off_since = self.now
        starved = self.kept_off_since is not None and self.now >= self.kept_off_since + STARVED_S
        answer = self.schedule.ask(self.next, self.now)
        assert (answer <= self.now) == (has_room and (is_open or (starved and not self.in_flight_bytes)))
        if answer <= self.now:
            self.schedule.issue(self.next)
            self.in_flight.append(self.next)
            self.next, self.kept_off_since = None, None
        else:
            self.keeps_its_word(self.next, answer)

    def keeps_its_word(self, nbytes: int, answer: float) -> None:
        """If nothing changes, the chunk may go at that time and not before."""
        schedule = copy.deepcopy(self.schedule)
        if math.isinf(answer):
            assert schedule.ask(nbytes, self.now + 1e6) == math.inf
        else:
            assert schedule.ask(nbytes, math.nextafter(answer, 0)) == answer
            assert schedule.ask(nbytes, answer) <= answer

    @property
    def in_flight_bytes(self) -> int:
        return sum(self.in_flight)


@given(st.lists(ACTIONS, max_size=40))
def test_every_answer_is_that_of_the_rules(actions: list[tuple[str, float | None]]) -> None:
    account = Account()
    for action, value in actions:
        account.act(action, value)
        within = account.in_flight_bytes <= BUDGET or sum(n > 0 for n in account.in_flight) == 1
        assert within, f"{account.in_flight} under way"


@given(st.lists(ACTIONS, max_size=40), st.lists(CHUNKS, min_size=1, max_size=5))
def test_every_chunk_goes_in_time_even_if_collision_traffic_never_ends(
    actions: list[tuple[str, float | None]], chunks: list[int]
) -> None:
    account = Account()
    for action, value in actions:
        account.act(action, value)
    account.act("begin", None)
    for chunk in [*([account.next] if account.next is not None else []), *chunks]:
        while account.in_flight:
            account.act("done", None)
        asked = account.now
        account.next = chunk
        account.ask()
        if account.next is not None:
            account.now = account.schedule.ask(chunk, account.now)
            account.ask()
        assert account.next is None
        assert account.now <= asked + STARVED_S


@given(st.lists(ACTIONS, max_size=40), st.lists(ACTIONS, max_size=10), CHUNKS)
def test_everything_passes_once_stopped(
    before: list[tuple[str, float | None]], after: list[tuple[str, float | None]], chunk: int
) -> None:
    account = Account()
    for action, value in before:
        account.act(action, value)
    account.schedule.stop()
    for action, value in after:
        if not action.startswith("ask"):
            account.act(action, value)
    for _ in range(3):
        assert account.schedule.opens_at(account.now) <= account.now
        assert account.schedule.ask(chunk, account.now) <= account.now
        account.schedule.issue(chunk)


def test_exclusive_fills_the_budget() -> None:
    schedule = WirePriority(budget_bytes=100)
    for _ in range(2):
        assert schedule.ask(50, 0.0) <= 0.0
        schedule.issue(50)
    assert schedule.ask(1, 0.0) == math.inf
    schedule.done(50)
    assert schedule.ask(50, 0.0) <= 0.0


def test_a_chunk_that_waits_for_the_budget_does_not_starve() -> None:
    """Collision traffic has not kept it off."""
    schedule = WirePriority(budget_bytes=100)
    schedule.issue(100)
    assert schedule.ask(100, 0.0) == math.inf
    schedule.begin_collision(5.0)
    schedule.done(100)
    assert schedule.ask(100, 5.0) == 5.0 + STARVED_S


def test_each_starved_chunk_waits_its_own_time() -> None:
    schedule = WirePriority(budget_bytes=100)

    def moves(now: float) -> None:
        schedule.begin_collision(now)
        schedule.end_collision(now, expecting=False)

    schedule.begin_collision(0.0)
    assert schedule.ask(10, 0.0) == STARVED_S
    moves(0.9 * STARVED_S)
    assert schedule.ask(10, 0.9 * STARVED_S) == STARVED_S
    schedule.issue(10)
    assert schedule.ask(10, STARVED_S) == 1.9 * STARVED_S, "alone: first the one before has to be over"
    schedule.done(10)
    assert schedule.ask(10, 1.5 * STARVED_S) == 1.9 * STARVED_S
    moves(1.8 * STARVED_S)
    assert schedule.ask(10, 1.8 * STARVED_S) == 2 * STARVED_S


@pytest.mark.parametrize("name", ["budget_bytes", "grace_s", "starved_s"])
def test_negative_bounds_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
        WirePriority(**{name: -1})


def alarm(after_s: float) -> Process:
    yield after_s


def exclusive(
    clock: Clock, schedule: WirePriority, wire: Engine, over: list[float], chunks: int, nbytes: int
) -> Process:
    """A worker whose transport carries its chunks in order; `over` says when each is."""
    finished = 0
    alarms = set()

    def turn() -> bool:
        nonlocal finished
        while finished < len(over) and over[finished] <= clock.now:
            finished += 1
            schedule.done(nbytes)
        ask_at = schedule.ask(nbytes, clock.now)
        wake_at = min([ask_at, *over[finished : finished + 1]])
        if clock.now < wake_at < math.inf and wake_at not in alarms:
            alarms.add(wake_at)
            clock.spawn(alarm(wake_at - clock.now))
        return ask_at <= clock.now

    for _ in range(chunks):
        yield turn
        schedule.issue(nbytes)
        over.append(clock.now + next(wire.copy(nbytes)))


def collision(
    clock: Clock, schedule: WirePriority, wire: Engine, took: list[float], every_s: float, nbytes: int
) -> Process:
    for _ in range(50):
        yield every_s
        start = clock.now
        schedule.begin_collision(clock.now)
        yield from wire.copy(nbytes)
        schedule.end_collision(clock.now, expecting=False)
        took.append(clock.now - start)


@pytest.mark.parametrize("every_s", [0.0007, 0.01, 0.13])
def test_collision_traffic_waits_for_the_budget_at_most_and_exclusive_loses_nothing(every_s: float) -> None:
    """On a wire of 1 GB/s that carries all in the order in which it is issued."""
    clock, schedule = Clock(), WirePriority(budget_bytes=200_000)
    wire = Engine(clock, bytes_per_s=1e9)
    took: list[float] = []
    over: list[float] = []
    clock.spawn(exclusive(clock, schedule, wire, over, 1000, 100_000))
    clock.spawn(collision(clock, schedule, wire, took, every_s, 1000))
    assert clock.run()
    alone = 1000 / 1e9
    assert alone < max(took) <= alone + 200_000 / 1e9 + 1e-9
    assert wire.busy_s == pytest.approx(0.1 + 50 * alone)
    assert over[-1] <= wire.busy_s + 50 * (alone + 1e-9), "the wire was idle while a chunk could have gone"


def endless(clock: Clock, schedule: WirePriority, every_s: float, times: int) -> Process:
    """One exchange begins before the one before it ends."""
    schedule.begin_collision(clock.now)
    for _ in range(times):
        yield every_s
        schedule.begin_collision(clock.now)
        schedule.end_collision(clock.now, expecting=False)


def test_endless_collision_traffic_lets_a_chunk_pass_now_and_then() -> None:
    clock, schedule = Clock(), WirePriority(budget_bytes=200, starved_s=1.0)
    wire = Engine(clock, bytes_per_s=1000)
    over: list[float] = []
    clock.spawn(endless(clock, schedule, 0.3, 40))
    clock.spawn(exclusive(clock, schedule, wire, over, 5, 100))
    assert clock.run()
    assert over == pytest.approx([n * 1.0 + 0.1 for n in range(1, 6)])


def test_a_collision_exchange_that_does_not_end_holds_back_nothing_after_a_while() -> None:
    clock, schedule = Clock(), WirePriority(budget_bytes=200, starved_s=1.0)
    wire = Engine(clock, bytes_per_s=1000)
    over: list[float] = []
    schedule.begin_collision(clock.now)
    clock.spawn(exclusive(clock, schedule, wire, over, 5, 100))
    assert clock.run()
    assert over == pytest.approx([1.1 + n * 0.1 for n in range(5)])
