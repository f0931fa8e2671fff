"""What the ranks say to each other at the start of a step: a status word of twelve int64, and some bytes.

The bytes travel behind the numbers, in as much room as the last calls needed. All ranks know how much that is, because
the numbers say how many bytes each rank has. If those of one rank do not fit, all ranks see so alike, and the bytes of
all travel in a second exchange.

Letters: W ranks, k numbers.
"""

from collections import deque

import numpy as np

from fsdata.balance.step_plan import StatusWord
from fsdata.errors import MismatchError
from fsranks.control_group import AnyGroup

PROTOCOL = 4
SIZE = 12
_FLAGS = 6  # the column of these bits
_ENDED, _LEFT, _FAILED = 1, 2, 4


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


_REMEMBERED = 16  # calls: one that needed much more, an error's message say, is not paid for ever after
_STEP = 64
_LIMIT = 1 << 30


def room(sizes: deque[int]) -> int:
    """Bytes behind the numbers: the most that a rank had in one of the last calls, rounded up."""
    return -(-max(sizes, default=0) // _STEP) * _STEP


class FittedGather:
    """Every rank makes the same calls, with the same k. For one thread."""

    def __init__(self, group: AnyGroup) -> None:
        self._group = group
        self._sizes: deque[int] = deque(maxlen=_REMEMBERED)

    def gather(self, numbers: np.ndarray, text: bytes = b"") -> tuple[np.ndarray, list[bytes]]:
        """int64 [W, k] from int64 [k], and the bytes of every rank, any number of them.

        Raises MismatchError on all ranks alike if a rank says that it has more than a gigabyte: its numbers are not
        those of this call.
        """
        head = np.array([len(text), *numbers], np.int64).view(np.uint8)
        size = len(head) + room(self._sizes)
        said = self._group.all_gather(_padded(head, text if len(head) + len(text) <= size else b"", size))
        words = said[:, : len(head)].copy().view(np.int64)
        sizes = words[:, 0]
        largest = int(sizes.max())
        if sizes.min() < 0 or largest > _LIMIT:
            raise MismatchError(f"ranks say that they have {sizes.tolist()} bytes, at most {_LIMIT} are possible")
        self._sizes.append(largest)
        texts = said[:, len(head) :]
        if largest > texts.shape[1]:
            texts = self._group.all_gather(_padded(np.empty(0, np.uint8), text, largest))
        return words[:, 1:], [each[:count].tobytes() for each, count in zip(texts, sizes, strict=True)]


def _padded(head: np.ndarray, text: bytes, size: int) -> np.ndarray:
    out = np.zeros(size, np.uint8)
    out[: len(head)] = head
    out[len(head) : len(head) + len(text)] = np.frombuffer(text, np.uint8)
    return out
