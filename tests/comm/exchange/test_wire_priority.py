"""The rules of the wire against a plain account of what happened, in time that the test makes."""

import copy
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fscomm.exchange.wire_priority import GRACE_S, STARVED_S, WirePriority

BUDGET = 100
MOMENTS = st.sampled_from([0.0, GRACE_S / 2, GRACE_S, STARVED_S / 2, STARVED_S])
CHUNKS = st.integers(0, 2 * BUDGET)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["begin", "end", "expect", "settle", "done", "ask again"]), st.none()),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("pass"), MOMENTS),
    st.tuples(st.just("ask"), CHUNKS),
)

Actions = list[tuple[str, float | None]]

HALF = ("pass", STARVED_S / 2)
AGAIN = ("ask again", None)
MOVES = [("begin", None), ("end", None)]  # collision exchanges go on
STARVED_TWICE: Actions = [
    *(("begin", None), ("ask", 10), HALF, *MOVES, HALF, AGAIN),
    *(("ask", 10), HALF, *MOVES, AGAIN, ("done", None), AGAIN, HALF, *MOVES, AGAIN),
]
WAITS_FOR_ROOM: Actions = [("ask", 100), ("ask", 100), HALF, ("begin", None), ("done", None), AGAIN, HALF, AGAIN]


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
        self.stopped = False

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
        elif action == "stop":
            self.stopped = True
            self.schedule.stop()
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
        has_room = self.stopped or not self.in_flight_bytes or self.in_flight_bytes + self.next <= BUDGET
        is_open = self.stopped or self.now >= (self.moved_at + STARVED_S if self.collision else self.quiet_until)
        if has_room and not is_open and self.kept_off_since is None:
            self.kept_off_since = self.now
        starved = self.kept_off_since is not None and self.now >= self.kept_off_since + STARVED_S
        assert (self.schedule.opens_at(self.now) <= self.now) == is_open
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


@given(actions=st.lists(ACTIONS, max_size=40))
@example(actions=STARVED_TWICE)
@example(actions=WAITS_FOR_ROOM)
def test_every_answer_is_that_of_the_rules(actions: Actions) -> None:
    account = Account()
    for action, value in actions:
        account.act(action, value)
        within = account.in_flight_bytes <= BUDGET or sum(n > 0 for n in account.in_flight) == 1
        assert within or account.stopped, f"{account.in_flight} under way"


@pytest.mark.parametrize("name", ["budget_bytes", "grace_s", "starved_s"])
def test_negative_bounds_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
        WirePriority(**{name: -1})
