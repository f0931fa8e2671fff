"""A gloo group of the loader's own, whose failures name ranks.

Gloo names an address when a peer dies and only "timed out" when one is stopped. So a rank whose collective failed posts
a note on the board, looks who else does, and reports those who do not. The group is not registered with
torch.distributed: making it cannot cross with groups that other packages make, and only its members take part.
"""

import atexit
import contextlib
import datetime
import functools
import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from fsranks import local_processes
from fsranks.errors import PeerError
from fsranks.notice_board import StoreLost
from fsranks.rank_context import RankContext, board_of, name_ranks

T = TypeVar("T")
Part = tuple[torch.Tensor, torch.Tensor, list[int], list[int]]

_NEVER_SENT = 0x7F5D  # the tag of a message that nobody sends
_TRIES = 3  # of connecting: now and then the kernel resets one connection of many that are made at once
_GRACE_S = 1.5  # in which survivors of a failed collective, which all fail at about the same time, say so


class ControlGroup:
    """Blocking collectives over the ranks of `place`, for one thread at a time.

    Making it is collective: every rank makes its groups in the same order. `abort` may be called from any thread and
    gets a blocked collective out at once.

    Raises:
        PeerError: a rank died, left, reported an error, or did not take part in time: `timeout_s` less what it takes
            to find out which rank that was. After that the group is broken and every call raises.
    """

    def __init__(self, context: RankContext, *, timeout_s: float) -> None:
        if context.group is None or context.world_size < 2:
            raise ValueError("a ControlGroup needs a process group of at least two ranks")
        self.rank = context.rank
        self.world_size = context.world_size
        self.timeout_s = timeout_s
        self.number = 0
        self._grace_s = min(_GRACE_S, timeout_s / 4)
        self.wait_s = timeout_s - self._grace_s  # for an exchange; the rest is for the question whose fault it is
        self._board = board_of(context.group, "group", timeout_s)
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._posted = False
        self._reason: str | None = None
        self._neighbours: dict[int, int] = {}  # processes of this machine, by rank
        self._gloo: Any = self._connect()
        # A daemon thread that is inside gloo when the interpreter ends would end the process by std::terminate.
        self._at_exit = functools.partial(_end_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """[W, ...] from the same shape and dtype on every rank."""
        out = np.empty((self.world_size, *mine.shape), mine.dtype)
        if mine.size:
            target = torch.from_numpy(out.view(np.uint8).reshape(-1))
            source = torch.from_numpy(np.ascontiguousarray(mine).view(np.uint8).reshape(-1))
            self._run(lambda gloo: gloo._allgather_base(target, source).wait())
        return out

    def tell_all(self, mine: np.ndarray) -> np.ndarray:
        """As `all_gather`, of few numbers [n, ...]: each rank tells every other, where gloo's own goes round a ring."""
        sizes = [len(mine)] * self.world_size
        sent = torch.from_numpy(np.concatenate([mine] * self.world_size))
        received = torch.empty_like(sent)
        self.all_to_all(received, sent, sizes, sizes)
        return received.numpy().reshape(self.world_size, *mine.shape)

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        """Exchange entries of the first dimension, `received` from and `sent` to each rank; other sizes are equal.

        A size that disagrees with the peer's would abort the process inside gloo: callers derive both from the same
        gathered lengths, and what can be checked alone is checked here.
        """
        self.all_to_all_many([(out, mine, received, sent)], in_flight=1)

    def all_to_all_many(self, parts: Iterable[Part], *, in_flight: int) -> None:
        """Exchange `parts` in order, at most `in_flight` of them under way at a time.

        A part is (out, mine, received, sent): tensors of equal dtype and trailing shape, and the entries of their first
        dimension from and to each rank. Parts are asked for one by one, each just before it is issued.
        """

        def issue(gloo: Any) -> "_Queue":
            queue = _Queue(in_flight)
            for part in parts:
                queue.add(_issue(gloo, part))
            return queue

        self._run(lambda gloo: issue(gloo).wait())

    def begin(self, part: Part) -> "Begun":
        """Issue one part and come back. Those begun are waited for in order, before anything else is asked."""
        return Begun(self, self._run(lambda gloo: _issue(gloo, part)))

    @property
    def one_host(self) -> bool:
        """Whether all ranks are processes of this machine."""
        return len(self._neighbours) == self.world_size - 1

    def gone(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return [rank for rank, pid in self._neighbours.items() if not local_processes.runs(pid)]

    def _is_running(self, rank: int) -> bool:
        """Whether that rank is known to run: its process is on this machine, and no signal holds it."""
        return rank in self._neighbours and local_processes.is_active(self._neighbours[rank])

    def abort(self, reason: str) -> None:
        """Close all connections: a collective that blocks here raises at once, the other ranks' next one too.

        `reason` is what the other ranks will read.
        """
        with self._lock:
            gloo = self._gloo
            self._reason = self._reason or reason
        with contextlib.suppress(StoreLost):
            self._post(reason)
        if gloo is not None:
            hang_up(gloo, self.rank, self.world_size)

    def close(self, reason: str) -> None:
        """Give up the group; no collective may be under way. Leaves no thread and no connection."""
        atexit.unregister(self._at_exit)
        with self._lock:
            gloo, self._gloo = self._gloo, None
            self._reason = self._reason or reason
        if gloo is not None:
            with contextlib.suppress(StoreLost):
                self._post(reason)

    def end_at_exit(self) -> None:
        """Let a collective that is under way end, but not for long, and close."""
        reason = "ended its process without closing what it used"
        with self._lock:
            self._reason = self._reason or reason
        if not self._busy.acquire(timeout=self._grace_s):
            self.abort(reason)
            self._busy.acquire(timeout=self._grace_s)
        self.close(reason)

    def blame(self, waited_s: float) -> str:
        """Give up the group, as an exchange of its ranks that it did not carry is lost; in words, whose fault it is.

        Every rank that waited in vain for `waited_s` calls this at about the same time.
        """
        with self._lock:
            gloo, reason = self._gloo, self._reason
        if reason is None:
            if gloo is not None:  # who waits for this rank, and not for the dead one, must also look who is there
                hang_up(gloo, self.rank, self.world_size)
            try:
                reason = self._diagnose(waited_s)
            except StoreLost as lost:
                reason = str(lost)
            with self._lock:
                self._reason = self._reason or reason
        return reason

    def _run(self, call: Callable[[Any], T]) -> T:
        with self._lock:
            gloo, reason = self._gloo, self._reason
        if gloo is None or reason is not None:
            raise PeerError(f"the exchange between the ranks is over on rank {self.rank}: {reason}")
        start = time.monotonic()
        try:
            with self._busy:
                return call(gloo)
        except RuntimeError as error:
            with self._lock:
                known = self._reason
            reason = known or f"{self.blame(time.monotonic() - start)}. gloo said: {brief(error)}"
            raise PeerError(f"exchange {self.number} between the ranks failed on rank {self.rank}: {reason}") from error

    def _post(self, reason: str, waited_s: float = 0.0) -> None:
        """Tell the others once what happened here; the first note stands. An empty reason says: alive, and as lost."""
        with self._lock:
            if self._posted:
                return
            self._posted = True
        note = json.dumps({"reason": reason, "waited_s": waited_s})
        self._board.post(f"note/{self.rank}", note, self._grace_s / 2)  # and the board's own patience

    def _connect(self) -> Any:
        """Gloo's group, once every rank has one. A connection that breaks while it is made is made again by all."""
        mine = {"machine": local_processes.machine(), "pid": os.getpid()}
        end = time.monotonic() + self.timeout_s
        self._board.post(f"here/{self.rank}", json.dumps(mine), self.timeout_s)
        for number in range(_TRIES):
            try:
                gloo, failure = self._connect_once(number), ""
            except RuntimeError as error:
                gloo, failure = None, brief(error) or type(error).__name__
            left_s = max(end - time.monotonic(), self._grace_s)
            self._board.post(f"connected/{number}/{self.rank}", json.dumps({"failure": failure, **mine}), left_s)
            if failure:
                self._check_here(failure)
            keys = {f"connected/{number}/{rank}": rank for rank in range(self.world_size)}
            notes = self._board.wait(keys, max(end - time.monotonic(), self._grace_s))
            if silent := [rank for key, rank in keys.items() if key not in notes]:
                self._check_here(failure)
                lost = [rank for rank in silent if not self._is_running(rank)] or silent
                raise PeerError(f"the ranks could not connect over gloo: {name_ranks(lost)} did not say if they can")
            given = {rank: json.loads(notes[key]) for key, rank in keys.items()}
            failures = {rank: note["failure"] for rank, note in given.items() if note["failure"]}
            if not failures:
                self._neighbours = _neighbours(given, self.rank)
                return gloo
            del gloo  # its connections end before the next ones are made
        rank, failure = next(iter(failures.items()))
        raise PeerError(f"the ranks could not connect over gloo in {_TRIES} tries: rank {rank}: {failure}")

    def _connect_once(self, number: int) -> Any:
        limit = datetime.timedelta(seconds=self.wait_s)

        def connect(store: dist.Store) -> Any:
            return dist.ProcessGroupGloo(dist.PrefixStore(f"gloo/{number}", store), self.rank, self.world_size, limit)

        return self._board.lend(connect, self.wait_s)

    def _check_here(self, failure: str) -> None:
        """Raise PeerError if a rank has not even begun to connect, or ended since."""
        keys = {f"here/{rank}": rank for rank in range(self.world_size)}
        here = self._board.wait(keys, self._grace_s)
        if absent := [rank for key, rank in keys.items() if key not in here]:
            raise PeerError(
                f"the ranks could not connect over gloo: {name_ranks(absent)} did not come within {self.timeout_s:g} "
                f"s. gloo said: {failure}"
            )
        self._neighbours = _neighbours({rank: json.loads(here[key]) for key, rank in keys.items()}, self.rank)
        if ended := self.gone():
            raise PeerError(
                f"the ranks could not connect over gloo: {name_ranks(ended)} has ended. Look at the log of that rank"
            )

    def _diagnose(self, waited_s: float) -> str:
        """In words, which rank is the reason that a collective failed here after `waited_s`."""
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        end = time.monotonic() + self._grace_s
        self._post("", waited_s)
        notes = self._board.wait([f"note/{rank}" for rank in others], max(end - time.monotonic(), 0))
        given = {rank: json.loads(notes[f"note/{rank}"]) for rank in others if f"note/{rank}" in notes}
        told = [f"rank {rank} {note['reason']}" for rank, note in given.items() if note["reason"]]
        if told:
            return "; ".join(told)
        missing = [rank for rank in others if rank not in given]
        if ended := [rank for rank in missing if rank in self.gone()]:
            # The others may only wait for this rank, elsewhere.
            return f"the process of {name_ranks(ended)} has ended. Look at the log of that rank"
        remedy = "Look at the log of that rank; if it was only busy (evaluation, checkpoint), raise timeout_s"
        within = f"did not answer within {max(waited_s, 0.1):.1f} s"
        if silent := [rank for rank in missing if not self._is_running(rank)]:
            return f"{name_ranks(silent)} {within}: dead or stopped. {remedy}"
        if missing:
            return f"{name_ranks(missing)} {within}: busy or blocked, not stopped. {remedy}"
        waits = {self.rank: waited_s, **{rank: note["waited_s"] for rank, note in given.items()}}
        late = [rank for rank, wait in sorted(waits.items()) if wait < self.wait_s / 2]
        if max(waits.values()) >= 0.9 * self.wait_s and late:
            return f"{name_ranks(late)} came after the others had waited {max(waits.values()):.1f} s. {remedy}"
        return "the connections broke although all ranks are alive"


class Begun:
    """A part under way."""

    def __init__(self, group: ControlGroup, work: dist.Work) -> None:
        self._group = group
        self._work = work

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        """Block until the part is here. Raises as the group's other calls do."""
        self._group._run(lambda gloo: self._work.wait())


class _Queue:
    """Collectives under way, oldest first."""

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._works: deque[dist.Work] = deque()

    def add(self, work: dist.Work) -> None:
        self._works.append(work)
        if len(self._works) >= self._in_flight:
            self._works.popleft().wait()

    def wait(self) -> None:
        while self._works:
            self._works.popleft().wait()


def _neighbours(given: dict[int, dict[str, Any]], rank: int) -> dict[int, int]:
    """The processes of the other ranks that are on this one's machine."""
    return {
        peer: each["pid"] for peer, each in given.items() if peer != rank and each["machine"] == given[rank]["machine"]
    }


def _issue(gloo: Any, part: Part) -> dist.Work:
    out, mine, received, sent = part
    if sum(received) != len(out) or sum(sent) != len(mine):
        raise AssertionError(f"splits {received}, {sent} for {len(out)} and {len(mine)} entries")
    return gloo.alltoall_base(out, mine, received, sent)


def hang_up(gloo: Any, rank: int, world_size: int) -> None:
    """Close all connections of a gloo group, from any thread: whatever waits in it raises RuntimeError, on all ranks.

    Gloo offers no such call; a receive that nobody answers, given up on after a millisecond, closes every connection of
    its group. From a rank that is dead it fails before that, hence from every rank.
    """
    for ahead in range(1, world_size):
        with contextlib.suppress(RuntimeError):
            receive = gloo.recv([torch.zeros(1)], (rank + ahead) % world_size, _NEVER_SENT)
            receive.wait(datetime.timedelta(milliseconds=1))


def brief(error: BaseException) -> str:
    """What gloo says, without its source line and advice."""
    return str(error).partition("] ")[2].partition(". This is")[0] or str(error)


def _end_at_exit(group: weakref.ref[ControlGroup]) -> None:
    found = group()
    if found is not None:
        found.end_at_exit()
