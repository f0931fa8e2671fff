"""What ranks tell each other on the host: that all are there, how much each sends, and who is gone.

They do so before an operation. On a GPU, a kernel or a copy that waits for a rank which never comes blocks its stream,
and sizes that disagree end the process inside NCCL or overwrite the rows of other operations. They do so again while
an operation does not end (`Watch`), as libraries cannot say which rank is the reason.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from fscomm.transports.transport import row_bytes
from fsranks.control_group import ControlGroup
from fsranks.errors import MismatchError, PeerError, describe, name_ranks
from fsranks.rank_context import RankContext

T = TypeVar("T")

_OPERATIONS = ("all_to_all_v", "all_gather", "meet")
_SAME = ("operation", "dtype", "bytes per row")
_TOLD_BYTES = 512
_SLICE_S = 0.5  # between two checks which ranks are still alive
_PAUSES_S = (2e-5, 1e-3)  # between two questions whether an operation is done: the first, and the longest


class Handshake:
    """One exchange of a few numbers over gloo per operation; making it is collective.

    With `verify` every rank learns all splits and compares them (2 W numbers per rank). Without it only the largest
    size travels, and callers must derive splits from the same gathered lengths, as fscomm's engine does.
    """

    def __init__(self, context: RankContext, *, verify: bool, timeout_s: float) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self.timeout_s = timeout_s
        self.group = ControlGroup(context, timeout_s=timeout_s)
        self._verify = verify

    @property
    def one_host(self) -> bool:
        """Whether all ranks are processes of this machine."""
        return self.group.one_host

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
        if self._verify:
            self._compare(of_all[:, len(word) + 1 :])
        return int(of_all[:, len(word)].max())

    def gone(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return self.group.gone()

    def _splits(self, out_splits: Sequence[int], in_splits: Sequence[int]) -> list[int]:
        """As many numbers for every operation: so ranks that are at different operations can still exchange them."""
        if not self._verify:
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


def together(group: ControlGroup, step: Callable[[], T]) -> T:
    """What `step` returns here: it counts only once it worked on all ranks. Collective; blocks for all ranks.

    Raises:
        PeerError: on all ranks in the same words, if `step` raised on one; they name the rank and give its error.
    """
    done: list[T] = []
    failure: Exception | None = None
    try:
        done.append(step())
    except Exception as error:  # whatever it is: a rank that keeps it to itself is waited for in vain
        failure = error
    text = "" if failure is None else describe(failure)
    word = np.frombuffer(text.encode()[:_TOLD_BYTES].ljust(_TOLD_BYTES, b"\0"), np.uint8).copy()
    told: dict[str, list[int]] = {}
    for rank, row in enumerate(group.all_gather(word)):
        if text := row.tobytes().rstrip(b"\0").decode(errors="replace"):
            told.setdefault(text, []).append(rank)
    if told:
        raise PeerError("; ".join(f"on {name_ranks(of)}: {text}" for text, of in told.items())) from failure
    return done[0]


class Watch:
    """The time limit of one transport, and its end: after the first error everything raises PeerError.

    It waits for operations of a library that cannot say which rank is the reason when an operation does not end.

    `end` gives up the operations under way. Any thread may call it, more than once, and it must not wait for peers.
    """

    def __init__(self, name: str, handshake: Handshake, end: Callable[[], None]) -> None:
        self._name = name
        self._handshake = handshake
        self._end = end
        self._lock = threading.Lock()
        self._reason: str | None = None

    @property
    def is_over(self) -> bool:
        return self._reason is not None

    def agree(
        self, operation: str, like: torch.Tensor, out_splits: Sequence[int] = (), in_splits: Sequence[int] = ()
    ) -> int:
        """As `Handshake.agree`. An error there ends the transport on all ranks."""
        self.check()
        try:
            largest = self._handshake.agree(operation, like, out_splits, in_splits)
        except (PeerError, MismatchError) as error:
            self.give_up(str(error))
            raise
        self.check()  # begin nothing if another thread gave the transport up
        return largest

    def check(self) -> None:
        if self._reason is not None:
            raise self._error(self._reason)

    def until(self, is_done: Callable[[], bool]) -> None:
        """Block until `is_done()`, at most the time limit. Raises PeerError."""
        clock = self._handshake.group.clock
        start = clock.now()
        look_at, (pause, longest) = start + _SLICE_S, _PAUSES_S
        while not is_done():
            self.check()
            now = clock.now()
            if now >= start + self._handshake.timeout_s:
                raise self.failed(now - start)
            if now >= look_at:
                look_at = now + _SLICE_S
                if self._handshake.gone() and not is_done():  # a rank that has completed the operation may leave
                    raise self.failed(now - start)
            clock.wait(pause)
            pause = min(2 * pause, longest)
        self.check()

    def failed(self, waited_s: float, said: str = "") -> PeerError:
        """The error of a failed operation, which names the rank that is the reason. Every survivor asks for it."""
        reason = self._reason
        if reason is None and (gone := self._handshake.gone()):
            reason = f"the process of {name_ranks(gone)} has ended"
            self._handshake.group.abort(f"found that {reason}")
        elif reason is None:
            reason = (
                f"{self._handshake.group.blame(waited_s)}. {said}" if said else self._handshake.group.blame(waited_s)
            )
        return self._error(self.give_up(reason))

    def give_up(self, reason: str) -> str:
        """Refuse everything from now on. Returns the reason, which is the first one given."""
        with self._lock:
            reason = self._reason = self._reason or reason
        self._end()
        return reason

    def abort(self, reason: str) -> None:
        """As `Transport.abort`."""
        self._handshake.group.abort(reason)
        self.give_up(reason)

    def close(self, reason: str) -> None:
        """As `Transport.close`. Drops `end` and the object it belongs to."""
        self.give_up(reason)
        self._end = _nothing
        self._handshake.group.close(reason)

    def _error(self, reason: str) -> PeerError:
        return PeerError(f"{self._name} is over on this rank: {reason}")


def _nothing() -> None:
    pass
