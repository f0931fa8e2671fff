"""Columns that rows refer to by number: an address of a row says which one, see `fsdata.kernels.pages.fetch`."""

from collections import deque
from typing import Any

import numpy as np

from fsdata.kernels.pages import fetch

_free = deque(range(fetch.MOST_COLUMNS))  # appending and popping need no lock


class Held:
    """A column that can be referred to as long as this object lives.

    Attributes:
        base: the paged address of its first value.
    """

    def __init__(self, number: int, column: np.ndarray, owners: tuple[Any, ...]) -> None:
        self._number = number
        self._owners = owners
        fetch.HELD[self._number] = column
        self.base = (fetch.PAGED << fetch.PAGED_SHIFT) | (self._number << fetch.COLUMN_SHIFT)

    def __del__(self) -> None:
        fetch.HELD[self._number] = 0
        _free.append(self._number)


def hold(column: np.ndarray, *owners: Any) -> Held | None:
    """column: int64 [4], see `fsdata.kernels.pages.fetch`; owners: keep what it points to. None: no number is free."""
    try:
        number = _free.popleft()
    except IndexError:
        return None
    return Held(number, column, owners)
