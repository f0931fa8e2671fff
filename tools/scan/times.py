"""Cuts time into spans with about equally many rows, from the statistics in footers where there are any."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.columns import Bound, Leaf, bind, is_calendar
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.rows import Rows
from fsdata.decode.arrow import widen
from fsdata.errors import CorruptFileError

_SPANS = 20
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans of time, and the column with the time of a row.

    Attributes:
        column: the time of a row: integers, timestamps or dates.
        leaves: the leaf of the column, one per footer; None in files without it.
        edges: int64[S + 1], ascending, microseconds if the column is a timestamp or date. Span s has the rows with
            edges[s] <= time < edges[s + 1]; rows outside of all spans belong to the first or last one.
        calendar: whether the column is a timestamp or date.
    """

    column: str
    leaves: tuple[Leaf | None, ...]
    edges: np.ndarray
    calendar: bool

    def span_of(self, times: np.ndarray) -> np.ndarray:
        """int64[N], the span of every time."""
        return np.searchsorted(self.edges[1:-1], times, side="right")

    def read_spans(self, reading: Rows, group: int, leaf: Leaf) -> np.ndarray:
        """int64[N], the span of every row of a row group, -1 without a time. Blocks for reading."""
        times, null = _integer_times(reading.column(group, self.column, leaf))
        span = self.span_of(times)
        return span if null is None else np.where(null, -1, span)

    def label(self, edge: int) -> int | str:
        """An edge as a number, or as ISO time if the column is a timestamp or date."""
        value = int(self.edges[edge])
        return (_EPOCH + datetime.timedelta(microseconds=value)).isoformat() if self.calendar else value


def time_spans(files: FileSet, column: str) -> tuple[Spans, Bound]:
    """(spans, the bound time column).

    Spans have about equally many rows, under the assumption that times are spread evenly inside each row group. Reads
    the column only in row groups without statistics. Raises UsageError if no file has a usable time column, or if it
    has dates in some files and numbers in others.
    """
    bound = bind(files, [column], "time")
    leaves = tuple(leaves.get(column) for leaves in bound.leaves)
    calendar = {is_calendar(leaf.kind) for leaf in leaves if leaf is not None}
    if len(calendar) > 1:
        raise UsageError(f"{column} has dates in some files and integers in others: they have no common order")
    ranges = []  # (first time, last time, rows) of every row group with times
    for footer, leaf in zip(files.footers, leaves, strict=True):
        if leaf is None:
            continue
        with Rows(footer) as reading:
            for group, rows in enumerate(footer.row_groups):
                chunk = footer.metadata.row_group(group).column(leaf.index)
                statistics = chunk.statistics if chunk.is_stats_set else None
                if statistics is not None and statistics.has_min_max:
                    array = pa.array([statistics.min_raw, statistics.max_raw], pa.int64())
                    if pa.types.is_date(leaf.kind):  # stored as days
                        array = array.cast(pa.int32()).view(pa.date32())
                    elif pa.types.is_timestamp(leaf.kind):
                        array = array.view(leaf.kind)
                else:
                    try:
                        array = reading.column(group, column, leaf).drop_null()
                    except (CorruptFileError, OSError):  # reported when its lengths are read
                        continue
                times, _ = _integer_times(array)
                if len(times):
                    ranges.append((int(times.min()), int(times.max()), rows))
    return Spans(column=column, leaves=leaves, edges=even_edges(ranges, _SPANS), calendar=calendar.pop()), bound


def even_edges(ranges: Sequence[tuple[int, int, int]], spans: int) -> np.ndarray:
    """int64[S + 1], S <= `spans`: edges with equally many rows between them. All times lie between the edges.

    ranges: (first time, last time, rows); the rows of a range are taken as spread evenly.
    """
    if not ranges:
        return np.array([0, 1])
    low, high, rows = (np.array(numbers, np.float64) for numbers in zip(*ranges, strict=True))
    # The number of rows below a time is linear between the ends of ranges: its slope is the sum of the densities of the
    # ranges that contain the time. The edges are the times at which it reaches multiples of the total.
    density = rows / (high - low + 1)
    at = np.concatenate([low, high + 1])
    order = np.argsort(at, kind="stable")
    at = at[order]
    slope = np.concatenate([density, -density])[order].cumsum()
    below = np.concatenate([[0.0], (np.diff(at) * slope[:-1]).cumsum()])
    inner = np.interp(np.arange(1, spans) / spans * below[-1], below, at)
    # As integers: float64 does not represent times in microseconds or nanoseconds exactly.
    first, last = min(begin for begin, _, _ in ranges), max(end for _, end, _ in ranges) + 1
    edges = np.unique(np.rint(inner)).astype(np.int64)
    return np.array([first, *edges[(edges > first) & (edges < last)].tolist(), last])


def _integer_times(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """(integers, or timestamps or dates in microseconds, int64[N]; bool[N], where they are null, None if nowhere)."""
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.timestamp("us", tz=getattr(array.type, "tz", None)), safe=False)
    return widen.numbers_of(array.cast(pa.int64(), safe=False))
