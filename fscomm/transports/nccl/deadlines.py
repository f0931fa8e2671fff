"""Waiting for operations of a library that cannot say which rank is the reason when an operation does not end."""

import threading
import time
from collections.abc import Callable, Sequence

import torch

from fscomm.transports.handshake import Handshake
from fsranks.errors import MismatchError, PeerError, name_ranks

_SLICE_S = 0.5  # between two checks which ranks are still alive
_PAUSES_S = (2e-5, 1e-3)  # between two questions whether an operation is done: the first, and the longest


class Watch:
    """The time limit of one transport, and its end: after the first error everything raises PeerError.

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
        start = time.monotonic()
        look_at, (pause, longest) = start + _SLICE_S, _PAUSES_S
        while not is_done():
            self.check()
            now = time.monotonic()
            if now >= start + self._handshake.timeout_s:
                raise self.failed(now - start)
            if now >= look_at:
                look_at = now + _SLICE_S
                if self._handshake.gone() and not is_done():  # a rank that has completed the operation may leave
                    raise self.failed(now - start)
            time.sleep(pause)
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
