"""Samples whose every value says which rank, row and position it comes from, in the currency of the exchange."""

import numpy as np

from fsdata.balance.exchange import RecordSpec
from fsdata.decode.block import Block, Column, RowRefs

SPEC = RecordSpec(
    names=("user", "item", "action", "candidate", "price", "dense", "label"),
    itemsize=np.array([8, 8, 8, 8, 4, 4, 4]),
    group=np.array([-1, 0, 0, 1, 0, -1, 1]),
    width=np.array([1, 0, 0, 0, 0, 3, 0]),
    groups=("uih", "candidates"),
    group_field=np.array([1, 3]),
)
"""Scalars, two aligned id lists with an aligned float list, candidates with a list label, three dense features."""


def lengths_of(seed: int, rank: int, rows: int, longest: int = 9) -> np.ndarray:
    """int64 [2, rows], many of them 0."""
    rng = np.random.default_rng([seed, rank])
    return rng.integers(0, longest + 1, (2, rows)) * rng.integers(0, 2, (2, rows))


def sample(seed: int, rank: int, row: int, lengths: np.ndarray) -> list[list[float]]:
    """The values of one sample, field by field; exact in float32."""
    mark = (seed % 7 * 8 + rank) * 1024 + row * 16
    history, candidates = int(lengths[0, row]), int(lengths[1, row])
    counts = (1, history, history, candidates, history, 3, candidates)
    return [[float(mark + 131072 * field + i) for i in range(count)] for field, count in enumerate(counts)]


def columns_of(seed: int, rank: int, rows: int, lengths: np.ndarray) -> list[Column]:
    """The fields of the rows of one rank."""
    values = [sample(seed, rank, row, lengths) for row in range(rows)]
    columns = []
    for field, itemsize in enumerate(SPEC.itemsize):
        dtype = np.int64 if itemsize == 8 else np.float32
        counts = np.array([len(row[field]) for row in values], np.int64)
        array = np.array([value for row in values for value in row[field]], dtype)
        columns.append(Column.of(array, start=np.cumsum(counts) - counts, length=counts))
    return columns


def rows_of(seed: int, rank: int, rows: int, lengths: np.ndarray) -> RowRefs:
    """The rows of one rank; every field lies in an array of its own."""
    return RowRefs.of(Block.of(columns_of(seed, rank, rows, lengths), rows))


def read(rows: RowRefs, row: int) -> list[list[float]]:
    """The values of one sample, field by field, read from where they lie."""
    spans = rows.take(np.array([row])).spans()
    out = [
        np.empty(count, np.int64 if itemsize == 8 else np.float32)
        for count, itemsize in zip(spans.length[:, 0].tolist(), SPEC.itemsize.tolist(), strict=True)
    ]
    spans.gather(SPEC.itemsize, np.array([each.ctypes.data for each in out]))
    return [[float(value) for value in each] for each in out]
