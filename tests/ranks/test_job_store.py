"""The job's store: what a wait returns, and how little it asks while a rank is late."""

import contextlib
import datetime
import signal
import threading
from unittest import mock

import pytest
import torch.distributed as dist
from patience import PATIENCE_S, until
from played_clock import PlayedClock

from fsranks.job_store import JobStore, StoreConnection, StoreLost

RANKS = 64


class Counting:
    """A store that counts the keys that it is asked for."""

    def __init__(self, store):
        self._store = store
        self.looked_up = 0
        self.questions = 0

    def check(self, keys):
        self.looked_up += len(keys)
        self.questions += 1
        return self._store.check(keys)

    def multi_get(self, keys):
        return self._store.multi_get(keys)

    def set(self, key, text):
        self._store.set(key, text)


@pytest.fixture
def store():
    return counted(PlayedClock())


def counted(clock):
    store = JobStore(StoreConnection(dist.HashStore()), "test", clock)
    store.store = Counting(store.store)
    return store


def post(store, ranks):
    for rank in ranks:
        store.post(str(rank), f"note {rank}", 1)


@pytest.mark.parametrize("absent", [[], [0], [7, 9], [63], list(range(RANKS))], ids=str)
def test_notes_that_do_not_come_are_left_out(store, absent):
    there = [rank for rank in range(RANKS) if rank not in absent]
    post(store, there)
    assert store.wait(map(str, range(RANKS)), 1.0) == {str(rank): f"note {rank}" for rank in there}


def test_notes_that_are_there_are_asked_for_once(store):
    post(store, range(RANKS))
    store.wait(map(str, range(RANKS)), 10)
    assert store.store.looked_up == RANKS


@pytest.mark.parametrize("late", [0, 63])
def test_while_a_rank_is_late_its_key_alone_is_asked_for_and_ever_less_often(late):
    """Every 5 ms all keys would be 100 * 64 in half a second."""
    clock = PlayedClock(0.5, lambda: store.store.set(str(late), "here"))
    store = counted(clock)
    post(store, (rank for rank in range(RANKS) if rank != late))
    notes = store.wait(map(str, range(RANKS)), PATIENCE_S)
    assert len(notes) == RANKS
    assert 0.5 <= clock.seconds < 0.6
    assert store.store.looked_up < 2 * RANKS + 60


def test_what_is_said_while_a_question_hangs_reaches_the_store_when_it_goes_on():
    there, goes_on = dist.HashStore(), threading.Event()
    connection = StoreConnection(there)
    with pytest.raises(StoreLost, match=r"rank 0, which hosts .* does not answer"):
        connection.ask(lambda given_up: goes_on.wait(PATIENCE_S), -1.0)  # given up at once
    store = JobStore(connection, "test")

    class Behind:
        """Torch's client: one question after another."""

        def set(self, key, text):
            goes_on.wait(PATIENCE_S)
            there.set(key, text)

    store.store = Behind()
    with pytest.raises(StoreLost, match="does not answer"):
        store.post("note", "my last word", PATIENCE_S)
    assert not there.check(["note"])
    goes_on.set()
    until(lambda: there.check(["note"]), "the note")

    def answers():
        with contextlib.suppress(StoreLost):
            store.post("another", "as ever", PATIENCE_S)
        return there.check(["another"])

    until(answers, "an answer as ever")


def test_of_many_notes_few_questions_find_the_one_that_is_missing(store):
    post(store, (rank for rank in range(RANKS) if rank not in (3, 40)))
    assert len(store.wait(map(str, range(RANKS)), 0)) == RANKS - 2
    assert store.store.questions < 5 + 2 * 6 + 2


class Interrupting:
    """A store without notes: it is as if its user pressed Ctrl-C when it is first asked."""

    asked = False

    def check(self, keys):
        if not self.asked:
            self.asked = True
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return False

    def set(self, key, value):
        pass


def wait_in_gloo(store):
    store.lend(lambda lent: dist.ProcessGroupGloo(lent, 1, 2, datetime.timedelta(seconds=PATIENCE_S)), PATIENCE_S)


def begin_to_wait(store):
    """Ctrl-C comes when the thread runs, and before anybody waits for it."""
    store.store, start = dist.HashStore(), threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    with mock.patch.object(threading.Thread, "start", interrupted):
        store.wait(["not there"], PATIENCE_S)


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.wait(["not there"], PATIENCE_S), wait_in_gloo, begin_to_wait],
    ids=["wait", "gloo", "begin"],
)
def test_after_ctrl_c_no_thread_asks_any_longer(ask):
    """It would come out of C++ when Python has ended, and abort the process."""
    store = JobStore(StoreConnection(dist.HashStore()), "test")
    store.store = Interrupting()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(store)
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: "freescale-store" not in [thread.name for thread in threading.enumerate()])
