"""Documents of `freescale profile` from lengths alone, without files."""

import numpy as np

from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.histogram import LengthHistogram

NOTHING = (
    "answer", "stragglers", "balance", "recommended", "loader", "tradeoff", "collisions", "simulation", "sharing",
    "histories", "in_order", "dims",
)  # fmt: skip


def profile_of(lengths, *, name="item", row_groups=(), **parts):
    """As of a full profile before predictions. `row_groups`: rows of each; without, the order is not known."""
    histogram = lengths if isinstance(lengths, LengthHistogram) else LengthHistogram.of(np.asarray(lengths))
    sequence = {
        "rows": histogram.rows, "events": histogram.events, "empty": histogram.empty, "null": 0, "null_elements": 0,
        "mean": histogram.mean, "max": histogram.longest, "top1_share": histogram.top_share(0.01), "drift": None,
        "quantiles": dict.fromkeys(("p01", "p05", "p25", "p50", "p75", "p90", "p95", "p99", "p999"), 0),
        "histogram": histogram.to_dict(), "longest": [], "per_file": [],
    }  # fmt: skip
    document = {
        "version": 2, "kind": "profile", "mode": "full", "paths": ["data"], "files": 1, "rows": histogram.rows,
        "row_groups": 1, "bytes": 1, "skipped": [], "sequences": {name: sequence}, "candidates": {},
        **dict.fromkeys(NOTHING),
    }  # fmt: skip
    if row_groups:
        rows = RowsInOrder(units=(tuple(row_groups),), lengths={"sequence": np.asarray(lengths, np.uint32)})
        document["in_order"] = rows.to_dict()
    return document | parts
