"""Cuts time into spans that hold about equally many rows, from footers if these say enough."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.columns import Bound, Reader, bind, type_of, whole_numbers
from freescale_tools.scan.files import FileSet, Leaf, UnusableColumn
from fsdata.catalog.footers import Footer

SPANS = 20
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans of time, and where the time of a row is.

    Attributes:
        column: the time of a row: integers, timestamps or dates.
        leaves: the leaf of the column, one per footer; None in files without it.
        edges: int64[S + 1], ascending, microseconds if the column is a timestamp or date. Span s has the
            rows with edges[s] <= time < edges[s + 1]; rows outside of all spans belong to the first or last.
        calendar: whether the column is a timestamp or date.
    """

    column: str
    leaves: tuple[Leaf | None, ...]
    edges: np.ndarray
    calendar: bool

    def of(self, times: np.ndarray) -> np.ndarray:
        """int64[N], the span of every time."""
        return np.searchsorted(self.edges[1:-1], times, side="right")

    def label(self, edge: int) -> int | str:
        """An edge as a number or as ISO time, whichever the column holds."""
        value = int(self.edges[edge])
        return (_EPOCH + datetime.timedelta(microseconds=value)).isoformat() if self.calendar else value


def time_spans(files: FileSet, column: str, *, spans: int = SPANS) -> tuple[Spans, Bound]:
    """(spans, what `bind` found).

    Spans hold about equally many rows, if times spread evenly inside each row group. Reads the column only in
    row groups without statistics. Raises UsageError if no file has a usable time column, or if it holds dates
    in some files and numbers in others.
    """
    bound = bind(files, [column], check=_check_time)
    calendar = {
        _is_calendar(footer, column)
        for footer, leaves in zip(files.footers, bound.leaves, strict=True)
        if column in leaves
    }
    if len(calendar) > 1:
        raise UsageError(f"{column} holds dates in some files and plain integers in others: they have no common order")
    ranges = [
        one
        for footer, leaves in zip(files.footers, bound.leaves, strict=True)
        if column in leaves
        for one in _ranges(footer, column, leaves[column])
    ]
    found = Spans(
        column=column,
        leaves=tuple(leaves.get(column) for leaves in bound.leaves),
        edges=even_edges(ranges, spans),
        calendar=calendar.pop(),
    )
    return found, bound


def even_edges(ranges: Sequence[tuple[int, int, int]], spans: int) -> np.ndarray:
    """int64[S + 1], S <= `spans`: edges with equally many rows between them. All times lie between the edges.

    ranges: (first time, last time, rows); the rows of a range are taken as spread evenly.
    """
    if not ranges:
        return np.array([0, 1])
    low, high, rows = (np.array(part, np.float64) for part in zip(*ranges, strict=True))
    density = rows / (high - low + 1)
    at = np.concatenate([low, high + 1])
    order = np.argsort(at, kind="stable")
    at = at[order]
    slope = np.concatenate([density, -density])[order].cumsum()
    below = np.concatenate([[0.0], (np.diff(at) * slope[:-1]).cumsum()])
    inner = np.interp(np.arange(1, spans) / spans * below[-1], below, at)
    first, last = min(one[0] for one in ranges), max(one[1] for one in ranges) + 1
    edges = np.unique(np.rint(inner)).astype(np.int64)
    return np.array([first, *edges[(edges > first) & (edges < last)].tolist(), last])


def _check_time(footer: Footer, column: str, _: Leaf) -> None:
    kind = type_of(footer.schema, column)
    if not (_is_calendar(footer, column) or pa.types.is_integer(kind)):
        raise UnusableColumn(f"{column} is {kind}; a time is an integer, a timestamp or a date")


def _is_calendar(footer: Footer, column: str) -> bool:
    kind = type_of(footer.schema, column)
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _ranges(footer: Footer, column: str, place: Leaf) -> Iterable[tuple[int, int, int]]:
    """(first time, last time, rows) of every row group with times."""
    kind = type_of(footer.schema, column)
    for group in range(footer.metadata.num_row_groups):
        chunk = footer.metadata.row_group(group).column(place.index)
        rows = footer.metadata.row_group(group).num_rows
        known = chunk.statistics if chunk.is_stats_set else None
        if known is not None and known.has_min_max:
            times = _from_raw([known.min_raw, known.max_raw], kind)
        else:
            times = _read_range(footer, group, column, place)
        if len(times):
            yield int(times.min()), int(times.max()), rows


def _from_raw(raw: Sequence[Any], kind: pa.DataType) -> np.ndarray:
    """Statistics as Parquet stores them -> the numbers of `whole_numbers`."""
    if pa.types.is_date(kind):  # stored as days
        return whole_numbers(pa.array(raw, pa.int32()).view(pa.date32()))
    stored = pa.array(raw, pa.int64())
    return whole_numbers(stored.view(kind) if pa.types.is_timestamp(kind) else stored)


def _read_range(footer: Footer, group: int, column: str, place: Leaf) -> np.ndarray:
    """The smallest and largest time of a row group; empty if damaged: reading its lengths reports that."""
    found = []
    try:
        with Reader(footer) as reader:
            for _, arrays in reader.batches(group, {column: place}):
                times = whole_numbers(arrays[column])
                if len(times):
                    found += [times.min(), times.max()]
    except (pa.ArrowException, OSError):
        return np.empty(0, np.int64)
    return np.array(found, np.int64)
