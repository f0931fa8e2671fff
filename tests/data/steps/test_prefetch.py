"""Items made ahead: order, errors unchanged at their place, no thread left."""

import threading

import pytest

from fsdata.batch.prefetch import Ahead


class Custom(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


def counter(stop=None, error=None):
    state = {"n": 0}

    def make():
        state["n"] += 1
        if error is not None and state["n"] == error[0]:
            raise error[1]
        return None if stop is not None and state["n"] > stop else state["n"]

    return make


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_in_order_then_the_end(depth):
    ahead = Ahead(counter(stop=7), depth=depth, pin=False)
    assert list(ahead) == [1, 2, 3, 4, 5, 6, 7]
    ahead.stop()
    assert [thread.join() for thread in ahead.threads] == [None] * bool(depth)


@pytest.mark.parametrize("depth", [0, 2])
def test_the_very_error_is_raised_where_it_happened(depth):
    error = Custom(code=7)
    ahead = Ahead(counter(error=(3, error)), depth=depth, pin=False)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(Custom) as caught:
        next(ahead)
    assert caught.value is error
    ahead.stop()


def test_stopping_in_mid_item_makes_no_other():
    started, go_on = threading.Event(), threading.Event()
    made = []

    def make():
        started.set()
        go_on.wait()
        made.append(1)
        return 1

    ahead = Ahead(make, depth=3, pin=False)
    # The consumer's thread asks; the item is in the making when the loader is closed.
    asking = threading.Thread(target=lambda: next(ahead, None))
    asking.start()
    started.wait()
    ahead._root.stopped = True
    go_on.set()
    asking.join()
    ahead.stop()
    for thread in ahead.threads:
        thread.join()
    assert made == [1]
