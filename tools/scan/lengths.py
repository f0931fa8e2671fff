"""Reads lengths of list columns row group by row group, and adds them up. All sums can be merged."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import first_line
from freescale_tools.scan.columns import Bound, Lengths, Reader, present, whole_numbers
from freescale_tools.scan.files import FileSet, Leaf
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.scan.times import Spans
from fsdata.catalog.footers import Footer, Skipped
from fsdata.catalog.retry import Retrying, unreachable

LONGEST = 10
QUANTILES = {
    "p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999
}  # fmt: skip
_PIECES = 8  # per worker, so that all workers end at about the same time
_UNMERGED = 128  # histograms kept before they are merged: a merge costs time in proportion to its result
_UNCOUNTED_ROWS = 1 << 20


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


class HistogramSum:
    """Adds up histograms, merging many at a time."""

    def __init__(self) -> None:
        self._parts: list[LengthHistogram] = []

    def add(self, part: LengthHistogram) -> None:
        self._parts.append(part)
        if len(self._parts) > _UNMERGED:
            self._parts = [LengthHistogram.merged(self._parts)]

    def merged(self) -> LengthHistogram:
        """The histogram of everything that was added."""
        if len(self._parts) != 1:
            self._parts = [LengthHistogram.merged(self._parts)]
        return self._parts[0]


@dataclass(slots=True, kw_only=True)
class LengthSums:
    """Lengths of one column in some rows of one file.

    Attributes:
        lengths: of all rows; null rows count as length 0.
        longest: (length, row in the file) of the `LONGEST` longest rows, longest first, equal lengths in file
            order.
        spans: lengths by span of time, of the rows that have a time.
    """

    null_rows: int = 0
    null_elements: int = 0
    lengths: HistogramSum = field(default_factory=HistogramSum)
    longest: list[tuple[int, int]] = field(default_factory=list)
    spans: dict[int, HistogramSum] = field(default_factory=dict)

    def add(self, other: "LengthSums") -> None:
        """Add the lengths of other rows of the file."""
        self.null_rows += other.null_rows
        self.null_elements += other.null_elements
        self.lengths.add(other.lengths.merged())
        self.longest = sorted([*self.longest, *other.longest], key=lambda one: (-one[0], one[1]))[:LONGEST]
        for span, pile in other.spans.items():
            self.spans.setdefault(span, HistogramSum()).add(pile.merged())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The result of a piece: a part per column, and its damaged row groups."""

    parts: dict[str, LengthSums]
    skipped: tuple[Skipped, ...]


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


def scan(piece: Piece, spans: Spans | None = None) -> Scanned:
    """Read the lengths of all list columns of a piece.

    A row group that cannot be decoded is left out in all columns. Raises OSError if the file cannot be
    reached.
    """
    parts = {column: LengthSums() for column in piece.leaves}
    skipped = []
    file = piece.footer.file
    retry = Retrying()
    first_row = piece.first_row
    with _OpenFile(piece.footer) as opened:
        for group in piece.row_groups:
            rows = piece.footer.metadata.row_group(group).num_rows
            try:
                found = retry.call(functools.partial(_row_group, piece, opened, group, first_row, spans), file)
            except (pa.ArrowException, OSError) as error:
                if unreachable(error):
                    raise
                reason = first_line(error)
                skipped.append(Skipped(file=file.name, row_group=group, rows=rows, reason=reason))
            else:
                for column, part in found.items():
                    parts[column].add(part)
            first_row += rows
    return Scanned(parts=parts, skipped=tuple(skipped))


class _OpenFile:
    """The file of a piece. Opens it at the first read, and again after an error. A context manager."""

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._stack = contextlib.ExitStack()
        self._reader: Reader | None = None

    def __enter__(self) -> "_OpenFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[Reader]:
        """The reader for one row group."""
        if self._reader is None:
            self._reader = self._stack.enter_context(Reader(self._footer))
        try:
            yield self._reader
        except BaseException:
            self._stack.close()
            self._reader = None
            raise


def _row_group(
    piece: Piece, opened: _OpenFile, group: int, first_row: int, spans: Spans | None
) -> Mapping[str, LengthSums]:
    wanted = spans if piece.time else None
    counters = {column: LengthCounter(wanted) for column in piece.leaves}
    with opened.reader() as reader:
        times = _times(reader, group, piece.time, wanted)
        for column, place in piece.leaves.items():
            for start, lengths in reader.lengths(group, column, place):
                part = None if times is None else times[start : start + len(lengths.of_row)]
                counters[column].add(lengths, first_row + start, part)
    return {column: counter.part() for column, counter in counters.items()}


def _times(reader: Reader, group: int, place: Leaf | None, spans: Spans | None) -> pa.Array | None:
    """The time of every row of a row group, if spans are wanted."""
    if place is None or spans is None:
        return None
    found = [arrays[spans.column] for _, arrays in reader.batches(group, {spans.column: place})]
    return pa.concat_arrays(found) if found else None


class LengthCounter:
    """Collects lengths of some rows of one file and counts them many at a time, also by span of time."""

    def __init__(self, spans: Spans | None) -> None:
        self._spans = spans
        self._part = LengthSums()
        self._lengths: list[np.ndarray] = []
        self._timed: list[tuple[np.ndarray, np.ndarray]] = []
        self._rows = 0

    def add(self, lengths: Lengths, first_row: int, times: pa.Array | None) -> None:
        """Add the rows from `first_row` of the file on. times: of the rows, if their spans are wanted."""
        part = self._part
        part.null_rows += lengths.null_rows
        part.null_elements += lengths.null_elements
        self._lengths.append(lengths.of_row)
        self._note_longest(lengths.of_row, first_row)
        if self._spans is not None and times is not None:
            timed = lengths.of_row[present(times)] if times.null_count else lengths.of_row
            self._timed.append((self._spans.of(whole_numbers(times)), timed))
        self._rows += len(lengths.of_row)
        if self._rows >= _UNCOUNTED_ROWS:
            self._count()

    def part(self) -> LengthSums:
        """The part of all rows that were added."""
        self._count()
        return self._part

    def _note_longest(self, lengths: np.ndarray, first_row: int) -> None:
        longest = self._part.longest
        floor = longest[-1][0] if len(longest) == LONGEST else 0
        if not len(lengths) or lengths.max() <= floor:
            return
        if len(lengths) > LONGEST:
            floor = max(floor, np.partition(lengths, -LONGEST)[-LONGEST] - 1)
        rows = np.flatnonzero(lengths > floor)
        rows = rows[np.argsort(-lengths[rows], kind="stable")[:LONGEST]]
        found = [(int(lengths[row]), first_row + int(row)) for row in rows]
        self._part.longest = sorted([*longest, *found], key=lambda one: (-one[0], one[1]))[:LONGEST]

    def _count(self) -> None:
        if self._lengths:
            self._part.lengths.add(LengthHistogram.of(np.concatenate(self._lengths)))
        if self._timed:
            span, lengths = (np.concatenate(part) for part in zip(*self._timed, strict=True))
            for one in np.unique(span).tolist():
                self._part.spans.setdefault(one, HistogramSum()).add(LengthHistogram.of(lengths[span == one]))
        self._lengths, self._timed, self._rows = [], [], 0


class Tally:
    """Adds up the lengths of one column over all files. Pieces may come in any order."""

    def __init__(self, files: FileSet, bound: Bound, column: str) -> None:
        self._files = files
        self._part = LengthSums()
        self._longest: list[tuple[int, int, int]] = []  # length, file, row
        # (rows, events). Files without a readable row group are listed, too.
        self._per_file = {file: (0, 0) for file, leaves in enumerate(bound.leaves) if column in leaves}

    def add(self, file: int, part: LengthSums) -> None:
        """Add lengths of one file."""
        lengths = part.lengths.merged()
        rows, events = self._per_file[file]
        self._per_file[file] = rows + lengths.rows, events + lengths.events
        found = [(length, file, row) for length, row in part.longest]
        self._longest = sorted([*self._longest, *found], key=lambda one: (-one[0], *one[1:]))[:LONGEST]
        self._part.add(part)

    @property
    def histogram(self) -> LengthHistogram:
        """Of all rows."""
        return self._part.lengths.merged()

    def document(self, spans: Spans | None) -> dict[str, Any]:
        """One entry of `sequences` in profile.json."""
        lengths = self.histogram
        return {
            "rows": lengths.rows,
            "events": lengths.events,
            "empty": lengths.empty - self._part.null_rows,
            "null": self._part.null_rows,
            "null_elements": self._part.null_elements,
            "mean": lengths.mean,
            "max": lengths.longest,
            "quantiles": {name: lengths.quantile(share) for name, share in QUANTILES.items()},
            "top1_share": lengths.top_share(0.01),
            "histogram": lengths.to_dict(),
            "longest": [
                {"file": self._name(file), "row": row, "length": length} for length, file, row in self._longest
            ],
            "per_file": per_file(
                (self._name(file), rows, events) for file, (rows, events) in sorted(self._per_file.items())
            ),
            "drift": None if spans is None else self._drift(spans),
        }

    def _name(self, file: int) -> str:
        return self._files.footers[file].file.name

    def _drift(self, spans: Spans) -> list[dict[str, Any]]:
        drift = []
        for span, pile in sorted(self._part.spans.items()):
            lengths = pile.merged()
            drift.append(
                {
                    "from": spans.label(span),
                    "to": spans.label(span + 1),
                    "rows": lengths.rows,
                    "mean": lengths.mean,
                    "p50": lengths.quantile(0.5),
                    "p95": lengths.quantile(0.95),
                }
            )
        return drift


def per_file(files: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Entries of `per_file` from (name, rows, events)."""
    return [
        {"file": name, "rows": rows, "events": events, "mean": events / rows if rows else 0.0}
        for name, rows, events in files
    ]
