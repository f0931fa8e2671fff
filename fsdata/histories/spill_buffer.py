"""Collects values of unknown number: in memory, or in a file if they may exceed memory."""

from pathlib import Path
from typing import Any

import numpy as np

from fsdata.decode.block import Column, run


class SpillBuffer:
    """Values of one type. path: a file for them; None for memory."""

    def __init__(self, dtype: np.dtype[Any], path: Path | None) -> None:
        self._dtype = dtype
        self._path = path
        self._parts: list[np.ndarray] = []
        self._size = 0

    def add(self, values: np.ndarray) -> None:
        self._size += len(values)
        if self._path is None:
            self._parts.append(values)
        else:
            with open(self._path, "ab") as file:
                file.write(values.data)

    def whole(self) -> np.ndarray:
        """All values, [n], in the order in which they were added. In memory, this empties the buffer."""
        if self._path is not None and self._size:  # an empty file cannot be mapped
            return np.memmap(self._path, self._dtype, "r", shape=self._size)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self._dtype), *parts])

    def gathered(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The values [start, start + length) of each range, concatenated. starts, lengths: int64 [k]."""
        values = self.whole()
        column = Column(run(values.ctypes.data, len(values)), starts, lengths, owners=(values,))
        return column.gathered(self._dtype, np.arange(len(starts)), self._empty(int(lengths.sum())))

    def _empty(self, size: int) -> np.ndarray:
        if self._path is None or not size:
            return np.empty(size, self._dtype)
        return np.memmap(self._path.with_suffix(".gathered"), self._dtype, "w+", shape=size)
