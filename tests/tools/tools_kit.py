"""What tests of the tools share: files with lists, runs of commands, and samples of known lengths."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from parquet import write
from typer.testing import CliRunner

from freescale_tools.cli import app
from freescale_tools.model.batches import Samples
from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.histogram import LengthHistogram

__all__ = ["answered", "called", "damage", "in_order", "ragged", "ran", "refused", "write"]


def ragged(lengths, values=None):
    """Lists of these lengths. Without `values` (of all lists in turn) they hold 0 to 98 over and over."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.arange(offsets[-1]) % 99 if values is None else values)


def damage(path, group, *columns):
    """No page of these column chunks (of the first one without `columns`) can be decoded."""
    raw = bytearray(path.read_bytes())
    for column in columns or (0,):
        chunk = pq.read_metadata(path).row_group(group).column(column)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        raw[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(raw)


def called(*arguments):
    """The outcome of a command whose name is the first of the arguments."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ran(*arguments, status=0):
    """The outcome of a command that ends with `status`."""
    done = called(*arguments)
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
    return Samples(histogram=LengthHistogram.of(np.asarray(lengths)), rows=rows, **options)
