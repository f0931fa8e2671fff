"""Synchronizes the steps of all ranks: every rank receives the status word of every rank, or an error that names the
rank that failed, left or did not answer.

It uses a gloo group of its own, in the thread that makes steps ahead of the training loop.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fsdata.errors import PeerError
from fsdata.nodes.fitted_gather import FittedGather
from fsdata.order import status_word
from fsdata.order.status_word import StatusWord
from fsranks.control_group import control_group
from fsranks.errors import describe
from fsranks.rank_context import RankContext

_MESSAGE_BYTES = 2048
CLOSED = "closed its loader"
RESTARTED = "began another loop over its loader"


class StatusExchange:
    """Exchanges status words with the other ranks, in lock step.

    Every rank makes one blocking call per step: `agree`, `gather`, `fail` or `leave`. Afterwards, all ranks may call
    `gather_number`. One thread at a time makes these calls; `report`, `abort` and `close` are for any thread. The
    constructor is collective and belongs into the constructor of the loader, after `Meeting.agree`.

    Raises (agree, gather, gather_number): PeerError naming the rank that failed (with its message), left, died or did
    not answer within `timeout_s`; MismatchError if ranks are at different steps.
    """

    def __init__(self, context: RankContext, *, timeout_s: float = 300.0) -> None:
        self.context = context
        self._group = control_group(context, timeout_s=timeout_s)
        self._statuses = FittedGather(self._group)
        self._report_lock = threading.Lock()
        self._report = (0, -1)
        self._moving_ns = 0  # duration of the last all-to-all of samples; a `StepExchange` sets it
        self._between_epochs = True  # no rank waits for a word of this one

    def report(self, compute_seconds: float, number: int) -> None:
        """Send how long step `number` computed on this rank, with the next status word."""
        with self._report_lock:
            self._report = (max(1, round(compute_seconds * 1e9)), number)

    def agree(self, status: StatusWord) -> tuple[StatusWord, ...]:
        """The statuses of all ranks. For loaders that move no samples but must end at the same step."""
        return self._words(status)[0]

    def gather(self, data: bytes, status: StatusWord) -> list[bytes]:
        """The `data` of every rank, any number of bytes each; the statuses are checked, but not returned."""
        return self._words(status, text=data)[1]

    def gather_number(self, number: int) -> list[int]:
        """The `number` of every rank."""
        return self._group.all_gather(np.array([number], np.int64))[:, 0].tolist()

    def fail(self, error: BaseException, status: StatusWord) -> None:
        """Take part in a step only to report `error` to the other ranks. Returns; the caller raises its error."""
        try:
            self._words(replace(status, failed=True), text=cut_short(describe(error)))
        except PeerError as peer:
            error.add_note(f"while reporting this error to the other ranks: {peer}")

    def leave(self, why: str = CLOSED, grace_s: float | None = None) -> None:
        """Announce in the next step that this rank leaves the loop, because it did `why`.

        Between epochs and on a broken group nothing is sent. Then the exchange is ready for another epoch. Waits until
        the others take that step. After `grace_s` it gives up and breaks the group: they then get an error when they
        need this rank.
        """
        if self._between_epochs:
            return
        timer = None if grace_s is None else threading.Timer(grace_s, self.abort, [why])
        try:
            if timer is not None:
                timer.start()
        except RuntimeError:  # Python 3.12 and later start no thread while they shut down: waiting would have no limit
            self.abort(why)
            return
        try:
            self._words(StatusWord(epoch=0, step=0, left=True), text=cut_short(why))
        except PeerError:
            # This rank leaves in any case, so errors of the other ranks do not matter to it.
            self._between_epochs = True
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()

    def abort(self, why: str = CLOSED) -> None:
        """Break the group: a call that blocks in another thread raises at once. Only `close` may follow.

        why: the reason that the other ranks read, after the name of this one.
        """
        self._group.abort(why)

    def close(self, why: str = CLOSED) -> None:
        """End the group; ranks that wait for this one raise. No other call may be running. May be called twice."""
        self._group.close(why)

    def _words(
        self, status: StatusWord, digest: int = 0, text: bytes = b""
    ) -> tuple[tuple[StatusWord, ...], list[bytes]]:
        """The status and the text of every rank; raises if a rank failed, left, or is at another step."""
        with self._report_lock:
            (compute_ns, compute_step), self._report = self._report, (0, -1)  # each report is sent once
        own = replace(status, compute_ns=compute_ns, compute_step=compute_step, moving_ns=self._moving_ns)
        words, texts = self._statuses.gather(status_word.encode(own, self._group.number, digest), text)
        self._group.number += 1
        statuses = status_word.decode(words)
        at = f"step {own.step} of epoch {own.epoch}"
        left = [rank for rank, other in enumerate(statuses) if other.left]
        failed = [rank for rank, other in enumerate(statuses) if other.failed]
        # If any of these holds, no rank waits for a further word of this epoch, and `leave` need not send one.
        self._between_epochs = bool(left) or bool(failed) or all(other.ended for other in statuses)
        # If some ranks failed and others left, the message of a failure tells the cause.
        if failed and not own.failed:
            raise failure_of_others(failed, texts, at)
        if left and not failed and not own.left:
            why = texts[left[0]].decode(errors="replace")
            regular = why in (CLOSED, RESTARTED)
            advice = "All ranks must take the same number of steps" if regular else "Look at the log of that rank"
            raise PeerError(f"rank {left[0]} left the loop before {at} (it {why}) and this rank went on. {advice}")
        status_word.check(words)  # last: ranks that failed or left are at other steps
        return statuses, texts


@contextlib.contextmanager
def failures_reported_to_peers(exchange: StatusExchange | None, status: StatusWord) -> Iterator[None]:
    """Reports an error of the block to the other ranks in their next step, and raises it. Blocks until they take it.

    Except for Ctrl-C, which must end at once: the others get an error when this rank closes its loader or ends.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise SystemExit, polars raises PanicException
        if exchange is not None:
            exchange.fail(error, status)
        raise


def cut_short(text: str) -> bytes:
    """The beginning of a message, short enough to be sent with a status word."""
    return text.encode()[:_MESSAGE_BYTES]


def failure_of_others(failed: list[int], texts: list[bytes], at: str) -> PeerError:
    """The error of a rank on which nothing failed; it holds the messages of the ranks that did."""
    messages = [f"rank {rank} failed at {at}: {texts[rank].decode(errors='replace')}" for rank in failed]
    return PeerError("; ".join(messages))
