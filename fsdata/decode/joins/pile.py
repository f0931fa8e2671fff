"""A long array that is made piece by piece, in memory or in a file."""

from pathlib import Path
from typing import Any

import numpy as np

from fsdata.decode.block import Column, run


class Pile:
    """Values of one type. `path`: the file in which they lie, so that the system need not keep them in memory."""

    def __init__(self, kind: np.dtype[Any], path: Path | None) -> None:
        self.kind = kind
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
        """All values, [n], in the order in which they came. The pile is empty afterwards."""
        if self._path is not None and self._size:
            return np.memmap(self._path, self.kind, "r", shape=self._size)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.kind), *parts])

    def gathered(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The stretches of values that begin at `starts`, one after another; int64 [k] each."""
        values = self.whole()
        column = Column(run(values.ctypes.data, len(values)), starts, lengths, owners=(values,))
        return column.gathered(self.kind, np.arange(len(starts)), self._room(int(lengths.sum())))

    def _room(self, size: int) -> np.ndarray:
        if self._path is None or not size:
            return np.empty(size, self.kind)
        return np.memmap(self._path.with_suffix(".gathered"), self.kind, "w+", shape=size)
