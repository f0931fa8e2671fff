"""How many elements rows have, where all candidates of a row may become samples (`Schema(explode=...)`)."""

from collections.abc import Mapping

import numpy as np


def tokens_of(lengths: Mapping[str, np.ndarray], exploded: str | None, rows: int) -> np.ndarray:
    """int64 [N]: elements of all groups of each row, where all candidates of a row become samples of all of them; 1
    where nothing is jagged."""
    if not lengths:
        return np.ones(rows, np.int64)
    found: np.ndarray = np.sum(list(lengths.values()), axis=0)
    if exploded is not None:
        count = lengths[exploded]
        found = (found - count + 1) * count
    return found


def items_of(lengths: Mapping[str, np.ndarray], exploded: str | None) -> dict[str, int]:
    """Group name -> elements of the group in all samples. lengths: group name -> int64 [N] of the rows."""
    if exploded is None:
        return {name: int(length.sum()) for name, length in lengths.items()}
    count = lengths[exploded]
    return {name: int((count if name == exploded else length * count).sum()) for name, length in lengths.items()}
