"""Passes over arrays that numpy does in several, or takes longer for."""

import numpy as np

from fscomm.plan import kernels


def sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64[S]: sums of consecutive `values`; `lengths`, int64[S], says how many belong to each."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """int64[S]: where each of consecutive segments begins."""
    return np.cumsum(lengths) - lengths


def take(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """values[index]; index: int32."""
    out = np.empty(len(index), values.dtype)
    kernels.take(values, index, out)
    return out


def segments(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Segments of `source`, one behind the other. starts, lengths: int64, of one shape."""
    out = np.empty(lengths.sum(), source.dtype)
    words = np.dtype(f"i{source.itemsize}")  # one compiled kernel for each size of element, not for each dtype
    kernels.gather_segments(source.view(words), starts.ravel(), lengths.ravel(), out.view(words))
    return out


def transposed(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Segments that are stored row by row, reordered column by column. lengths: int64[rows, columns]."""
    starts = starts_of(lengths.ravel()).reshape(lengths.shape)
    return segments(values, np.ascontiguousarray(starts.T), np.ascontiguousarray(lengths.T))


def spread(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: for every i the numbers first[i], first[i] + 1, ..., lengths[i] of them."""
    return (first - starts_of(lengths)).repeat(lengths) + np.arange(lengths.sum())
