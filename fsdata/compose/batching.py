"""Composes what makes batches: their class, and events that samples share."""

import numpy as np

from fsdata.batch.batch import Batch
from fsdata.batch.merged_windows import MergedWindows
from fsdata.compose import installed
from fsdata.decode.block import Spans
from fsdata.decode.row_layout import Layout


def batch_type() -> type[Batch]:
    """The class of batches. With the extension `views` it has further views of a batch."""
    if not installed("views"):
        return Batch
    from fsdata.views import batch

    return batch.Batch


def share_events(spans: Spans, layout: Layout) -> tuple[list[Spans], np.ndarray, dict[str, MergedWindows]]:
    """Samples whose windows of events overlap share the events; see `fsdata.histories.shared_events`."""
    from fsdata.histories.shared_events import share

    return share(spans, layout)
