"""Counts the lengths of list columns row group by row group, or from footers only, and sums the counts.

The counts of some rows are a `LengthSums`. Sums can be added in any order, so threads and machines count
independently.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freescale_tools.console.errors import first_line
from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.columns import Bound, Leaf
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.scan.levels import Lengths
from freescale_tools.scan.rows import Rows
from freescale_tools.scan.times import Spans
from fsdata.catalog.footers import Skipped
from fsdata.errors import CorruptFileError

_LONGEST = 10
_UNMERGED = 128  # histograms kept before they are merged: a merge costs time in proportion to its result
_QUANTILES = {
    "p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999
}  # fmt: skip
MOST_ROWS = 1 << 22  # rows whose lengths are kept in order: 64 steps of 512 ranks of 128 samples, 16 MB a column
_RUNS = 8
_PIECES = 8  # per worker, so that all workers end at about the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Row groups of one file that one worker reads.

    Attributes:
        file: position of the file among the footers.
        groups: (row group, row of the file at which it begins, its rows).
        leaves: the list columns that the file has.
        time: the time column, if the file has it.
    """

    file: int
    footer: Footer
    groups: tuple[tuple[int, int, int], ...]
    leaves: dict[str, Leaf]
    time: Leaf | None

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.groups)

    @property
    def bytes(self) -> int:
        """Stored size of the columns that are read."""
        leaves = [*self.leaves.values(), *([self.time] if self.time else [])]
        groups = [self.footer.metadata.row_group(group) for group, _, _ in self.groups]
        return sum(group.column(leaf.index).total_compressed_size for group in groups for leaf in leaves)


def pieces(files: FileSet, bound: Bound, spans: Spans | None, *, workers: int) -> Iterator[Piece]:
    """Cut files into runs of row groups, small enough to keep `workers` busy; whole files for 0 workers."""
    target = max(files.rows // (workers * _PIECES), 1) if workers else files.rows + 1
    for number, (footer, leaves) in enumerate(zip(files.footers, bound.leaves, strict=True)):
        if not leaves:
            continue
        time = spans.leaves[number] if spans else None
        groups: list[tuple[int, int, int]] = []
        first = rows = 0
        for group, count in enumerate(footer.row_groups):
            groups.append((group, first, count))
            first, rows = first + count, rows + count
            if rows >= target or group == footer.metadata.num_row_groups - 1:
                yield Piece(file=number, footer=footer, groups=tuple(groups), leaves=leaves, time=time)
                groups, rows = [], 0


@dataclass(slots=True, kw_only=True)
class LengthSums:
    """Lengths of one column in some rows.

    Attributes:
        spans: span of time -> histograms of the lengths of its rows, not merged yet; null rows count as 0, and span -1
            has the rows without a time.
        longest: (length, file, row in the file) of the `_LONGEST` longest rows, longest first, equal lengths in the
            order of files and rows.
        per_file: file -> (rows, events).
        rows: (file, first row) -> uint32 [N], of every row group.
    """

    null_rows: int = 0
    null_elements: int = 0
    spans: dict[int, list[LengthHistogram]] = field(default_factory=dict)
    longest: list[tuple[int, int, int]] = field(default_factory=list)
    per_file: dict[int, tuple[int, int]] = field(default_factory=dict)
    rows: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def count(self, lengths: Lengths, file: int, first_row: int, span: np.ndarray | None = None) -> None:
        """Add the rows of a file from `first_row` on. span: int64 [N], that of every row, -1 without a time."""
        of_row = lengths.of_row
        # Only rows longer than `floor` can be among the longest: few of them are sorted.
        floor = self.longest[-1][0] if len(self.longest) == _LONGEST else 0
        if len(of_row) > _LONGEST and of_row.max() > floor:
            floor = max(floor, int(np.partition(of_row, -_LONGEST)[-_LONGEST]) - 1)
        rows = np.flatnonzero(of_row > floor)
        rows = rows[np.argsort(-of_row[rows], kind="stable")[:_LONGEST]]
        numbers = [-1] if span is None else np.unique(span).tolist()
        self.add(
            LengthSums(
                null_rows=lengths.null_rows,
                null_elements=lengths.null_elements,
                spans={
                    number: [LengthHistogram.from_lengths(of_row if span is None else of_row[span == number])]
                    for number in numbers
                },
                longest=[(int(of_row[row]), file, first_row + int(row)) for row in rows],
                per_file={file: (len(of_row), int(of_row.sum()))},
                rows={(file, first_row): of_row.astype(np.uint32)} if len(of_row) else {},
            )
        )

    def add(self, other: "LengthSums") -> None:
        """Add the lengths of other rows."""
        self.null_rows += other.null_rows
        self.null_elements += other.null_elements
        for span, added in other.spans.items():
            histograms = self.spans.get(span, []) + added
            self.spans[span] = [LengthHistogram.merged(histograms)] if len(histograms) > _UNMERGED else histograms
        self.longest = sorted([*self.longest, *other.longest], key=lambda row: (-row[0], *row[1:]))[:_LONGEST]
        for file, (rows, events) in other.per_file.items():
            before = self.per_file.get(file, (0, 0))
            self.per_file[file] = before[0] + rows, before[1] + events
        self.rows |= other.rows

    @property
    def lengths(self) -> LengthHistogram:
        """The histogram of all rows; each call merges it again."""
        return LengthHistogram.merged(histogram for histograms in self.spans.values() for histogram in histograms)

    def document(self, files: FileSet, spans: Spans | None) -> dict[str, Any]:
        """One entry of `sequences` in profile.json."""
        lengths = self.lengths
        names = [footer.file.name for footer in files.footers]
        drift = []
        for span in sorted(self.spans) if spans else ():
            if spans and span >= 0:
                histogram = LengthHistogram.merged(self.spans[span])
                drift.append(
                    {
                        "from": spans.label(span),
                        "to": spans.label(span + 1),
                        "rows": histogram.rows,
                        "mean": histogram.mean,
                        "p50": histogram.quantile(0.5),
                        "p95": histogram.quantile(0.95),
                    }
                )
        return {
            "rows": lengths.rows,
            "events": lengths.events,
            "empty": lengths.empty - self.null_rows,
            "null": self.null_rows,
            "null_elements": self.null_elements,
            "mean": lengths.mean,
            "max": lengths.longest,
            "quantiles": {name: lengths.quantile(share) for name, share in _QUANTILES.items()},
            "top1_share": lengths.top_share(0.01),
            "histogram": lengths.to_dict(),
            "longest": [{"file": names[file], "row": row, "length": length} for length, file, row in self.longest],
            "per_file": _per_file((names[file], *counted) for file, counted in sorted(self.per_file.items())),
            "drift": None if spans is None else drift,
        }


def kept_runs(files: FileSet, *, most: int = MOST_ROWS) -> list[list[tuple[int, int]]]:
    """The row groups, as (file, first row), whose rows are kept in order: all, or `_RUNS` runs of about `most` rows."""
    runs: list[list[tuple[int, int]]] = [[] for _ in range(_RUNS if files.rows > most else 1)]
    begin = 0
    for number, footer in enumerate(files.footers):
        first = 0
        for rows in footer.row_groups:
            run, within = divmod(begin * len(runs), max(files.rows, 1))
            if rows and (within < most or len(runs) == 1):  # the first row groups of this eighth of the rows
                runs[run].append((number, first))
            first, begin = first + rows, begin + rows
    return [run for run in runs if run]


def in_order(runs: Sequence[Sequence[tuple[int, int]]], sums: Mapping[str, LengthSums]) -> RowsInOrder:
    """The rows of `runs` in the order of the files, without row groups that are missing in a column of `sums`."""
    complete = [[group for group in run if all(group in column.rows for column in sums.values())] for run in runs]
    first = next(iter(sums.values()))
    return RowsInOrder(
        units=tuple(tuple(len(first.rows[group]) for group in run) for run in complete),
        lengths={
            name: np.concatenate([np.empty(0, np.uint32), *(column.rows[group] for run in complete for group in run)])
            for name, column in sums.items()
        },
    )


Scanned = tuple[dict[str, LengthSums], list[Skipped]]
"""The result of a piece: the sums of every column, and its damaged row groups."""


def scan(piece: Piece, spans: Spans | None = None) -> Scanned:
    """Read the lengths of all list columns of a piece.

    A row group that cannot be decoded in one column is skipped in all columns. Raises OSError if the file cannot be
    reached.
    """
    sums = {column: LengthSums() for column in piece.leaves}
    skipped = []
    with Rows(piece.footer) as reading:
        for group, first_row, rows in piece.groups:
            try:
                span = spans.read_spans(reading, group, piece.time) if spans and piece.time else None
                by_column = {column: reading.lengths(group, column, leaf) for column, leaf in piece.leaves.items()}
            except CorruptFileError as error:
                reason = first_line(error.__cause__ or error)
                skipped.append(Skipped(file=piece.footer.file.name, row_group=group, rows=rows, reason=reason))
            else:
                for column, lengths in by_column.items():
                    sums[column].count(lengths, piece.file, first_row, span)
    return sums, skipped


def counts(files: FileSet, bound: Bound, column: str) -> dict[str, Any]:
    """One entry of `sequences` in profile.json, for mode quick: from footers. Numbers that need row lengths are null.

    `num_values` of a leaf counts its elements, and one for every null or empty list. `null_count` of its statistics
    counts null elements, and one for each of the same lists. The difference is the number of elements that are not
    null. `events_are` is `exact`, or `upper bound` if there are `row_groups_without_statistics`.
    """
    per_file = []
    without_statistics = 0
    for footer, leaves in zip(files.footers, bound.leaves, strict=True):
        if column in leaves:
            leaf = leaves[column].index
            groups = range(footer.metadata.num_row_groups)
            values = np.array([footer.metadata.row_group(group).column(leaf).num_values for group in groups], np.int64)
            nulls = footer.null_counts[:, leaf]
            without_statistics += int(((nulls < 0) & (values > 0)).sum())
            events = int((values - np.maximum(nulls, 0)).sum())
            per_file.append((footer.file.name, footer.metadata.num_rows, events))
    rows, events = sum(rows for _, rows, _ in per_file), sum(events for _, _, events in per_file)
    unknown = ("empty", "null", "null_elements", "max", "quantiles", "top1_share", "histogram", "longest", "drift")
    return {
        "rows": rows,
        "events": events,
        "events_are": "upper bound" if without_statistics else "exact",
        "row_groups_without_statistics": without_statistics,
        "mean": events / rows if rows else 0.0,
        "per_file": _per_file(per_file),
        **dict.fromkeys(unknown),
    }


def _per_file(files: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Entries of `per_file` from (name, rows, events)."""
    return [
        {"file": name, "rows": rows, "events": events, "mean": events / rows if rows else 0.0}
        for name, rows, events in files
    ]
