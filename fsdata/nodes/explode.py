"""Splits rows into samples when a batch is made, on the rank that computes them (pure planning; no value is copied).

With `Schema(explode="candidates")` every candidate of a row is a sample. Until then rows are read, planned and moved as
a whole, so that the other fields of a row are stored and sent once.

Letters: N rows, C candidates of all rows.
"""

import numpy as np

from fsdata.decode.block import Spans
from fsdata.decode.row_layout import Layout


def explode(spans: Spans, layout: Layout) -> tuple[Spans, np.ndarray]:
    """(one sample per candidate, in order, with all other fields of its row; int64 [C], the row of each sample)."""
    assert layout.exploded is not None
    count = spans.length[layout.groups[layout.exploded]]
    row = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    samples = spans.take(row)
    for slot, field in enumerate(layout.fields):
        if field.group == layout.exploded:
            samples.start[slot] += within
            samples.length[slot] = 1
    return samples.with_length(samples.length), row
