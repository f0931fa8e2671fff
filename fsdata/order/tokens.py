"""Counts the elements of rows, also where every candidate of a row becomes a sample (`Schema(explode=...)`)."""

from collections.abc import Mapping

import numpy as np


def tokens_of(lengths: Mapping[str, np.ndarray], exploded: str | None, rows: int) -> np.ndarray:
    """int64 [N]: elements of each row, summed over its groups and its samples; 1 if the schema has no lists."""
    if not lengths:
        return np.ones(rows, np.int64)
    tokens: np.ndarray = np.sum(list(lengths.values()), axis=0)
    if exploded is not None:
        # `count` samples, each with one candidate and a copy of every other list of the row.
        count = lengths[exploded]
        tokens = (tokens - count + 1) * count
    return tokens


def items_of(lengths: Mapping[str, np.ndarray], exploded: str | None) -> dict[str, int]:
    """Group name -> elements of the group in all samples. lengths: group name -> int64 [N] of the rows."""
    if exploded is None:
        return {name: int(length.sum()) for name, length in lengths.items()}
    count = lengths[exploded]  # samples of each row; the candidates are divided among them, other lists are repeated
    return {name: int((count if name == exploded else length * count).sum()) for name, length in lengths.items()}
