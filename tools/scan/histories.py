"""Requests whose histories are stored once: the position and the length of the window of each request.

fsdata reads the requests, joins them as a loader does, and searches the windows. No value of a history is copied.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.options import StoredHistories
from freescale_tools.scan.columns import bind, holds
from freescale_tools.scan.files import FileSet, open_files
from freescale_tools.scan.lengths import LengthSums, Piece, Scanned
from freescale_tools.scan.levels import Lengths
from freescale_tools.scan.times import Spans
from fsdata import AsOf, ParquetSource, Schema, text_key
from fsdata import Sequence as Group
from fsdata.catalog.binding.arrow_types import is_text, plain
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.footers import Skipped
from fsdata.compose.reading import open_source
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.row_layout import layout_of
from fsdata.errors import FreeScaleError
from fsdata.histories.histories import histories_of

_GROUP = "histories"


class RequestWindows(NamedTuple):
    """The windows of N requests in the table of histories.

    Attributes:
        place: int64 [N], the index of the first event among all events of the table.
        length: int64 [N], events; 0 for keys without a history and for null keys.
        time: int64 [N], of the requests; nanoseconds if they are timestamps or dates.
    """

    place: np.ndarray
    length: np.ndarray
    time: np.ndarray


class Requests:
    """Requests and their histories, opened by `open_requests`. Thread-safe.

    Attributes:
        stored: the user's options for the histories.
        files: the requests. table: the files of the histories.
        keys: number of histories. events: of all histories.
        floats: the lists of the table that hold floats.
    """

    def __init__(self, stored: StoredHistories, files: FileSet, table: FileSet, opened: OpenSource, schema: Schema):
        self.stored = stored
        self.files = files
        self.table = table
        self._opened = opened
        self._histories = histories_of(opened.stages)
        self._layout = layout_of(schema, as_of=self._histories.groups)
        self._numbers = {file.path: number for number, file in enumerate(opened.files)}
        histories = self._histories.groups[_GROUP]
        self.keys, self.events = len(histories.keys), len(histories.times)
        self._fields = histories.fields
        self.floats = frozenset(name for name, values in self._fields.items() if values.dtype.kind == "f")

    @property
    def skipped(self) -> list[Skipped]:
        """Damaged row groups of requests in the calls of `windows` so far."""
        return [skipped for skipped in self._opened.skipped if skipped.row_group is not None]

    def values(self, column: str) -> np.ndarray:
        """[E]: a list column of the table, all histories concatenated; a window is a slice of it."""
        return self._fields[column]

    def windows(self, file: int, row_group: int, rows: int) -> RequestWindows:
        """The windows of the first `rows` requests of a row group of file number `file`; empty if it is damaged.

        Raises UsageError for rows that a loader rejects, such as a null time; OSError if the file cannot be reached.
        """
        footer = self.files.footers[file]
        all_rows = footer.row_groups[row_group]
        group = RowGroup(source=0, file=self._numbers[footer.file.path], index=row_group, rows=all_rows)
        try:
            requests = self._opened.read(group, self._layout, 0, rows)
            time = self._opened.read_times(group)
        except FreeScaleError as error:
            raise UsageError(str(error)) from error
        alive = requests.alive
        requests = requests.take(alive)
        length = requests.spans(self._layout.groups[_GROUP]).length[0]
        return RequestWindows(self._histories.first_events(requests, self._layout)[_GROUP], length, time[alive])


@contextmanager
def open_requests(
    files: FileSet, stored: StoredHistories, lists: Sequence[str], *, paths: Sequence[str]
) -> Iterator[Requests]:
    """Read the table of histories into memory and open the requests, for the duration of the block.

    files: the requests, the files of `paths`. lists: columns of the table.

    Raises UsageError for files that a loader rejects; CommandFailed if a file cannot be reached.
    """
    table = open_files(stored.paths)
    bound = zip(table.footers, bind(table, lists).leaves, strict=True)
    floating = {name for footer, leaves in bound for name in leaves if holds(footer, name, pa.types.is_floating)}
    floats = tuple(name for name in lists if name in floating)
    ids = tuple(name for name in lists if name not in floating)
    schema = Schema(sequences=(Group(_GROUP, ids, floats=floats, share=stored.on),), time=stored.time)
    histories = ParquetSource(stored.paths)
    try:
        join = AsOf(histories, on=stored.on, at=stored.time, time=stored.event_time, fields=tuple(lists))
        columns = {stored.on: text_key(stored.on)} if _is_text(files, stored.on) else {}
        opened = open_source(ParquetSource(list(paths), join=[join], on_error="skip", columns=columns), schema)
    except FreeScaleError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"the histories cannot be read: {error}") from error
    try:
        yield Requests(stored, files, table, opened, schema)
    finally:
        opened.close()


def _is_text(files: FileSet, column: str) -> bool:
    """Whether requests have text keys, which `freescale histories` converts to integers."""
    kinds = (type_at(footer.schema, column) for footer in files.footers)
    return any(kind is not None and is_text(plain(kind)) for kind in kinds)


def scan_windows(piece: Piece, requests: Requests, spans: Spans | None = None) -> Scanned:
    """Count the lengths of the windows of a piece; the sums are returned under the name of the key of the histories.

    A damaged row group is skipped and listed in `requests.skipped`. Raises the errors of `Requests.windows`.
    """
    sums = LengthSums()
    for group, first_row, rows in piece.groups:
        if rows:
            windows = requests.windows(piece.file, group, rows)
            # Spans count microseconds, requests nanoseconds.
            times = windows.time // 1000 if spans is not None and spans.calendar else windows.time
            span = None if spans is None else spans.span_of(times)
            sums.count(Lengths(windows.length, 0, 0), piece.file, first_row, span)
    return {requests.stored.on: sums}, []
