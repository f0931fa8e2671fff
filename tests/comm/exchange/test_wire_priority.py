"""The rules of the wire against a plain account of what happened, in time that the test makes."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscomm.exchange.wire_priority import GRACE_S, WirePriority

BUDGET = 100
MOMENTS = st.sampled_from([0.0, GRACE_S / 2, GRACE_S])
NUMBERS = st.integers(1, 4)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["begin", "end", "expect", "settle", "done", "ids", "no ids", "ask again"]), st.none()),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("pass"), MOMENTS),
    st.tuples(st.sampled_from(["operation", "let go"]), NUMBERS),
    st.tuples(st.just("ask"), st.integers(0, 2 * BUDGET)),
)

Actions = list[tuple[str, float | None]]


class Account:
    """One schedule, and beside it, in the plainest words, what it was told."""

    def __init__(self) -> None:
        self.schedule = WirePriority(budget_bytes=BUDGET)
        self.now = 5.0
        self.collision = 0
        self.quiet_until = 0.0
        self.operation = 0  # 0: none was begun
        self.awaited: set[int] = set()
        self.ids_awaited = False
        self.in_flight: list[int] = []
        self.next: int | None = None  # the chunk whose turn it will be
        self.stopped = False

    def act(self, action: str, value: float | int | None) -> None:
        if action == "begin":
            self.collision += 1
            self.schedule.begin_collision()
        elif action in ("end", "expect") and self.collision:
            self.collision -= 1
            if action == "expect":
                self.quiet_until = self.now + GRACE_S
            self.schedule.end_collision(self.now, expecting=action == "expect")
        elif action == "settle":
            self.quiet_until = 0.0
            self.schedule.settle()
        elif action == "stop":
            self.stopped = True
            self.schedule.stop()
        elif action == "done" and self.in_flight:
            self.schedule.done(self.in_flight.pop(0))
        elif action == "pass":
            assert value is not None
            self.now += value
        elif action == "operation":
            self.operation += int(value or 0)
            self.schedule.begin_exclusive(self.operation)
        elif action == "let go":
            self.awaited |= set(range(1, int(value or 0) + 1))
            self.schedule.let_go(int(value or 0))
        elif action in ("ids", "no ids"):
            self.ids_awaited = action == "ids"
            self.schedule.await_ids(self.ids_awaited)
        elif action == "ask" and self.next is None:
            self.next = int(value or 0)
            self.ask()
        elif action == "ask again" and self.next is not None:
            self.ask()

    def ask(self) -> None:
        """Check the answer for the next chunk, and issue it if it may go."""
        assert self.next is not None
        has_room = self.stopped or not self.in_flight_bytes or self.in_flight_bytes + self.next <= BUDGET
        is_open = self.stopped or (not self.collision and self.now >= self.quiet_until)
        goes_on = is_open or self.operation in self.awaited
        assert (self.schedule.exclusive_at() <= self.now) == goes_on
        assert (self.schedule.ids_at() <= self.now) == (is_open or self.ids_awaited)
        answer = self.schedule.chunk_at(self.next)
        assert (answer <= self.now) == (has_room and goes_on)
        if answer <= self.now:
            self.schedule.issue(self.next)
            self.in_flight.append(self.next)
            self.next = None
        else:
            self.keeps_its_word(self.next, answer)

    def keeps_its_word(self, nbytes: int, answer: float) -> None:
        """If nothing changes, the chunk may go at that time and not before."""
        assert copy.deepcopy(self.schedule).chunk_at(nbytes) == answer
        assert math.isinf(answer) or answer == self.quiet_until

    @property
    def in_flight_bytes(self) -> int:
        return sum(self.in_flight)


@given(actions=st.lists(ACTIONS, max_size=40))
def test_every_answer_is_that_of_the_rules(actions: Actions) -> None:
    account = Account()
    for action, value in actions:
        account.act(action, value)
        within = account.in_flight_bytes <= BUDGET or sum(n > 0 for n in account.in_flight) == 1
        assert within or account.stopped, f"{account.in_flight} under way"


@pytest.mark.parametrize("name", ["budget_bytes", "grace_s"])
def test_negative_bounds_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
        WirePriority(**{name: -1})
