"""A worker: work in order, errors that stay, an end that leaves no thread, and its place in the order of the device."""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from clocks import Clocks
from patience import PATIENCE_S, until

from fscomm.device import Device, Host
from fscomm.exchange.worker import BACKGROUND, NICENESS, NORMAL, URGENT, Worker


class Payload:
    """Something that a weak reference can point to."""


def worker_on(device: Device, on_error: Callable[[BaseException], Any] = pytest.fail, **options: Any) -> Worker:
    return Worker("test", on_error, device=device, limit_s=PATIENCE_S, **options)


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("error", [ValueError("a peer is gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_an_error_nothing_more_runs(error: BaseException) -> None:
    """It is told once, in the worker's thread, before anybody sees it."""
    told: list[tuple[BaseException, bool, str]] = []
    futures: list[Future[Any]] = []
    queued = threading.Event()

    def on_error(error: BaseException) -> None:
        assert queued.wait(PATIENCE_S)
        told.append((error, any(future.done() for future in futures), threading.current_thread().name))

    worker = worker_on(Host(), on_error)
    ran: list[int] = []
    worker.submit(lambda: ran.append(0))
    futures += [worker.submit(raising(each)) for each in (error, ValueError("second"))]
    futures.append(worker.submit(lambda: ran.append(1)))
    queued.set()
    for future in futures:
        assert future.exception(PATIENCE_S) is error
    assert worker.submit(lambda: ran.append(2)).exception(PATIENCE_S) is error
    worker.close()
    with pytest.raises(RuntimeError, match="the test worker is closed"):
        worker.submit(lambda: None)
    assert ran == [0]
    assert told == [(error, False, "fscomm test")]


def test_what_is_done_is_let_go_while_the_worker_is_idle() -> None:
    """Neither the work nor its result stays until the next piece of work comes: both hold tensors."""
    worker = worker_on(Host())

    def submitted() -> tuple[weakref.ref[Payload], weakref.ref[Payload]]:
        held, result = Payload(), Payload()

        def work(held: Payload = held, result: Payload = result) -> Payload:
            return result

        assert worker.submit(work).result(PATIENCE_S) is result
        return weakref.ref(held), weakref.ref(result)

    held, result = submitted()
    until(lambda: held() is None and result() is None, "the end of what was done")
    worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads share the priority of their process")
@pytest.mark.parametrize("given", [URGENT, NORMAL, BACKGROUND])
def test_a_worker_in_the_background_gives_way_and_no_other_thread_does(given: int) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    worker = worker_on(Host(), priority=given)
    try:
        usual = priority()
        of_worker = worker.submit(priority).result(PATIENCE_S)
    finally:
        worker.close()
    assert priority() == usual
    assert of_worker == (min(usual + NICENESS, 19) if given == BACKGROUND else usual)


def test_work_under_way_on_the_device_keeps_what_it_uses_and_closing_waits_for_it() -> None:
    device = Clocks()
    worker = worker_on(device)

    def submitted() -> tuple[Any, weakref.ref[Payload]]:
        held = Payload()

        def work(held: Payload = held) -> None:
            del held

        pending = worker.submit(work)
        pending.result(PATIENCE_S)
        return pending.mark, weakref.ref(held)

    mark, held = submitted()
    worker.submit(lambda: None).result(PATIENCE_S)
    assert held() is not None
    device.wait(mark, PATIENCE_S)
    worker.submit(lambda: None).result(PATIENCE_S)
    last = worker.submit(lambda: None)
    last.result(PATIENCE_S)
    assert held() is None
    worker.close()
    assert last.mark in device.waited


def test_a_worker_that_cannot_enter_its_device_fails_what_is_submitted() -> None:
    class Lost(Host):
        def enter(self, *, priority: int = 0) -> None:
            raise RuntimeError("the device is lost")

    told: list[str] = []
    worker = worker_on(Lost(), lambda error: told.append(str(error)))
    pending = worker.submit(lambda: pytest.fail("ran"))
    assert str(pending.exception(PATIENCE_S)) == "the device is lost"
    worker.close()
    assert told == ["the device is lost"]
