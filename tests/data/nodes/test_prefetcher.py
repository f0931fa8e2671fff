"""`Prefetcher`: items come in order, each once, never more than `depth` ahead; its thread ends with it."""

import gc
import threading
from unittest import mock

import pytest
from patience import PATIENCE_S, until

from fsdata.batch.prefetch import Prefetcher


class Numbers:
    """0, 1, 2, ...; at `last` it returns None, or raises that error. A call waits for `go`."""

    def __init__(self, last=4, error=None):
        self.last, self.error = last, error
        self.asked = self.made = 0
        self.go = threading.Event()
        self.go.set()

    def __call__(self):
        self.asked += 1
        assert self.go.wait(PATIENCE_S)
        if self.made == self.last:
            if self.error is not None:
                raise self.error
            return None
        self.made += 1
        return self.made - 1


@pytest.fixture
def threads(begun):
    return lambda: begun("fsdata-prefetch")


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order_then_none_for_ever_or_the_error_at_its_item(depth, threads):
    ahead = Prefetcher(Numbers(4), depth=depth, pin=False)
    assert [ahead.take() for _ in range(7)] == [0, 1, 2, 3, None, None, None]
    ahead.end()
    ahead = Prefetcher(Numbers(2, KeyError("two")), depth=depth, pin=False)
    assert [ahead.take(), ahead.take()] == [0, 1]
    with pytest.raises(KeyError, match="two"):
        ahead.take()
    ahead.end()
    assert not threads()


def test_nothing_is_made_before_it_is_asked_for_and_then_as_many_as_there_is_room_for(threads):
    numbers = Numbers(99)
    ahead = Prefetcher(numbers, depth=2, pin=False)
    assert not threads()
    assert ahead.take() == 0
    until(lambda: ahead.waiting == 2)
    assert numbers.made == 3
    ahead.end()
    assert numbers.made == 3
    assert not threads()


def test_items_made_before_the_end_can_still_be_taken_and_no_others(threads):
    ahead = Prefetcher(Numbers(99), depth=2, pin=False)
    ahead.take()
    until(lambda: ahead.waiting == 2)
    ahead.end()
    ahead.end()
    assert [ahead.take() for _ in range(4)] == [1, 2, None, None]
    ahead = Prefetcher(Numbers(), depth=2, pin=False)
    ahead.end()
    assert ahead.take() is None
    assert not threads()


def test_a_thread_that_cannot_begin_is_not_waited_for(threads):
    ahead = Prefetcher(Numbers(), depth=2, pin=False)
    with mock.patch("threading.Thread.start", side_effect=RuntimeError), pytest.raises(RuntimeError):
        ahead.take()
    assert ahead.take() == 0
    ahead.end()
    assert not threads()


def test_make_may_end_it(threads):
    found = []

    def make():
        found.append(ahead)
        ahead.end()
        return 5

    ahead = Prefetcher(make, depth=2, pin=False)
    assert [ahead.take(), ahead.take()] == [5, None]
    assert len(found) == 1
    ahead.end()
    assert not threads()


def test_who_drops_it_ends_its_thread(threads):
    ahead = Prefetcher(Numbers(99), depth=2, pin=False)
    ahead.take()
    del ahead
    gc.collect()
    until(lambda: not threads())


def test_an_item_in_hand_that_takes_too_long_is_given_up(threads):
    numbers = Numbers(99)
    ahead = Prefetcher(numbers, depth=1, pin=False)
    ahead.take()
    until(lambda: ahead.waiting == 1)
    numbers.go.clear()
    ahead.take()
    until(lambda: numbers.asked == 3)
    ahead.end(0, numbers.go.set)
    assert not threads()


def test_ctrl_c_while_it_waits_loses_no_item():
    numbers = Numbers(2)
    ahead = Prefetcher(numbers, depth=2, pin=False)
    numbers.go.clear()
    wait = threading.Condition.wait

    def interrupted(condition, timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait(condition, timeout)

    with mock.patch("threading.Condition.wait", interrupted), pytest.raises(KeyboardInterrupt):
        ahead.take()
    numbers.go.set()
    assert [ahead.take() for _ in range(3)] == [0, 1, None]
    ahead.end()
