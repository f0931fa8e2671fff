"""The status that every rank sends to the others at the start of a step: twelve int64.

All ranks send the same number of bytes in every step, also those that end, leave or fail: one all-gather needs no
sizes agreed beforehand. Letters: W ranks.
"""

from dataclasses import dataclass

import numpy as np

from fsdata.errors import MismatchError

PROTOCOL = 4  # raise it with every change of the words: ranks that run different versions then fail with a message
SIZE = 12
_FLAGS = 6  # column of the bits below
_ENDED, _LEFT, _FAILED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWord:
    """The status of one rank in one step.

    The caller fills in what it contributes; the exchange adds the others.

    Attributes:
        epoch, step: position of the step; all ranks must agree on them.
        position: the caller's read position; the exchange only transmits it.
        ended: this step has the rank's last rows of the epoch.
        rows: samples this rank contributes.
        longest: elements of the longest field of any of these samples.
        left: the rank left the loop at this step.
        failed: reading failed on this rank at this step; its message is sent next.
        compute_ns, compute_step: the last `report`; 0 and -1 if there was none since the last status.
        moving_ns: duration of stage III (the all-to-all) of the previous step on this rank.
    """

    epoch: int
    step: int
    position: int = 0
    ended: bool = False
    rows: int = 0
    longest: int = 0
    left: bool = False
    failed: bool = False
    compute_ns: int = 0
    compute_step: int = -1
    moving_ns: int = 0


def encode(status: StatusWord, number: int, digest: int) -> np.ndarray:
    """int64 [SIZE]. `number` counts the exchange's steps; `digest` is a hash of the record spec, 0 if not yet known."""
    flags = status.ended * _ENDED | status.left * _LEFT | status.failed * _FAILED
    return np.array(
        [
            PROTOCOL,
            number,
            digest,
            status.epoch,
            status.step,
            status.position,
            flags,
            status.rows,
            status.longest,
            status.compute_ns,
            status.compute_step,
            status.moving_ns,
        ],
        np.int64,
    )


def decode(words: np.ndarray) -> tuple[StatusWord, ...]:
    """The statuses of all ranks from int64 [W, SIZE]."""
    return tuple(
        StatusWord(
            epoch=epoch,
            step=step,
            position=position,
            ended=bool(flags & _ENDED),
            left=bool(flags & _LEFT),
            failed=bool(flags & _FAILED),
            rows=rows,
            longest=longest,
            compute_ns=compute_ns,
            compute_step=compute_step,
            moving_ns=moving_ns,
        )
        for (
            _,
            _,
            _,
            epoch,
            step,
            position,
            flags,
            rows,
            longest,
            compute_ns,
            compute_step,
            moving_ns,
        ) in words.tolist()
    )


def check(words: np.ndarray) -> None:
    """Raise MismatchError unless all ranks are at the same step of the same data."""
    # A rank that left or failed may have stopped between two steps: its other words are not compared.
    active = (words[:, _FLAGS] & (_LEFT | _FAILED)) == 0
    for column, what in (
        (0, "exchange protocol (different fsdata versions)"),
        (1, "exchange number"),
        (2, "fields of a sample (names, item sizes, groups)"),
        (3, "epoch"),
        (4, "step"),
    ):
        # Digest 0: this rank has not read a sample yet, so it does not know the fields.
        ranks = np.flatnonzero(active & (words[:, 2] != 0)) if column == 2 else np.flatnonzero(active)
        values = words[ranks, column]
        if len(values) and (values != values[0]).any():
            other = int(ranks[np.argmax(values != values[0])])
            raise MismatchError(
                f"ranks disagree on {what}: rank {ranks[0]} has {values[0]}, rank {other} has {words[other, column]}. "
                "All ranks must iterate the same loader, built with the same arguments, the same number of times"
            )
