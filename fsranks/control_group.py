"""A gloo group of FreeScale's own, whose failures name ranks.

When a rank dies gloo names an address, and when a rank is stopped gloo only says "timed out". So each rank whose
exchange failed writes a note into the job's store, reads the others' notes, and reports the ranks that wrote none
(`diagnosis`). The group is not registered with torch.distributed: making it cannot cross with groups that other
packages make, and only its members take part.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from fsranks import messages
from fsranks.connecting import Connector
from fsranks.diagnosis import Note, diagnose
from fsranks.errors import PeerError
from fsranks.job_store import DIAGNOSIS_S, StoreLost
from fsranks.machine.at_exit import at_exit, why_over
from fsranks.network import brief, hang_up
from fsranks.rank_context import RankContext

T = TypeVar("T")
AllToAll = tuple[torch.Tensor, torch.Tensor, list[int], list[int]]
"""(out, mine, received, sent) of one all-to-all: tensors of equal dtype and trailing shape, and how many entries of
their first dimension come from and go to each rank."""

_LAST_EXCHANGE_S = 1.5  # that an exchange may still take when the interpreter ends


class ControlGroup:
    """Blocking exchanges between the ranks of `context`, for one thread at a time.

    Making it is collective: every rank makes its groups in the same order. `abort` may be called from any thread and
    ends a blocked exchange at once.

    Raises:
        PeerError: a rank died, left, reported an error, or did not take part within `timeout_s`. To find out which rank
            that was takes `diagnosis_s` more, at most. After that the group is broken and every call raises.
    """

    def __init__(self, context: RankContext, *, timeout_s: float, diagnosis_s: float = DIAGNOSIS_S) -> None:
        network = context.reach()
        if network is None:
            raise ValueError("a ControlGroup needs a process group of at least two ranks")
        self.rank = context.rank
        self.world_size = context.world_size
        self.timeout_s = timeout_s
        self.clock = network.clock
        self.number = 0
        self._diagnosis_s = diagnosis_s
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._made, self._last_s = 0, 0.0  # exchanges, and how long the last one took
        self._posted = False
        self._reason: str | None = None  # why the group is over; only the first one is kept
        self._store = network.store("group", timeout_s)
        connector = Connector(
            network=network,
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout_s=timeout_s,
            diagnosis_s=diagnosis_s,
        )
        self._gloo, self._neighbours = connector.connect()
        self._take_back = at_exit(self.end_at_exit)

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """[W, ...] from the same shape and dtype on every rank."""
        if not mine.size:
            return np.empty((self.world_size, *mine.shape), mine.dtype)
        source = torch.from_numpy(np.ascontiguousarray(mine).view(np.uint8).reshape(-1))
        gather = messages.way(self.world_size, len(source))
        found = self._run(lambda gloo: gather(gloo, self.rank, self.world_size, source))
        return found.numpy().view(mine.dtype).reshape(self.world_size, *mine.shape)

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        """One `AllToAll`.

        A size that disagrees with the other rank's would abort the process inside gloo. So callers derive both from the
        same gathered lengths, and this rank's sizes are checked against its tensors.
        """
        self._run(lambda gloo: _issue(gloo, (out, mine, received, sent)).wait())

    def begin(self, exchange: AllToAll) -> "BegunExchange":
        """Issue one exchange and return. Wait for begun exchanges in order, before any other call."""
        return BegunExchange(self, self._run(lambda gloo: _issue(gloo, exchange), ends=False))

    @property
    def gloo(self) -> Any:
        """Its connections, for messages that bear a tag of their own."""
        return self._gloo

    @property
    def one_host(self) -> bool:
        """Whether all ranks are processes of this machine."""
        return len(self._neighbours) == self.world_size - 1

    def gone(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return self._neighbours.gone()

    def abort(self, reason: str) -> None:
        """Close all connections: an exchange that blocks here raises at once, and so does the other ranks' next one.

        `reason` is what the other ranks will read.
        """
        gloo = self._gloo
        self._give_up(reason)
        if gloo is not None:
            hang_up(gloo, self.rank, self.world_size)

    def close(self, reason: str) -> None:
        """Give up the group; no exchange may be under way. Leaves no thread and no connection."""
        self._take_back()
        with self._lock:
            gloo, self._gloo = self._gloo, None
        self._give_up(reason)
        del gloo  # only now do its connections end: the other ranks find the note when they see that

    def end_at_exit(self) -> None:
        """Let an exchange that is under way end, but not for long, and close."""
        reason = why_over()
        self._set_reason(reason)
        if not self._busy.acquire(timeout=_LAST_EXCHANGE_S):
            self.abort(reason)
            self._busy.acquire(timeout=_LAST_EXCHANGE_S)
        self.close(reason)

    def blame(self, waited_s: float) -> str:
        """Give up the group, because an exchange of its ranks over other connections is lost; in words, why it is.

        Every rank calls this at about the same time, after it has waited for `waited_s` without result.
        """
        gloo, reason = self._gloo, self._reason
        if reason is None:
            if gloo is not None:  # wakes ranks that wait for this rank here, so that they find out who is lost, too
                hang_up(gloo, self.rank, self.world_size)
            try:
                reason = self._diagnose(waited_s)
            except StoreLost as lost:
                reason = str(lost)
            self._set_reason(reason)
        return reason

    def _run(self, exchange: Callable[[Any], T], *, ends: bool = True) -> T:
        """ends: whether the exchange is over then."""
        gloo, reason = self._gloo, self._reason
        if gloo is None or reason is not None:
            raise PeerError(f"the exchange between the ranks is over on rank {self.rank}: {reason}")
        start = self.clock.now()
        try:
            with self._busy:
                result = exchange(gloo)
                if ends:
                    self._made, self._last_s = self._made + 1, self.clock.now() - start
                return result
        except RuntimeError as error:
            reason = self._reason or f"{self.blame(self.clock.now() - start)}. gloo said: {brief(error)}"
            raise PeerError(f"exchange {self.number} between the ranks failed on rank {self.rank}: {reason}") from error

    def _diagnose(self, waited_s: float) -> str:
        """In words, why an exchange failed here after `waited_s`. Asks the other ranks; all of them do so now."""
        end = self.clock.now() + self._diagnosis_s
        mine = Note(reason="", waited_s=waited_s, number=self._made, before_s=self._last_s)
        self._post(mine)
        left_s = max(end - self.clock.now(), 0)
        early_s = left_s / 3 if self.rank == 0 else left_s * 2 / 3  # rank 0 answers before the others give it up
        early = json.loads(self._store.hear("note/", self.rank, self.world_size, json.dumps, early_s))
        notes = {int(rank): Note(**json.loads(text)) for rank, text in early.items()}
        if not any(note.explains(self._made) for note in notes.values()):
            keys = {f"note/{rank}": rank for rank in range(self.world_size) if rank not in notes}
            ended = set(self._neighbours.gone()).issuperset(keys.values())  # whoever has ended says nothing any more
            late = self._store.wait(keys, 0 if ended else max(end - self.clock.now(), 0))
            notes |= {keys[key]: Note(**json.loads(text)) for key, text in late.items()}
        notes[self.rank] = mine
        asking = [rank for rank, note in notes.items() if not note.reason]
        patience_s = self._diagnosis_s / 2 if self.rank == 0 else 0.0  # others may have failed a little later
        self._store.part(self.rank, asking, max(end - self.clock.now(), 0) + patience_s)
        neighbours = self._neighbours
        return diagnose(
            notes,
            rank=self.rank,
            world_size=self.world_size,
            limit_s=self.timeout_s,
            gone=neighbours.gone(),
            active=neighbours.active(),
        )

    def _give_up(self, reason: str) -> None:
        self._set_reason(reason)
        with contextlib.suppress(StoreLost):
            self._post(Note(reason=reason, waited_s=0.0, number=self._made))

    def _set_reason(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason

    def _post(self, note: Note) -> None:
        """Tell the other ranks what happened here, once: only the first note is posted."""
        with self._lock:
            if self._posted:
                return
            self._posted = True
        text = json.dumps(asdict(note))
        self._store.post(f"note/{self.rank}", text, self._diagnosis_s / 2)
        if self.rank == 0 and note.reason:  # the others need not wait for what it hears from them
            self._store.decide("note/answer", json.dumps({0: text}), self._diagnosis_s / 2)


class BegunExchange:
    """An exchange under way."""

    def __init__(self, group: ControlGroup, work: dist.Work) -> None:
        self._group = group
        self._work = work

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        """Block until what the other ranks sent is here. Raises as the group's other calls do."""
        self._group._run(lambda gloo: self._work.wait())

    def follow(self) -> None:
        """No device takes part."""
        self.wait()


class Alone:
    """What an exchange asks of a `ControlGroup`, for the only rank: it gets what it sends."""

    rank, world_size, gloo = 0, 1, None

    def __init__(self) -> None:
        self.number = 0

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """[1, ...]"""
        return mine[None].copy()

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        out.copy_(mine)

    def abort(self, reason: str) -> None:
        """Nothing can block."""

    def close(self, reason: str) -> None:
        """Nothing is open."""


AnyGroup = ControlGroup | Alone


def control_group(context: RankContext, *, timeout_s: float) -> AnyGroup:
    """Collective; raises as `ControlGroup` does."""
    return Alone() if context.world_size == 1 else ControlGroup(context, timeout_s=timeout_s)


def _issue(gloo: Any, exchange: AllToAll) -> dist.Work:
    out, mine, received, sent = exchange
    if sum(received) != len(out) or sum(sent) != len(mine):
        raise AssertionError(f"splits {received}, {sent} for {len(out)} and {len(mine)} entries")
    return gloo.alltoall_base(out, mine, received, sent)
