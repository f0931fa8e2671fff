"""Notes between the ranks of a job, through the store of the default process group, with a limit on every wait.

The store answers even when a collective cannot, unless its host has ended or is stopped. Torch's client of the store
may then block for ever. So every question is asked in a thread of its own, which is left alone after the time limit.
"""

import collections
import contextlib
import datetime
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from fsranks.errors import PeerError
from fsranks.machine.clock import MACHINE_CLOCK, Clock

T = TypeVar("T")

_ASK_AGAIN_S = 0.005
_ASK_AGAIN_AT_MOST_S = 0.25
_PATIENCE_S = 1.0  # beyond the time limit: what a store that is alive may take for its last answer
_LAST_WORD_S = 0.5  # beyond the time limit, for a store that has answered just now
DIAGNOSIS_S = 5.0  # in which the survivors of a failure, who all fail at about the same time, tell each other about it


class StoreLost(PeerError):
    """The host of the store does not answer."""


class StoreConnection:
    """A connection to a store; `store` is None until `job_store` has made one.

    A question that was given up still hangs in the connection, and new ones would hang behind it. Until the old one is
    answered, new questions raise StoreLost at once: a caller that asks several times waits for one time limit only.
    What a rank has to say still reaches the store if its host was only stopped, and goes on.
    """

    def __init__(self, store: dist.Store | None = None) -> None:
        self.store: Any = store
        self._unanswered = ""  # the message about a question that was given up

    def under(self, prefix: str) -> Any:
        """The store with `prefix` before every key."""
        return dist.PrefixStore(prefix, self.store)

    def say(self, statement: Callable[[threading.Event], object], timeout_s: float) -> None:
        """`ask`, but behind a question that hangs the statement waits for its turn, also after this raised."""
        if self._unanswered:
            _in_thread(statement, 0)
        self.ask(statement, timeout_s)

    def ask(self, question: Callable[[threading.Event], T], timeout_s: float) -> T:
        """What `question` gives; it gets an event that is set when nobody waits for that any more.

        Raises StoreLost if it raises, or has not ended `_PATIENCE_S` after `timeout_s`.
        """
        if self._unanswered:
            raise StoreLost(self._unanswered)
        limit_s = timeout_s + _PATIENCE_S
        outcome = _in_thread(question, limit_s, self._answered)
        if not outcome:
            text = f"{_host()}, which hosts the job's store, does not answer within {limit_s:g} s: dead or stopped"
            self._unanswered = text
            if not outcome:
                raise StoreLost(text)
            self._answered()  # the answer came after the limit and before this line
        done, value = outcome[0]
        if not done and not isinstance(value, RuntimeError | OSError):
            raise value
        if not done:
            raise StoreLost(f"{_host()}, which hosts the job's store, is gone: {value}") from value
        return value

    def _answered(self) -> None:
        self._unanswered = ""


class JobStore:
    """Notes under one prefix of a store. Methods raise StoreLost when the store does not answer; any thread may call.

    A wait asks the store again and again instead of blocking in it. So several JobStores can share a connection, and
    none blocks another.
    """

    def __init__(self, connection: StoreConnection, prefix: str, clock: Clock = MACHINE_CLOCK) -> None:
        self._connection = connection
        self._clock = clock
        self.store = connection.under(prefix)

    def post(self, key: str, text: str, timeout_s: float) -> None:
        store = self.store
        self._connection.say(lambda given_up: store.set(key, text), timeout_s)

    def wait(self, keys: Iterable[str], timeout_s: float) -> dict[str, str]:
        """The notes under `keys`, waiting at most `timeout_s`; those not posted by then are left out."""
        keys = list(keys)
        return self._connection.ask(lambda given_up: self._poll(keys, timeout_s, given_up), timeout_s)

    def decide(self, key: str, text: str, timeout_s: float) -> str:
        """Post `text` under `key` unless another rank did before; returns the note that is there now."""
        store = self.store
        return self._connection.ask(lambda given_up: store.compare_set(key, "", text), timeout_s).decode()

    def hear(
        self, prefix: str, rank: int, world_size: int, answer: Callable[[dict[int, str]], str], timeout_s: float
    ) -> str:
        """One rank's `answer` to the notes that the ranks have posted under `prefix` and their rank: the same on all.

        `answer` gets the notes by rank, without those that are not there in time. Rank 0 gives it, and the others ask
        for that one key: were every rank to read the notes of all, the store would be asked for W * W keys. If rank 0
        is late, the first rank whose time limit ends gives the answer, and the first answer counts for all.
        """
        keys = {f"{prefix}{each}": each for each in range(world_size)}
        if rank == 0:
            notes = self.wait(keys, timeout_s)
        else:
            given = self.wait([f"{prefix}answer"], timeout_s)
            if given:
                return given[f"{prefix}answer"]
            notes = self.wait(keys, 0)  # rank 0 is lost, or it came later and waits for another rank
        text = answer({keys[key]: note for key, note in notes.items()})
        return self.decide(f"{prefix}answer", text, _LAST_WORD_S)

    def part(self, rank: int, others: Iterable[int], timeout_s: float) -> None:
        """Every rank calls this once it has read why it is going to raise.

        Rank 0 may host the store, which ends with its process: it waits until `others` have read the reason, too. A
        store that is lost by now is no matter.
        """
        with contextlib.suppress(StoreLost):
            if rank:
                self.post(f"read/{rank}", "", timeout_s)
            else:
                self.wait([f"read/{other}" for other in others if other], timeout_s)

    def lend(self, function: Callable[[dist.Store], T], timeout_s: float) -> T:
        """`function(store)`, left alone after `timeout_s`. Raises RuntimeError for a reason other than the store."""
        outcome = _in_thread(lambda given_up: function(_Lent(self.store, self._clock, given_up)), timeout_s)
        if not outcome:
            self.wait([""], 0)  # raises StoreLost if the store is the reason
            raise RuntimeError(f"no end after {timeout_s:g} s")
        done, value = outcome[0]
        if not done:
            raise value
        return value

    def _poll(self, keys: list[str], timeout_s: float, given_up: threading.Event) -> dict[str, str]:
        """As `wait`. While one rank is late, only its key is asked for, and less and less often."""
        store, clock = self.store, self._clock
        begin = clock.now()
        known = len(keys) if store.check(keys) else 0
        while known < len(keys):
            if store.check([keys[known]]):
                known += 1
                continue
            waited = clock.now() - begin
            if waited >= timeout_s:
                keys = keys[:known] + self._there(keys[known + 1 :])
                break
            if clock.wait(min(max(_ASK_AGAIN_S, waited / 10), _ASK_AGAIN_AT_MOST_S, timeout_s - waited), given_up):
                return {}
        return dict(zip(keys, (note.decode() for note in store.multi_get(keys)), strict=True)) if keys else {}

    def _there(self, keys: list[str]) -> list[str]:
        """Those that are posted, found by halving: few questions, where nearly all are."""
        if not keys or self.store.check(keys):
            return keys
        middle = len(keys) // 2
        return self._there(keys[:middle]) + self._there(keys[middle:]) if middle else []


class _Lent(dist.Store):
    """What gloo needs of a store to connect. Waiting ends when nobody waits for gloo any more: in C++ it would not."""

    def __init__(self, store: Any, clock: Clock, given_up: threading.Event) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._given_up = given_up

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:  # type: ignore[override]
        begin, waited_s = self._clock.now(), 0.0
        while not self._store.check(keys):
            if self._clock.wait(min(max(_ASK_AGAIN_S, waited_s / 10), _ASK_AGAIN_AT_MOST_S), self._given_up):
                raise RuntimeError("given up")
            waited_s = self._clock.now() - begin
            if waited_s > timeout.total_seconds():
                raise RuntimeError(f"no {keys[0]} within {timeout.total_seconds():g} s")


# Two tables of the process. The stores lie in torch.distributed, whose default process group is global too: no object
# of FreeScale lives as long. Numbers are never given twice, not even after init_process_group is called again:
# the store may be the old one (torchrun's is), and its notes must not be read as new ones.
_numbers: collections.Counter[str] = collections.Counter()  # JobStores made so far, by ranks and purpose
_connections: weakref.WeakKeyDictionary[dist.Store, StoreConnection] = weakref.WeakKeyDictionary()  # by default store


def job_store(group: dist.ProcessGroup, purpose: str, timeout_s: float) -> JobStore:
    """The next store for `purpose` of the ranks of `group` and no others: every rank calls this equally often."""
    members = hashlib.sha256(repr(dist.get_process_group_ranks(group)).encode()).hexdigest()[:16]
    name = f"freescale/{members}/{purpose}"
    _numbers[name] += 1
    default: Any = distributed_c10d._get_default_store()
    connection = _connections.setdefault(default, StoreConnection())
    if connection.store is None:  # one for all: each new connection may cost the host a slow look-up of its name
        connection.store = connection.ask(lambda given_up: default.clone(), timeout_s)
    return JobStore(connection, f"{name}/{_numbers[name]}")


def _in_thread(
    function: Callable[[threading.Event], Any], timeout_s: float, at_end: Callable[[], object] = lambda: None
) -> list[tuple[bool, Any]]:
    """[(True, result)] or [(False, error)] of `function`; empty while it runs. `at_end` is called when it has ended.

    `function` gets an event that is set when nobody waits for it any more: after `timeout_s`, and after Ctrl-C.

    Blocks for `timeout_s` at most; the list may be filled later. Empty, too, where Python is ending and starts no
    thread (3.12 and later).
    """
    outcome: list[tuple[bool, Any]] = []
    given_up, ended = threading.Event(), threading.Event()

    def call() -> None:
        try:
            outcome.append((True, function(given_up)))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            at_end()
            ended.set()  # not `join`: once Ctrl-C has interrupted that, Python before 3.13 takes the thread for ended

    try:
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=call, name="freescale-store", daemon=True).start()
            ended.wait(timeout_s)
        given_up.set()
    except BaseException:  # Ctrl-C. A thread that comes out of C++ when Python has ended would abort the process
        given_up.set()
        ended.wait(_LAST_WORD_S)
        raise
    return outcome


def _host() -> str:
    """The process that hosts the store of the default process group."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return "torchrun on the first node" if agent else "rank 0"
