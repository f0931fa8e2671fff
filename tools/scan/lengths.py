"""Counts the lengths of list columns row group by row group, or from footers alone, and adds them up.

What was counted of some rows is a `LengthSums`; sums of other rows are added to it in any order, so threads and
machines count apart.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freescale_tools.console.errors import first_line
from freescale_tools.scan.columns import Bound, Leaf
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histogram import HistogramSum, LengthHistogram
from freescale_tools.scan.levels import Lengths
from freescale_tools.scan.rows import Rows
from freescale_tools.scan.times import Spans
from fsdata.catalog.footers import Footer, Skipped
from fsdata.errors import CorruptFileError

LONGEST = 10
QUANTILES = {
    "p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999
}  # fmt: skip
_PIECES = 8  # per worker, so that all workers end at about the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Row groups of one file that one worker reads, one after another.

    Attributes:
        file: position of the file among the footers.
        first_row: row of the file at which the first of `row_groups` begins.
        leaves: the list columns that the file has.
        time: the time column, if the file has it.
    """

    file: int
    footer: Footer
    row_groups: range
    first_row: int
    leaves: dict[str, Leaf]
    time: Leaf | None

    @property
    def rows(self) -> int:
        return sum(self.footer.metadata.row_group(group).num_rows for group in self.row_groups)

    @property
    def bytes(self) -> int:
        """Stored size of the columns that are read."""
        places = [*self.leaves.values(), *([self.time] if self.time else [])]
        groups = [self.footer.metadata.row_group(group) for group in self.row_groups]
        return sum(group.column(place.index).total_compressed_size for group in groups for place in places)

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """(row group, row of the file at which it begins, its rows)."""
        first = self.first_row
        for group in self.row_groups:
            rows = self.footer.metadata.row_group(group).num_rows
            yield group, first, rows
            first += rows


def pieces(files: FileSet, bound: Bound, spans: Spans | None, *, workers: int) -> Iterator[Piece]:
    """Cut files into runs of row groups, small enough to keep `workers` busy; whole files for 0 workers."""
    target = max(files.rows // (workers * _PIECES), 1) if workers else files.rows + 1
    for number, (footer, leaves) in enumerate(zip(files.footers, bound.leaves, strict=True)):
        if not leaves:
            continue
        time = spans.leaves[number] if spans else None
        make = functools.partial(Piece, file=number, footer=footer, leaves=leaves, time=time)
        begin = first_row = rows = 0
        for group, count in enumerate(footer.row_groups):
            rows += count
            if rows >= target:
                yield make(row_groups=range(begin, group + 1), first_row=first_row)
                begin, first_row, rows = group + 1, first_row + rows, 0
        if begin < footer.metadata.num_row_groups:
            yield make(row_groups=range(begin, footer.metadata.num_row_groups), first_row=first_row)


@dataclass(slots=True, kw_only=True)
class LengthSums:
    """Lengths of one column in some rows.

    Attributes:
        lengths: of all rows; null rows count as length 0. spans: by span of time, of the rows that have a time.
        longest: (length, file, row in the file) of the `LONGEST` longest rows, longest first, equal lengths in the
            order of files and rows.
        per_file: file -> (rows, events).
    """

    null_rows: int = 0
    null_elements: int = 0
    lengths: HistogramSum = field(default_factory=HistogramSum)
    spans: dict[int, HistogramSum] = field(default_factory=dict)
    longest: list[tuple[int, int, int]] = field(default_factory=list)
    per_file: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, found: Lengths, file: int, first_row: int, span: np.ndarray | None = None) -> None:
        """Add the rows from `first_row` of a file on. span: int64 [N], that of every row, -1 without a time."""
        of_row = found.of_row
        self.null_rows += found.null_rows
        self.null_elements += found.null_elements
        self.lengths.add(LengthHistogram.of(of_row))
        self._note_file(file, len(of_row), int(of_row.sum()))
        self._note_longest(of_row, file, first_row)
        for one in np.unique(span).tolist() if span is not None else ():
            if one >= 0:
                self.spans.setdefault(one, HistogramSum()).add(LengthHistogram.of(of_row[span == one]))

    def add(self, other: "LengthSums") -> None:
        """Add the lengths of other rows."""
        self.null_rows += other.null_rows
        self.null_elements += other.null_elements
        self.lengths.add(other.lengths.merged())
        for span, some in other.spans.items():
            self.spans.setdefault(span, HistogramSum()).add(some.merged())
        self._keep_longest(other.longest)
        for file, (rows, events) in other.per_file.items():
            self._note_file(file, rows, events)

    def document(self, files: FileSet, spans: Spans | None) -> dict[str, Any]:
        """One entry of `sequences` in profile.json."""
        lengths = self.lengths.merged()
        names = [footer.file.name for footer in files.footers]
        return {
            "rows": lengths.rows,
            "events": lengths.events,
            "empty": lengths.empty - self.null_rows,
            "null": self.null_rows,
            "null_elements": self.null_elements,
            "mean": lengths.mean,
            "max": lengths.longest,
            "quantiles": {name: lengths.quantile(share) for name, share in QUANTILES.items()},
            "top1_share": lengths.top_share(0.01),
            "histogram": lengths.to_dict(),
            "longest": [{"file": names[file], "row": row, "length": length} for length, file, row in self.longest],
            "per_file": _per_file((names[file], *counted) for file, counted in sorted(self.per_file.items())),
            "drift": None if spans is None else [self._span(spans, one) for one in sorted(self.spans)],
        }

    def _span(self, spans: Spans, span: int) -> dict[str, Any]:
        lengths = self.spans[span].merged()
        return {
            "from": spans.label(span),
            "to": spans.label(span + 1),
            "rows": lengths.rows,
            "mean": lengths.mean,
            "p50": lengths.quantile(0.5),
            "p95": lengths.quantile(0.95),
        }

    def _note_file(self, file: int, rows: int, events: int) -> None:
        before = self.per_file.get(file, (0, 0))
        self.per_file[file] = before[0] + rows, before[1] + events

    def _note_longest(self, of_row: np.ndarray, file: int, first_row: int) -> None:
        floor = self.longest[-1][0] if len(self.longest) == LONGEST else 0
        if of_row.max(initial=0) <= floor:
            return
        if len(of_row) > LONGEST:
            floor = max(floor, int(np.partition(of_row, -LONGEST)[-LONGEST]) - 1)
        rows = np.flatnonzero(of_row > floor)
        rows = rows[np.argsort(-of_row[rows], kind="stable")[:LONGEST]]
        self._keep_longest([(int(of_row[row]), file, first_row + int(row)) for row in rows])

    def _keep_longest(self, more: Sequence[tuple[int, int, int]]) -> None:
        self.longest = sorted([*self.longest, *more], key=lambda one: (-one[0], *one[1:]))[:LONGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The result of a piece: the sums of every column, and its damaged row groups."""

    sums: dict[str, LengthSums]
    skipped: tuple[Skipped, ...]


def scan(piece: Piece, spans: Spans | None = None) -> Scanned:
    """Read the lengths of all list columns of a piece.

    A row group that cannot be decoded is left out in all columns. Raises OSError if the file cannot be
    reached.
    """
    sums = {column: LengthSums() for column in piece.leaves}
    skipped = []
    with Rows(piece.footer) as reading:
        for group, first_row, rows in piece.groups():
            try:
                span = spans.of_rows(reading, group, piece.time) if spans and piece.time else None
                found = {column: reading.lengths(group, column, leaf) for column, leaf in piece.leaves.items()}
            except CorruptFileError as error:
                reason = first_line(error.__cause__ or error)
                skipped.append(Skipped(file=piece.footer.file.name, row_group=group, rows=rows, reason=reason))
            else:
                for column, lengths in found.items():
                    sums[column].count(lengths, piece.file, first_row, span)
    return Scanned(sums=sums, skipped=tuple(skipped))


def counts(files: FileSet, bound: Bound, column: str) -> dict[str, Any]:
    """One entry of `sequences` in profile.json, for mode quick: from footers. All that needs row lengths is null.

    `num_values` of a leaf counts its elements, and one for every null or empty list. `null_count` of its
    statistics counts null elements, and one for each of the same lists. The difference is the number of elements
    that are not null. `events_are` is `exact`, or `upper bound` because of `row_groups_without_statistics`.
    """
    found = []
    without = 0
    for footer, leaves in zip(files.footers, bound.leaves, strict=True):
        if column in leaves:
            leaf = leaves[column].index
            groups = range(footer.metadata.num_row_groups)
            values = np.array([footer.metadata.row_group(group).column(leaf).num_values for group in groups], np.int64)
            nulls = footer.null_counts[:, leaf]
            without += int(((nulls < 0) & (values > 0)).sum())
            events = int((values - np.maximum(nulls, 0)).sum())
            found.append((footer.file.name, footer.metadata.num_rows, events))
    rows, events = sum(one[1] for one in found), sum(one[2] for one in found)
    unknown = ("empty", "null", "null_elements", "max", "quantiles", "top1_share", "histogram", "longest", "drift")
    return {
        "rows": rows,
        "events": events,
        "events_are": "upper bound" if without else "exact",
        "row_groups_without_statistics": without,
        "mean": events / rows if rows else 0.0,
        "per_file": _per_file(found),
        **dict.fromkeys(unknown),
    }


def _per_file(files: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Entries of `per_file` from (name, rows, events)."""
    return [
        {"file": name, "rows": rows, "events": events, "mean": events / rows if rows else 0.0}
        for name, rows, events in files
    ]
