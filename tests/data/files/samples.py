"""Samples whose every value says which rank, row and position it comes from, in the currency of the exchange."""

import ctypes

import numpy as np

from fsdata.balance.exchange import RecordSpec
from fsdata.decode.row_table import RowTable

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


def table_of(seed: int, rank: int, rows: int, lengths: np.ndarray) -> RowTable:
    """The rows of one rank; every field lies in an array of its own."""
    values = [sample(seed, rank, row, lengths) for row in range(rows)]
    arrays, address, length = [], [], []
    for field, itemsize in enumerate(SPEC.itemsize):
        dtype = np.int64 if itemsize == 8 else np.float32
        counts = np.array([len(row[field]) for row in values], np.int64)
        array = np.array([value for row in values for value in row[field]], dtype)
        arrays.append(array)
        length.append(counts)
        address.append(array.ctypes.data + itemsize * (np.cumsum(counts) - counts))
    shape = (len(SPEC.names), rows)
    return RowTable(
        np.array(address, np.int64).reshape(shape), np.array(length).reshape(shape), SPEC.itemsize, tuple(arrays)
    )


def read(table: RowTable, row: int) -> list[list[float]]:
    """The values of one sample, field by field, read from where they lie."""
    out = []
    for field, itemsize in enumerate(table.itemsize):
        address, count = int(table.address[field, row]), int(table.length[field, row])
        kind = ctypes.c_int64 if itemsize == 8 else ctypes.c_float
        assert count == 0 or address % itemsize == 0
        out.append([float(value) for value in (kind * count).from_address(address)] if count else [])
    return out
