"""How the ranks of a loader keep step: every rank gets the status word of every rank, or the reason for its absence.

It runs over a gloo group of the loader's own, in the thread that makes steps ahead of the training loop.
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

    `agree`, `gather`, `fail` and `leave` block, in one thread at a time; every rank makes one such call per step. All
    ranks may `gather_number` afterwards. `report`, `abort` and `close` may be called from any thread. Making it is
    collective and belongs into the constructor of the loader, after `Meeting.agree`.

    Raises (agree, gather, gather_number): PeerError naming the rank that failed (with its message), left, died or did
    not come within `timeout_s`; MismatchError if ranks are at different steps.
    """

    def __init__(self, context: RankContext, *, timeout_s: float = 300.0) -> None:
        self.context = context
        self._group = control_group(context, timeout_s=timeout_s)
        self._statuses = FittedGather(self._group)
        self._report_lock = threading.Lock()
        self._report = (0, -1)
        self._moving_ns = 0  # of the last step whose samples moved; a `StepExchange` sets it
        self._between_epochs = True  # no rank waits for a word of this one

    def report(self, compute_seconds: float, number: int) -> None:
        """Remember how long step `number` computed here; rides on the next status word."""
        with self._report_lock:
            self._report = (max(1, round(compute_seconds * 1e9)), number)

    def agree(self, status: StatusWord) -> tuple[StatusWord, ...]:
        """The statuses of all ranks. For loaders that keep their rows but must stop together."""
        return self._words(status, 0)[0]

    def gather(self, mine: bytes, status: StatusWord) -> list[bytes]:
        """What every rank has to say beside the statuses, any number of bytes each."""
        return self._words(status, 0, mine)[1]

    def gather_number(self, mine: int) -> list[int]:
        """One number of every rank."""
        return self._group.all_gather(np.array([mine], np.int64))[:, 0].tolist()

    def fail(self, error: BaseException, status: StatusWord) -> None:
        """Take part in a step only to report to the others what failed here. Returns; the caller raises its error."""
        try:
            self._words(replace(status, failed=True), 0, cut_short(describe(error)))
        except PeerError as peer:
            error.add_note(f"while telling the other ranks: {peer}")

    def leave(self, why: str = CLOSED, grace_s: float | None = None) -> None:
        """Say in the next step that this rank leaves the loop, because it did `why`.

        Nothing is said between epochs, and on a broken group.

        Afterwards the exchange is ready for another epoch. Waits for the others to come to that step, but after
        `grace_s` gives up and breaks the group: they then get an error when they need this rank.
        """
        if self._between_epochs:
            return
        timer = None if grace_s is None else threading.Timer(grace_s, self.abort, [why])
        try:
            if timer is not None:
                timer.start()
        except RuntimeError:  # Python 3.12 and later start no thread when they end
            self.abort(why)
            return
        try:
            self._words(StatusWord(epoch=0, step=0, left=True), 0, cut_short(why))
        except PeerError:
            # This rank leaves in any case: it need not know which other ranks are gone.
            self._between_epochs = True
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()

    def abort(self, why: str = CLOSED) -> None:
        """Break the group: a call that blocks in another thread raises at once. Only `close` makes sense after it.

        why: what the other ranks read, behind the name of this one.
        """
        self._group.abort(why)

    def close(self, why: str = CLOSED) -> None:
        """End the group; ranks that wait for this one raise. No call may be under way. Twice is fine."""
        self._group.close(why)

    def _words(self, status: StatusWord, digest: int, text: bytes = b"") -> tuple[tuple[StatusWord, ...], list[bytes]]:
        """The status and the text of every rank; raises if a rank failed, left, or is at another step."""
        with self._report_lock:
            (compute_ns, compute_step), self._report = self._report, (0, -1)  # each report is sent once
        mine = replace(status, compute_ns=compute_ns, compute_step=compute_step, moving_ns=self._moving_ns)
        words, texts = self._statuses.gather(status_word.encode(mine, self._group.number, digest), text)
        self._group.number += 1
        statuses = status_word.decode(words)
        at = f"step {mine.step} of epoch {mine.epoch}"
        left = [rank for rank, other in enumerate(statuses) if other.left]
        failed = [rank for rank, other in enumerate(statuses) if other.failed]
        # From here on no rank waits for a further word of this epoch, so `leave` need not send one.
        self._between_epochs = bool(left) or bool(failed) or all(other.ended for other in statuses)
        # Where some failed and others left, the message of a failure says more.
        if failed and not mine.failed:
            raise failure_of_others(failed, texts, at)
        if left and not failed and not mine.left:
            why = texts[left[0]].decode(errors="replace")
            alike = why in (CLOSED, RESTARTED)
            advice = "All ranks must take the same number of steps" if alike else "Look at the log of that rank"
            raise PeerError(f"rank {left[0]} left the loop before {at} (it {why}) and this rank went on. {advice}")
        status_word.check(words)  # last: ranks that failed or left are at other steps
        return statuses, texts


@contextlib.contextmanager
def failures_reported_to_peers(exchange: StatusExchange | None, status: StatusWord) -> Iterator[None]:
    """Reports an error of the block to the other ranks in their next step, and raises it. Blocks until they come.

    Only Ctrl-C does not wait for them: they get an error when this rank closes its loader or ends.
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
    """What fits behind a status word."""
    return text.encode()[:_MESSAGE_BYTES]


def failure_of_others(failed: list[int], texts: list[bytes], at: str) -> PeerError:
    """What failed on other ranks, for a rank where nothing did."""
    said = [f"rank {rank} failed at {at}: {texts[rank].decode(errors='replace')}" for rank in failed]
    return PeerError("; ".join(said))
