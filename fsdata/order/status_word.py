"""What every rank says to the others at the start of a step: twelve int64.

Letters: W ranks.
"""

from dataclasses import dataclass

import numpy as np

from fsdata.errors import MismatchError

PROTOCOL = 4
SIZE = 12
_FLAGS = 6  # the column of these bits
_ENDED, _LEFT, _FAILED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWord:
    """What one rank says about its part of a step.

    The caller fills in the first four fields; the exchange adds the others.

    Attributes:
        epoch, step: position of the step; all ranks must agree on them.
        position: a number of the caller's (where its reading stands); the exchange only passes it on.
        ended: nothing follows the rows that this rank contributes to this step.
        rows: samples this rank contributes.
        longest: elements of the longest field of any of them.
        left: the rank left the loop here.
        failed: the rank's reading failed here; it sends the message next.
        compute_ns, compute_step: the last `report`, 0 and -1 if there is none since the last word.
        moving_ns: how long stage III of the step before took here.
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
    """int64 [SIZE]. `number` counts the exchange's steps, `digest` is that of the record spec, 0 if unknown."""
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
    """Raise MismatchError unless all ranks speak of the same step of the same data.

    Ranks that left or failed are believed about nothing else; a rank that has seen no data yet has digest 0.
    """
    going = (words[:, _FLAGS] & (_LEFT | _FAILED)) == 0
    for column, what in (
        (0, "exchange protocol (different fsdata versions)"),
        (1, "exchange number"),
        (2, "fields of a sample (names, item sizes, groups)"),
        (3, "epoch"),
        (4, "step"),
    ):
        ranks = np.flatnonzero(going & (words[:, 2] != 0)) if column == 2 else np.flatnonzero(going)
        values = words[ranks, column]
        if len(values) and (values != values[0]).any():
            other = int(ranks[np.argmax(values != values[0])])
            raise MismatchError(
                f"ranks disagree on {what}: rank {ranks[0]} has {values[0]}, rank {other} has {words[other, column]}. "
                "All ranks must iterate the same loader, built with the same arguments, the same number of times"
            )
