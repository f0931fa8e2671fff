"""The store, the gloo groups and the processes of ranks that are threads (`ranks_as_threads`).

Messages of two ranks in one group come in order; otherwise each takes a time that the seed draws.
"""

import datetime
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from ranks_as_threads import Ranks

from fsranks.job_store import JobStore, StoreLost
from fsranks.machine.local_processes import Neighbours
from fsranks.rank_context import RankContext

T = TypeVar("T")

_CLOSED = "[played.py:1] Connection closed by peer. This is only played"
_LATE = "[played.py:2] Timed out waiting. This is only played"


class Job:
    """What the ranks of one job share: its store and its connections.

    slow_s: what a message and a question to the store take at most, most of them far less. machines: rank -> name.
    store_host: the rank that hosts the store; None: another process, which lives.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        slow_s: float = 0.01,
        machines: Callable[[int], str] = lambda rank: "one",
        store_host: int | None = 0,
    ) -> None:
        self.ranks = ranks
        self.slow_s = slow_s
        self.machines = machines
        self.store_host = store_host
        self.store = dist.HashStore()
        self.groups: dict[str, list[weakref.ref[PlayedGloo] | None]] = {}
        self.made: dict[tuple[int, str], int] = {}
        self.asked: list[set[str]] = [set() for _ in range(ranks.size)]  # by rank, keys that it asks for and posts
        self.said: list[Callable[[], object]] = []  # to the store, while it does not answer
        self.broken: set[frozenset[int]] = set()  # pairs of ranks between which no message comes through
        self._stalled_until = 0.0
        ranks.on_end.append(self._ended)
        ranks.on_go_on.append(lambda rank: self._hear())

    def context(self, rank: int) -> RankContext:
        return RankContext(rank=rank, world_size=self.ranks.size, network=PlayedNetwork(self, rank))

    def latency_s(self) -> float:
        return self.slow_s * self.ranks.random.random() ** 4

    def stall(self, seconds: float) -> None:
        """The store answers nothing for so long."""
        self._stalled_until = self.ranks.now() + seconds
        self.ranks.at(seconds, self._hear)

    @property
    def silent(self) -> bool:
        """Whether the store answers nothing just now."""
        host_stopped = self.store_host is not None and self.ranks.is_stopped(self.store_host)
        return host_stopped or self.ranks.now() < self._stalled_until

    @property
    def lost(self) -> bool:
        """Whether the store has ended."""
        return self.store_host is not None and self.ranks.is_gone(self.store_host)

    def cut(self, one: int, other: int, seen: bool) -> None:
        """No message comes through between the two any more; `seen`: both find that their connections have ended."""
        self.broken.add(frozenset((one, other)))
        for members in self.groups.values():
            for rank, peer in ((one, other), (other, one)) if seen else ():
                mine = members[rank]
                if mine is not None and (gloo := mine()) is not None:
                    gloo.hear_end_of(peer)

    def _hear(self) -> None:
        """What was said to the store while it did not answer."""
        if not self.silent:
            for statement in self.said:
                statement()
            self.said.clear()

    def _ended(self, rank: int) -> None:
        for members in self.groups.values():
            mine = members[rank]
            if mine is not None and (gloo := mine()) is not None:
                gloo.close()


class PlayedNetwork:
    """`fsranks.network.Network` of one rank."""

    def __init__(self, job: Job, rank: int) -> None:
        self.clock = job.ranks
        self._job = job
        self._rank = rank

    def store(self, purpose: str, timeout_s: float) -> JobStore:
        key = (self._rank, purpose)
        number = self._job.made[key] = self._job.made.get(key, 0) + 1
        return JobStore(PlayedConnection(self._job, self._rank), f"{purpose}/{number}", self.clock)  # type: ignore[arg-type]

    def connect(
        self, store: JobStore, name: str, rank: int, world_size: int, timeout_s: float, *, within_s: float
    ) -> Any:
        """All ranks meet, as in gloo: whoever does not come within the limit makes it fail."""
        ranks = self._job.ranks
        ranks.wait(self._job.latency_s())
        members = self._job.groups.setdefault(f"{store.store.prefix}/{name}", [None] * world_size)
        mine = PlayedGloo(self._job, members, rank, timeout_s)
        members[rank] = weakref.ref(mine)
        reached = not any(rank in pair for pair in self._job.broken)
        ranks.block(lambda: mine.closed or (reached and None not in members), within_s)
        if None in members or not reached:
            mine.close()
            raise RuntimeError(_LATE)
        return mine

    def process(self) -> dict[str, Any]:
        return {"machine": self._job.machines(self._rank), "pid": self._rank}

    def neighbours(self, processes: Mapping[int, Mapping[str, Any]], rank: int) -> Neighbours:
        here = processes[rank]["machine"]
        near = {each: each for each in processes if each != rank and processes[each]["machine"] == here}
        return PlayedNeighbours(near, self._job.ranks)


class PlayedNeighbours(Neighbours):
    def __init__(self, pids: Mapping[int, int], ranks: Ranks) -> None:
        super().__init__(pids)
        self._ranks = ranks

    def gone(self) -> list[int]:
        return [rank for rank in self._pids if self._ranks.is_gone(rank)]

    def active(self) -> list[int]:
        return [rank for rank in self._pids if not self._ranks.is_gone(rank) and not self._ranks.is_stopped(rank)]


class PlayedConnection:
    """`fsranks.job_store.StoreConnection`, to a store that lives and is stopped with the rank that hosts it."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._until = 0.0  # when the question that is asked is given up

    def under(self, prefix: str) -> "PlayedStore":
        return PlayedStore(self, prefix, self._job.store)

    def say(self, statement: Callable[[threading.Event], object], timeout_s: float) -> None:
        self.ask(statement, timeout_s)

    def ask(self, question: Callable[[threading.Event], T], timeout_s: float) -> T:
        self._until = self._job.ranks.now() + timeout_s + 1.0
        return question(threading.Event())

    def send(self, key: str, statement: Callable[[], object]) -> None:
        """One message to the store. While the store's host is stopped, it lies in the connection: that is no error."""
        job = self._job
        job.asked[self._rank].add(key)
        job.ranks.wait(job.latency_s())
        if job.silent:
            job.said.append(statement)
        else:
            self._check_host()
            statement()

    def reach(self, keys: list[str]) -> None:
        """One message to the store about these keys, and its answer."""
        job = self._job
        job.asked[self._rank].update(keys)
        job.ranks.wait(job.latency_s())
        if job.silent:
            job.ranks.block(lambda: not job.silent or job.lost, self._until - job.ranks.now())
        self._check_host()

    def _check_host(self) -> None:
        job = self._job
        if job.silent or job.lost:
            host = "torchrun" if job.store_host is None else f"rank {job.store_host}"
            raise StoreLost(f"{host}, which hosts the job's store, does not answer")


class PlayedStore:
    """A store with a prefix, as torch's."""

    def __init__(self, connection: PlayedConnection, prefix: str, store: dist.Store) -> None:
        self.prefix = prefix
        self._connection = connection
        self._store = dist.PrefixStore(prefix, store)

    def set(self, key: str, text: str) -> None:
        self._connection.send(key, lambda: self._store.set(key, text))

    def check(self, keys: list[str]) -> bool:
        self._connection.reach(keys)
        return self._store.check(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._connection.reach(keys)
        return self._store.multi_get(keys)

    def compare_set(self, key: str, expected: str, text: str) -> bytes:
        self._connection.reach([key])
        return self._store.compare_set(key, expected, text)


class PlayedGloo:
    """What FreeScale uses of a gloo group, of one rank."""

    def __init__(self, job: Job, members: list["weakref.ref[PlayedGloo] | None"], rank: int, timeout_s: float) -> None:
        self.job = job
        self.rank_ = rank
        self.timeout_s = timeout_s
        self.closed = False
        self._members = members
        self._arrived: dict[tuple[int, int], deque[torch.Tensor]] = {}  # by sender and tag
        self._free_at: dict[int, float] = {}  # by receiver: when the message before comes
        self._gone: set[int] = set()  # whose last message has come
        self._operation = 0

    def rank(self) -> int:
        return self.rank_

    def size(self) -> int:
        return len(self._members)

    def alltoall_base(
        self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]
    ) -> "PlayedWork":
        self._operation -= 1  # tags of its own: all ranks make these exchanges in the same order
        outs, parts = out.split(received), mine.split(sent)
        outs[self.rank_].copy_(parts[self.rank_])
        for ahead in range(1, self.size()):
            peer = (self.rank_ + ahead) % self.size()
            self._send(parts[peer], peer, self._operation)
        return PlayedWork(self, {(r, self._operation): outs[r] for r in range(self.size()) if r != self.rank_})

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> "PlayedWork":
        self._send(tensors[0], to, tag)
        return PlayedWork(self, {})

    def recv(self, tensors: list[torch.Tensor], of: int, tag: int) -> "PlayedWork":
        return PlayedWork(self, {(of, tag): tensors[0]})

    def close(self) -> None:
        """All connections of this rank: what it waits for fails, and what peers wait for after its last message."""
        if not self.closed:
            self.closed = True
            for to in range(self.size()):
                self._deliver(to, lambda peer: peer.hear_end_of(self.rank_))

    def take(self, key: tuple[int, int], out: torch.Tensor) -> bool:
        """Whether this message is here; then it is put into `out`."""
        arrived = self._arrived.get(key)
        if not arrived:
            return False
        message = arrived.popleft()
        assert message.nbytes == out.nbytes, f"rank {key[0]} sent {message.nbytes} bytes, {out.nbytes} were expected"
        out.copy_(message)
        return True

    def hear_end_of(self, peer: int) -> None:
        self._gone.add(peer)

    def lost(self, peer: int) -> bool:
        return self.closed or peer in self._gone

    def _send(self, part: torch.Tensor, to: int, tag: int) -> None:
        key, message = (self.rank_, tag), part.clone()
        self._deliver(to, lambda peer: peer._arrived.setdefault(key, deque()).append(message))

    def _deliver(self, to: int, what: "Callable[[PlayedGloo], object]") -> None:
        """Do this at the peer, after what was delivered to it before."""
        ranks, peer = self.job.ranks, self._members[to]
        at = max(self._free_at.get(to, 0.0), ranks.now() + self.job.latency_s())
        self._free_at[to] = at
        if peer is not None and frozenset((self.rank_, to)) not in self.job.broken:
            ranks.at(at - ranks.now(), lambda: None if (there := peer()) is None else what(there))

    def __del__(self) -> None:
        self.close()


class PlayedWork:
    """An operation under way. It waits for messages, by sender and tag."""

    def __init__(self, gloo: PlayedGloo, awaited: dict[tuple[int, int], torch.Tensor]) -> None:
        self._gloo = gloo
        self._awaited = awaited

    def is_completed(self) -> bool:
        for key, out in list(self._awaited.items()):
            if self._gloo.take(key, out):
                del self._awaited[key]
        return not self._awaited

    def wait(self, limit: datetime.timedelta | None = None) -> bool:
        gloo = self._gloo
        limit_s = gloo.timeout_s if limit is None else limit.total_seconds()
        gloo.job.ranks.block(lambda: self.is_completed() or self._lost(), limit_s)
        if self.is_completed():
            return True
        if self._lost():
            raise RuntimeError(_CLOSED)
        gloo.close()
        raise RuntimeError(_LATE)

    def _lost(self) -> bool:
        return any(self._gloo.lost(sender) for sender, _ in self._awaited)
