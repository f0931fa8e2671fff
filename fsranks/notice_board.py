"""A notice board that all ranks of a job can read: the store of the process group, asked with a time limit.

The store answers even when a collective cannot, unless its host is gone or stopped. Its own client may then block for
ever, so every question is asked in a thread that is given up on after the limit; such a thread ends with its
connection.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist

from fsranks.errors import PeerError

T = TypeVar("T")


class StoreLost(PeerError):
    """The host of the store does not answer."""


class NoticeBoard:
    """Notes under one prefix of a store.

    Waiting asks again and again, so that boards may share a connection and none blocks another. Methods raise StoreLost
    when the store does not answer; they may be called from any thread.
    """

    def __init__(self, connection: dist.Store, prefix: str) -> None:
        self._connection = connection
        self.store = dist.PrefixStore(prefix, connection)

    def post(self, key: str, text: str, timeout_s: float) -> None:
        store = self.store
        _bounded(lambda: store.set(key, text), timeout_s + _PATIENCE_S, self._connection)

    def wait(self, keys: Iterable[str], timeout_s: float) -> dict[str, str]:
        """The notes under `keys`, waiting at most `timeout_s`; those not posted by then are left out."""
        keys = list(keys)
        return _bounded(lambda: self._ask(keys, timeout_s), timeout_s + _PATIENCE_S, self._connection)

    def decide(self, key: str, text: str, timeout_s: float) -> str:
        """Post `text` under `key` unless somebody did before; in any case, what stands there now."""
        store = self.store
        decided = _bounded(lambda: store.compare_set(key, "", text), timeout_s + _PATIENCE_S, self._connection)
        return decided.decode()

    def lend(self, function: Callable[[dist.Store], T], timeout_s: float) -> T:
        """`function(store)`, given up on after `timeout_s`. Raises RuntimeError for a reason other than the store."""
        outcome = _in_thread(lambda: function(self.store), timeout_s)
        if not outcome:
            self.wait([""], 0)  # raises StoreLost if that is why
            raise RuntimeError(f"no end after {timeout_s:g} s")
        done, value = outcome[0]
        if not done:
            raise value
        return value

    def _ask(self, keys: list[str], timeout_s: float) -> dict[str, str]:
        """As `wait`. All ranks may wait for one that is late: they ask for that one's key alone, ever less often."""
        store, begin = self.store, time.monotonic()
        known = len(keys) if store.check(keys) else 0
        while known < len(keys):
            if store.check([keys[known]]):
                known += 1
                continue
            waited = time.monotonic() - begin
            if waited >= timeout_s:
                keys = keys[:known] + [key for key in keys[known + 1 :] if store.check([key])]
                break
            time.sleep(min(max(_ASK_AGAIN_S, waited / 10), _ASK_AGAIN_AT_MOST_S, timeout_s - waited))
        return dict(zip(keys, (note.decode() for note in store.multi_get(keys)), strict=True)) if keys else {}


_ASK_AGAIN_S = 0.005
_ASK_AGAIN_AT_MOST_S = 0.25
_PATIENCE_S = 1.0  # beyond the time limit: what a store that is alive may take for its last answer


def connect(store: Any, timeout_s: float) -> dist.Store:
    """A connection of its own to where `store` lies, which nobody blocks by waiting on it."""
    return _bounded(store.clone, timeout_s + _PATIENCE_S, store)


_unanswered: weakref.WeakKeyDictionary[dist.Store, str] = weakref.WeakKeyDictionary()  # connections, and what was said


def _bounded(function: Callable[[], T], timeout_s: float, connection: dist.Store) -> T:
    """`function()`, which asks `connection`, in a thread that is left alone after `timeout_s`.

    While a question that was given up on hangs in `connection`, others would hang behind it and are not asked: whoever
    asks for many boards one after the other waits once.
    """
    if (said := _unanswered.get(connection)) is not None:
        raise StoreLost(said)
    outcome = _in_thread(function, timeout_s, lambda: _unanswered.pop(connection, None))
    if not outcome:
        said = f"{_host()}, which hosts the job's store, does not answer within {timeout_s:g} s: dead or stopped"
        _unanswered[connection] = said
        if not outcome:
            raise StoreLost(said)
        _unanswered.pop(connection, None)  # answered just now
    done, value = outcome[0]
    if not done:
        raise StoreLost(f"{_host()}, which hosts the job's store, is gone: {value}") from value
    return value


def _in_thread(
    function: Callable[[], Any], timeout_s: float, then: Callable[[], object] = lambda: None
) -> list[tuple[bool, Any]]:
    """[(True, what `function()` gives)] or [(False, its error)]; empty until it has ended. `then` is called behind."""
    outcome: list[tuple[bool, Any]] = []

    def call() -> None:
        try:
            outcome.append((True, function()))
        except (RuntimeError, OSError) as error:
            outcome.append((False, error))
        finally:
            then()

    thread = threading.Thread(target=call, name="freescale-board", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return outcome


def _host() -> str:
    """Who hosts the store of the default process group."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return "torchrun on the first node" if agent else "rank 0"
