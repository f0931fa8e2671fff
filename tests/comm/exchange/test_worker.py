"""A worker: work in order, errors that stay, an end that leaves no thread."""

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
from patience import PATIENCE_S

import fscomm.exchange.worker
from fscomm.device import Host
from fscomm.exchange.worker import Worker


class Payload:
    """Something that a weak reference can point to."""


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def worker(errors: list[BaseException]) -> Iterator[Worker]:
    worker = Worker("test", errors.append, device=Host(), limit_s=PATIENCE_S)
    yield worker
    worker.close()


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


def test_results_in_the_order_given(worker: Worker) -> None:
    """The first piece of work is held until all the others are queued."""
    go = threading.Event()
    order: list[int] = []

    def work(i: int) -> int:
        assert go.wait(PATIENCE_S)
        order.append(i)
        return 10 * i

    futures = [worker.submit(lambda i=i: work(i)) for i in range(20)]
    assert not any(future.done() for future in futures)
    go.set()
    assert [future.result(PATIENCE_S) for future in futures] == [10 * i for i in range(20)]
    assert order == list(range(20))


def test_one_thread_of_its_own_with_its_name(worker: Worker) -> None:
    threads = {worker.submit(threading.current_thread).result(PATIENCE_S) for _ in range(3)}
    assert [thread.name for thread in threads] == ["fscomm test"]
    assert threads.isdisjoint([threading.current_thread()])


@pytest.mark.parametrize("error", [ValueError("a peer is gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_an_error_nothing_more_runs(worker: Worker, errors: list[BaseException], error: BaseException) -> None:
    ran: list[int] = []
    futures = [worker.submit(lambda: ran.append(0)), worker.submit(raising(error))]
    futures += [worker.submit(lambda i=i: ran.append(i)) for i in (1, 2)]
    futures[0].result(PATIENCE_S)
    for future in futures[1:]:
        assert future.exception(PATIENCE_S) is error
    assert worker.submit(lambda: ran.append(3)).exception(PATIENCE_S) is error
    assert ran == [0]
    assert errors == [error]


def test_the_error_is_told_before_anybody_sees_it() -> None:
    """In the worker's thread, and once only."""
    told: list[tuple[bool, str]] = []
    futures: list[Future[Any]] = []
    queued = threading.Event()

    def on_error(_: BaseException) -> None:
        assert queued.wait(PATIENCE_S)
        told.append((any(future.done() for future in futures), threading.current_thread().name))

    worker = Worker("test", on_error, device=Host(), limit_s=PATIENCE_S)
    futures += [worker.submit(raising(ValueError("first"))), worker.submit(raising(ValueError("second")))]
    queued.set()
    assert [str(future.exception(PATIENCE_S)) for future in futures] == ["first", "first"]
    assert told == [(False, "fscomm test")]
    worker.close()


@pytest.mark.parametrize("fails", [False, True], ids=["", "after an error"])
def test_closing_completes_what_was_submitted_and_ends_the_thread(fails: bool) -> None:
    worker = Worker("test", lambda _: None, device=Host(), limit_s=PATIENCE_S)
    thread = worker.submit(threading.current_thread).result(PATIENCE_S)
    if fails:
        worker.submit(raising(ValueError("broken")))
    done: list[int] = []
    futures = [worker.submit(lambda i=i: done.append(i)) for i in range(50)]
    worker.close()
    assert all(future.done() for future in futures)
    assert len(done) == (0 if fails else 50)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True], ids=["", "after an error"])
def test_a_closed_worker_takes_no_work(fails: bool) -> None:
    """Whoever waited for it would wait for ever."""
    worker = Worker("test", lambda _: None, device=Host(), limit_s=PATIENCE_S)
    if fails:
        worker.submit(raising(ValueError("broken")))
    worker.close()
    with pytest.raises(RuntimeError, match="the test worker is closed"):
        worker.submit(lambda: None)


def test_what_is_done_is_let_go_while_the_worker_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
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

        assert worker.submit(work).result(PATIENCE_S) is result
        return weakref.ref(held), weakref.ref(result)

    monkeypatch.setattr(fscomm.exchange.worker, "queue", SimpleNamespace(SimpleQueue=Watched))
    worker = Worker("test", lambda _: None, device=Host(), limit_s=PATIENCE_S)
    held, result = submitted()
    for _ in range(2):
        assert asks.acquire(timeout=PATIENCE_S)
    assert (held(), result()) == (None, None)
    worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads share the priority of their process")
@pytest.mark.parametrize("background", [False, True])
def test_a_worker_in_the_background_gives_way_and_no_other_thread_does(background: bool) -> None:
    worker = Worker("test", pytest.fail, device=Host(), limit_s=PATIENCE_S, background=background)
    try:
        usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        of_worker = worker.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(PATIENCE_S)
    finally:
        worker.close()
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == usual
    assert of_worker == (min(usual + fscomm.exchange.worker.NICENESS, 19) if background else usual)
