"""A lane: work in order, errors that stay, an end that leaves no thread."""

import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import fscomm.exchange.worker
from fscomm.device import Host
from fscomm.exchange.worker import Lane

DEADLINE_S = 20


class Payload:
    """Something that a weak reference can point to."""


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def lane(errors: list[BaseException]) -> Iterator[Lane]:
    lane = Lane("test", errors.append, device=Host())
    yield lane
    lane.close()


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


def test_results_in_the_order_given(lane: Lane) -> None:
    """The first piece of work is held until all the others are queued."""
    go = threading.Event()
    order: list[int] = []

    def work(i: int) -> int:
        assert go.wait(DEADLINE_S)
        order.append(i)
        return 10 * i

    futures = [lane.submit(lambda i=i: work(i)) for i in range(20)]
    assert not any(future.done() for future in futures)
    go.set()
    assert [future.result(DEADLINE_S) for future in futures] == [10 * i for i in range(20)]
    assert order == list(range(20))


def test_one_thread_of_its_own_with_its_name(lane: Lane) -> None:
    threads = {lane.submit(threading.current_thread).result(DEADLINE_S) for _ in range(3)}
    assert [thread.name for thread in threads] == ["fscomm test"]
    assert threads.isdisjoint([threading.current_thread()])


@pytest.mark.parametrize("error", [ValueError("a peer is gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_an_error_nothing_more_runs(lane: Lane, errors: list[BaseException], error: BaseException) -> None:
    ran: list[int] = []
    futures = [lane.submit(lambda: ran.append(0)), lane.submit(raising(error))]
    futures += [lane.submit(lambda i=i: ran.append(i)) for i in (1, 2)]
    futures[0].result(DEADLINE_S)
    for future in futures[1:]:
        assert future.exception(DEADLINE_S) is error
    assert lane.submit(lambda: ran.append(3)).exception(DEADLINE_S) is error
    assert ran == [0]
    assert errors == [error]


def test_the_error_is_told_before_anybody_sees_it() -> None:
    """In the lane's thread, and once only."""
    told: list[tuple[bool, str]] = []
    futures: list[Future[Any]] = []
    queued = threading.Event()

    def on_error(_: BaseException) -> None:
        assert queued.wait(DEADLINE_S)
        told.append((any(future.done() for future in futures), threading.current_thread().name))

    lane = Lane("test", on_error, device=Host())
    futures += [lane.submit(raising(ValueError("first"))), lane.submit(raising(ValueError("second")))]
    queued.set()
    assert [str(future.exception(DEADLINE_S)) for future in futures] == ["first", "first"]
    assert told == [(False, "fscomm test")]
    lane.close()


@pytest.mark.parametrize("fails", [False, True], ids=["", "after an error"])
def test_closing_completes_what_was_submitted_and_ends_the_thread(fails: bool) -> None:
    lane = Lane("test", lambda _: None, device=Host())
    thread = lane.submit(threading.current_thread).result(DEADLINE_S)
    if fails:
        lane.submit(raising(ValueError("broken")))
    done: list[int] = []
    futures = [lane.submit(lambda i=i: done.append(i)) for i in range(50)]
    lane.close()
    assert all(future.done() for future in futures)
    assert len(done) == (0 if fails else 50)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True], ids=["", "after an error"])
def test_a_closed_lane_takes_no_work(fails: bool) -> None:
    """Whoever waited for it would wait for ever."""
    lane = Lane("test", lambda _: None, device=Host())
    if fails:
        lane.submit(raising(ValueError("broken")))
    lane.close()
    with pytest.raises(RuntimeError, match="the test lane is closed"):
        lane.submit(lambda: None)


def test_what_is_done_is_let_go_while_the_lane_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the work nor its result stays until the next piece of work comes: both hold tensors."""
    asks = threading.Semaphore(0)

    class Watched(queue.SimpleQueue):
        def get(self, *args: Any, **options: Any) -> Any:
            asks.release()
            return super().get(*args, **options)

    def submitted() -> tuple[weakref.ref[Payload], weakref.ref[Payload]]:
        held, result = Payload(), Payload()

        def work(held: Payload = held, result: Payload = result) -> Payload:
            return result

        assert lane.submit(work).result(DEADLINE_S) is result
        return weakref.ref(held), weakref.ref(result)

    monkeypatch.setattr(fscomm.lane, "queue", SimpleNamespace(SimpleQueue=Watched))
    lane = Lane("test", lambda _: None, device=Host())
    held, result = submitted()
    for _ in range(2):
        assert asks.acquire(timeout=DEADLINE_S)
    assert (held(), result()) == (None, None)
    lane.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads share the priority of their process")
@pytest.mark.parametrize("background", [False, True])
def test_a_lane_in_the_background_gives_way_and_no_other_thread_does(background: bool) -> None:
    lane = Lane("test", pytest.fail, device=Host(), background=background)
    try:
        usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        of_lane = lane.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(DEADLINE_S)
    finally:
        lane.close()
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == usual
    assert of_lane == (min(usual + fscomm.lane.NICENESS, 19) if background else usual)
