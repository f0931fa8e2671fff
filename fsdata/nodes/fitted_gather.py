"""An all-gather of some numbers and any number of bytes per rank, mostly in one exchange.

The bytes are sent behind the numbers, in a buffer as large as the last calls needed. The numbers include the number of
bytes of each rank, so all ranks know the size of the next buffer. If the bytes of one rank do not fit, all ranks see
this, and the bytes of all ranks are sent in a second exchange.

Letters: W ranks, k numbers.
"""

from collections import deque

import numpy as np

from fsdata.errors import MismatchError
from fsranks.control_group import AnyGroup

_REMEMBERED = 16  # calls: a single large one, such as an error message, must not enlarge all later ones
_STEP = 64  # bytes, by which the buffer grows
_LIMIT = 1 << 30


def room(sizes: deque[int]) -> int:
    """Bytes behind the numbers: the maximum over all ranks and the last calls, rounded up."""
    return -(-max(sizes, default=0) // _STEP) * _STEP


class FittedGather:
    """All ranks make the same calls, with the same k. For one thread."""

    def __init__(self, group: AnyGroup) -> None:
        self._group = group
        self._sizes: deque[int] = deque(maxlen=_REMEMBERED)

    def gather(self, numbers: np.ndarray, text: bytes = b"") -> tuple[np.ndarray, list[bytes]]:
        """(int64 [W, k] from int64 [k], the `text` of every rank).

        Raises MismatchError on all ranks if the size that a rank states is impossible: it made another kind of call.
        """
        head = np.array([len(text), *numbers], np.int64).view(np.uint8)
        size = len(head) + room(self._sizes)
        received = self._group.all_gather(_padded(head, text if len(head) + len(text) <= size else b"", size))
        words = received[:, : len(head)].copy().view(np.int64)
        sizes = words[:, 0]
        largest = int(sizes.max())
        if sizes.min() < 0 or largest > _LIMIT:
            raise MismatchError(f"ranks state that they have {sizes.tolist()} bytes, at most {_LIMIT} are possible")
        self._sizes.append(largest)
        texts = received[:, len(head) :]
        if largest > texts.shape[1]:
            texts = self._group.all_gather(_padded(np.empty(0, np.uint8), text, largest))
        return words[:, 1:], [data[:count].tobytes() for data, count in zip(texts, sizes, strict=True)]


def _padded(head: np.ndarray, text: bytes, size: int) -> np.ndarray:
    buffer = np.zeros(size, np.uint8)
    buffer[: len(head)] = head
    buffer[len(head) : len(head) + len(text)] = np.frombuffer(text, np.uint8)
    return buffer
