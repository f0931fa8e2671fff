"""`TableResolver`: columns whose values are determined when they are copied, by pools or lookups."""

import numpy as np

from fsdata.decode.block import Resolver, Spans
from fsdata.histories.kernels import resolve


class TableResolver(Resolver):
    """For a column of a table of histories with pools, or a field that is looked up by the ids of a column, or both.

    Args:
        pools: see `fsdata.histories.kernels.histories`; the start of a row is the event after the last one that it may
            see.
        lookup: see `fsdata.histories.kernels.lookups`.
    """

    def __init__(self, *, pools: np.ndarray | None = None, lookup: np.ndarray | None = None) -> None:
        self.pools = pools  # a reference, because the table has the address of its memory
        self.from_end = pools is not None
        self.table = np.zeros(resolve.SIZE, np.int64)
        if pools is not None:
            self.table[resolve.POOLS] = pools.ctypes.data
        if lookup is not None:
            self.table[resolve.LOOKUP :] = lookup

    def gather(self, spans: Spans, itemsize: np.ndarray, target: np.ndarray) -> None:
        resolve.gather_fields(spans.columns, spans.block, spans.start, spans.length, itemsize, target)

    def gather_each(self, spans: Spans, itemsize: np.ndarray, order: np.ndarray, target: np.ndarray) -> None:
        resolve.gather_samples(spans.columns, spans.block, spans.start, spans.length, itemsize, order, target)
