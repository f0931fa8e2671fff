"""What batches are made with: views of themselves, events that samples share."""

import numpy as np

from fsdata.batch.batch import Batch
from fsdata.batch.merged_windows import MergedWindows
from fsdata.compose import is_there
from fsdata.decode.block import Spans
from fsdata.decode.row_layout import Layout


def batch_type() -> type[Batch]:
    """What batches are made as: with other views of themselves, if they are there."""
    if not is_there("views"):
        return Batch
    from fsdata.views import batch

    return batch.Batch


def share_events(spans: Spans, layout: Layout) -> tuple[list[Spans], np.ndarray, dict[str, MergedWindows]]:
    """Samples that see overlapping events share them; see `fsdata.histories.shared_events`."""
    from fsdata.histories.shared_events import share

    return share(spans, layout)
