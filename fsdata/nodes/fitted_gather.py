"""Numbers and some bytes of every rank to all ranks, in one exchange.

The bytes travel behind the numbers, in as much room as the last calls needed. All ranks know how much that is, because
the numbers say how many bytes each rank has. If those of one rank do not fit, all ranks see so alike, and the bytes of
all travel in a second exchange.

Letters: W ranks, k numbers.
"""

from collections import deque

import numpy as np

from fsdata.errors import MismatchError
from fsranks.control_group import AnyGroup

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
