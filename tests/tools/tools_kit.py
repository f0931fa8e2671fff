"""What tests of the tools share: files with lists, runs of commands, samples and profiles of known lengths."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data_kit import write
from typer.testing import CliRunner

from freescale_tools.cli import app
from freescale_tools.model.batches import Samples
from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.histogram import LengthHistogram

__all__ = ["answered", "damage", "in_order", "profile_of", "ragged", "ran", "refused", "write"]


def ragged(lengths, values=None):
    """Lists of these lengths. Without `values` (of all lists in turn) they hold 0 to 98 over and over."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.arange(offsets[-1], dtype=np.int64) % 99 if values is None else values)


def damage(path, group, *columns):
    """No page of these column chunks (of the first one without `columns`) can be decoded."""
    raw = bytearray(path.read_bytes())
    for column in columns or (0,):
        chunk = pq.read_metadata(path).row_group(group).column(column)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        raw[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(raw)


def ran(*arguments, status=0):
    """The outcome of a command that ends with `status`; its name is the first of the arguments."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == status, done.output
    return done


def answered(*arguments, status=0):
    """The document that a command prints."""
    return json.loads(ran(*arguments, "--json", status=status).stdout)


def refused(*arguments, status=2):
    """What a command that cannot run says, in one line. It prints nothing else."""
    done = ran(*arguments, status=status)
    assert done.stdout == ""
    return " ".join(done.stderr.split())


def in_order(lengths, *row_groups, **options):
    """Samples in the order of files with row groups of so many rows."""
    rows = RowsInOrder(units=(tuple(row_groups),), lengths={"sequence": np.asarray(lengths, np.uint32)})
    return Samples(histogram=LengthHistogram.from_lengths(np.asarray(lengths)), rows=rows, **options)


NOTHING = (
    "answer", "stragglers", "balance", "recommended", "loader", "tradeoff", "collisions", "simulation", "sharing",
    "histories", "in_order", "dims",
)  # fmt: skip


def profile_of(lengths, *, name="item", row_groups=(), **parts):
    """As of a full profile before predictions. `row_groups`: rows of each; without, the order is not known."""
    histogram = lengths if isinstance(lengths, LengthHistogram) else LengthHistogram.from_lengths(np.asarray(lengths))
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
        document["in_order"] = in_order(lengths, *row_groups).rows.to_dict()
    return document | parts
