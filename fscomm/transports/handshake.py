"""What ranks tell each other on the host: that all are there, how much each sends, what failed, and who is gone.

They do so before an operation. On a GPU, a kernel or a copy that waits for a rank which never comes blocks its stream,
and sizes that disagree end the process inside NCCL or overwrite the rows of other operations. They do so again while
an operation does not end (`Watch`), as libraries cannot say which rank is the reason.
"""

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from fscomm.transports.transport import row_bytes
from fsranks.control_group import ControlGroup
from fsranks.errors import MismatchError, PeerError, describe, name_ranks
from fsranks.machine.clock import MACHINE_CLOCK, Clock
from fsranks.machine.local_processes import machine
from fsranks.rank_context import RankContext

T = TypeVar("T")

_OPERATIONS = ("all_to_all_v", "meet")
_SAME = ("operation", "dtype", "bytes per row")
_TOLD_BYTES = 512
_SLICE_S = 0.5  # between two checks which ranks are still alive
_PAUSES_S = (2e-5, 1e-3)  # between two questions whether something is done: the first, and the longest


class StepFailed(PeerError):
    """A step failed on a rank that is alive: all ranks raise this, in the same words, and can go on together."""


class Handshake:
    """One exchange of a few numbers over gloo per operation; making it is collective.

    With `verify` every rank learns all splits and compares them (2 W numbers per rank). Without it only the largest
    size travels, and callers must derive splits from the same gathered lengths, as fscomm's engine does.
    """

    def __init__(self, context: RankContext, *, verify: bool, timeout_s: float) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self.timeout_s = timeout_s
        self.verify = verify
        self.group = ControlGroup(context, timeout_s=timeout_s)

    def agree(
        self, operation: str, like: torch.Tensor, out_splits: Sequence[int] = (), in_splits: Sequence[int] = ()
    ) -> int:
        """The bytes of the largest piece that any rank sends to any rank. Blocks for all ranks.

        Raises:
            MismatchError: on all ranks, if they are not at the same operation or, with `verify`, splits disagree.
            PeerError: a rank is dead, has left, or is later than the time limit.
        """
        size = row_bytes(like)
        word = [_OPERATIONS.index(operation), _digest(str(like.dtype)), size]
        largest = size * max([*out_splits, *in_splits], default=0)
        of_all = self.group.all_gather(np.array([*word, largest, *self._splits(out_splits, in_splits)], np.int64))
        for what, column in zip(_SAME, of_all.T, strict=False):
            if (column != column[0]).any():
                shown = [_OPERATIONS[c] for c in column] if what == "operation" else column.tolist()
                raise MismatchError(f"the ranks do not exchange the same: {what} by rank is {shown}")
        if self.verify:
            self._compare(of_all[:, len(word) + 1 :])
        return int(of_all[:, len(word)].max())

    def _splits(self, out_splits: Sequence[int], in_splits: Sequence[int]) -> list[int]:
        """As many numbers for every operation: so ranks that are at different operations can still exchange them."""
        if not self.verify:
            return []
        return [*out_splits, *in_splits] if out_splits else [0] * (2 * self.world_size)

    def _compare(self, splits: np.ndarray) -> None:
        expected, sent = splits[:, : self.world_size], splits[:, self.world_size :].T
        wrong = np.argwhere(expected != sent)
        if len(wrong):
            receiver, sender = wrong[0]
            raise MismatchError(
                f"rank {sender} sends {sent[receiver, sender]} rows to rank {receiver}, which expects "
                f"{expected[receiver, sender]} ({len(wrong)} pairs of ranks disagree): in_splits of one rank must be "
                "the out_splits of the other"
            )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def tell(group: ControlGroup, text: str) -> dict[str, list[int]]:
    """The ranks by what each told: at most 512 bytes. Collective; blocks for all ranks."""
    word = np.frombuffer(text.encode()[:_TOLD_BYTES].ljust(_TOLD_BYTES, b"\0"), np.uint8).copy()
    return ranks_by([row.tobytes().rstrip(b"\0").decode(errors="replace") for row in group.all_gather(word)])


def ranks_by(texts: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        found.setdefault(text, []).append(rank)
    return found


def said_by(told: Mapping[str, Sequence[int]]) -> str:
    """`on rank 1: what it told; on ranks 0, 2: what they told`; empty if nobody told anything."""
    return "; ".join(f"on {name_ranks(list(ranks))}: {text}" for text, ranks in told.items() if text)


def together(group: ControlGroup, step: Callable[[], T]) -> T:
    """What `step` returns here: it counts only once it worked on all ranks. Collective; blocks for all ranks.

    Raises:
        StepFailed: `step` raised on some rank; the message names the rank and gives its error.
    """
    done: list[T] = []
    failure: Exception | None = None
    try:
        done.append(step())
    except Exception as error:  # whatever it is: a rank that keeps it to itself is waited for in vain
        failure = error
    if text := said_by(tell(group, "" if failure is None else describe(failure))):
        raise StepFailed(text) from failure
    return done[0]


def need_one_host(group: ControlGroup, instead: str) -> None:
    """Raise StepFailed if not all ranks are processes of one machine. Collective."""
    hosts = tell(group, machine())
    if len(hosts) > 1:
        apart = " and ".join(map(name_ranks, hosts.values()))
        raise StepFailed(f"all ranks must be processes of one host, {apart} are apart: {instead}")


def need_own_gpu(group: ControlGroup, where: torch.device, why: str) -> list[str]:
    """The GPUs of all ranks, by rank. Raises StepFailed if two ranks have the same. Collective."""
    gpus = tell(group, together(group, lambda: gpu_id(where)))
    if shared := [ranks for ranks in gpus.values() if len(ranks) > 1]:
        raise StepFailed(f"{', '.join(map(name_ranks, shared))} share a GPU: {why}")
    return list(gpus)


def gpu_id(where: torch.device) -> str:
    """The same for all processes that use this GPU."""
    return str(torch.cuda.get_device_properties(where).uuid)


class Watch:
    """The operations of one transport that are under way, their time limit, and its end.

    After the first error everything raises PeerError; the first reason stands. While an operation of a library or a
    device does not end, the watch finds out which rank is the reason.

    end: gives up the operations under way, for a reason. Any thread may call it, more than once, and it must not wait
    for peers. lost: whether a peer has ended the transport for all ranks, as far as this rank can see.
    """

    def __init__(
        self,
        name: str,
        handshake: Handshake,
        end: Callable[[str], None],
        *,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.flights: deque[Flight] = deque()  # not known to be done; they keep their tensors
        self._name = name
        self._handshake = handshake
        self._end = end
        self._lost = lost
        self._lock = threading.Lock()
        self._reason: str | None = None

    @property
    def is_over(self) -> bool:
        return self._reason is not None or self._lost()

    def check(self) -> None:
        if self._reason is not None:
            raise self.error()

    def error(self) -> PeerError:
        return PeerError(f"{self._name} is over on rank {self._handshake.rank}: {self._reason}")

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """What is raised inside ends the transport, here and for the other ranks."""
        self.check()
        try:
            yield
        except (PeerError, MismatchError) as error:  # the others know, or find out as this rank did
            self.give_up(str(error))
            raise
        except Exception as error:
            self.abort(f"failed: {describe(error)}")
            raise

    def agree(
        self,
        like: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        largest_bytes: int | None,
    ) -> int:
        """The bytes of the largest piece of an all-to-all, as `Handshake.agree`; callers who vouch for splits and give
        `largest_bytes` save that.
        """
        if largest_bytes is None or self._handshake.verify:
            largest_bytes = self._handshake.agree("all_to_all_v", like, out_splits, in_splits)
        self.check()  # begin nothing if another thread gave the transport up
        return largest_bytes

    def meet(self) -> None:
        """As `Transport.meet`."""
        with self.guard():
            self._handshake.agree("meet", torch.empty(0, dtype=torch.uint8))

    def until(self, wait: Callable[[float], bool], late: Callable[[], list[int]] | None = None) -> None:
        """Block until an operation is done, at most the time limit. Raises PeerError.

        wait: blocks for at most so many seconds; whether the operation is done.
        late: the ranks that have not done their share yet, if that can be told.
        """
        self.check()
        clock, limit_s = self._handshake.group.clock, self._handshake.timeout_s
        start = clock.now()
        while True:
            done = wait(min(_SLICE_S, max(start + limit_s - clock.now(), 0.0)))
            self.check()  # after `wait`: the end of a transport ends waits, too
            lost = self._lost()
            if done and not lost:
                return
            waited_s, gone = clock.now() - start, self._handshake.group.gone()
            missing = late() if late is not None else None  # after `gone`: a rank that did its share may leave
            if missing is not None:
                gone = [rank for rank in gone if rank in missing]
            if lost or ((gone or waited_s >= limit_s) and not wait(0.0)):
                raise self.failed(waited_s, gone=gone, said=_still(waited_s, missing))

    def until_done(self, is_done: Callable[[], bool]) -> None:
        """As `until`, by asking again and again."""
        clock = self._handshake.group.clock
        self.until(lambda limit_s: poll(lambda: self._reason is not None or is_done(), limit_s, clock))

    def failed(self, waited_s: float, *, gone: Sequence[int] = (), said: str = "") -> PeerError:
        """The error of a failed operation, which names the rank that is the reason. Every survivor asks for it.

        gone: the ranks whose end is the reason; none: the ranks find out who is. said: in words, for that case.
        """
        self._end("lost an operation")  # first, so that others which wait for this rank find out at the same time
        reason = self._reason
        if reason is None and gone:
            reason = f"the process of {name_ranks(list(gone))} has ended"
            self._handshake.group.abort(f"found that {reason}")
        elif reason is None:
            reason = self._handshake.group.blame(waited_s) + said
        self.refuse(reason)
        return self.error()

    def refuse(self, reason: str) -> None:
        """Begin nothing more; only the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason

    def give_up(self, reason: str) -> None:
        """Begin nothing more, and end what is under way here."""
        self.refuse(reason)
        self._end(reason)

    def abort(self, reason: str) -> None:
        """As `Transport.abort`. The others can read the reason before anything ends here, this process perhaps."""
        self._handshake.group.abort(reason)
        self.give_up(reason)

    def close(self, reason: str) -> None:
        """As `Transport.close`, of what the watch has; what is under way for other ranks is not given up."""
        self.refuse(reason)
        self._handshake.group.close(reason)
        self.flights.clear()
        self._end, self._lost = _nothing, lambda: False  # which keep the transport

    def begun(
        self,
        done: Callable[[], bool],
        wait: Callable[[], None],
        *tensors: object,
        follow: Callable[[], None] | None = None,
    ) -> "Flight":
        """The handle of an operation that uses `tensors`: `done` does not block, `wait` blocks until it is done.

        follow: orders a stream behind it; None: as `wait`.
        """
        while self.flights and self.flights[0].done():
            self.flights.popleft()
        self.flights.append(Flight(lambda: self.is_over or done(), wait, follow or wait, tensors))
        return self.flights[-1]


class Flight:
    """A handle. It keeps the tensors until it was waited for; the transport keeps it until it is done."""

    def __init__(
        self,
        done: Callable[[], bool],
        wait: Callable[[], None],
        follow: Callable[[], None],
        tensors: tuple[object, ...],
    ) -> None:
        self.done = done
        self.follow = follow
        self._wait = wait
        self._tensors = tensors

    def wait(self) -> None:
        self._wait()
        self._tensors = ()


def poll(is_done: Callable[[], bool], limit_s: float, clock: Clock = MACHINE_CLOCK) -> bool:
    """Block the calling thread until `is_done()`, at most so long; whether it is."""
    end, (pause, longest) = clock.now() + limit_s, _PAUSES_S
    while not is_done():
        if clock.now() >= end:
            return False
        clock.wait(pause)
        pause = min(2 * pause, longest)
    return True


def _still(waited_s: float, late: Sequence[int] | None) -> str:
    return f" (after {waited_s:.1f} s this rank still waited for {name_ranks(list(late))})" if late else ""


def _nothing(reason: str) -> None:
    del reason
