"""Ids, and times, of rows as a loader reads them: what it refuses is left out, and named.

The files are sources of a loader, one for each way in which they store the columns: as a list or as one value, in a
struct or not. Nulls become a number that no id has, and are then taken out.
"""

import contextlib
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import CommandFailed, UsageError, first_line
from freescale_tools.scan.columns import bind, inside_structs
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from fsdata import ParquetSource, Schema, text_key
from fsdata import Sequence as Group
from fsdata.catalog.binding.arrow_types import is_list
from fsdata.catalog.footers import Skipped
from fsdata.compose.reading import open_source
from fsdata.decode.block import RowRefs
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.errors import CorruptFileError, DataError, FreeScaleError

NO_ID = -(2**63)
_FEW = 1 << 24  # values: pyarrow decodes them in less time than it takes to compile the kernels that read pages
_IDS, _TIME = "ids", "time"
PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


class IdPart(NamedTuple):
    """N rows of a row group.

    Attributes:
        ids: int64, of all rows, one after another. lengths: int64 [N], how many each row has.
        time: int64 [N], dates and timestamps in the finest unit of all files; known: bool [N], which rows have one.
            Both are empty if no time was asked for.
    """

    ids: np.ndarray
    lengths: np.ndarray
    time: np.ndarray
    known: np.ndarray


NO_ROWS = IdPart(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool))


class _Stored(NamedTuple):
    """How a file stores a column: `names` lead to it, those before the last are of structs around it.

    `per_day`: into how many parts it cuts a day, 0 if it is no date and no timestamp.
    """

    names: tuple[str, ...]
    is_list: bool
    per_day: int

    @classmethod
    def of(cls, footer: Footer, column: str) -> "_Stored":
        names, kind = inside_structs(footer.schema, column)
        item = kind.value_type if is_list(kind) else kind
        if pa.types.is_date(item):
            return cls(names, is_list(kind), 1 if pa.types.is_date32(item) else PER_DAY["ms"])
        return cls(names, is_list(kind), PER_DAY[item.unit] if pa.types.is_timestamp(item) else 0)


class _Source(NamedTuple):
    """Files that store the columns alike. `parts`: of the finest unit of time of all files, in theirs."""

    opened: OpenSource
    layout: Layout
    parts: int


class IdRows:
    """Files that are open. A context manager; `read` may be called by several threads.

    Attributes:
        files: all of them. leaves: number of a file -> the leaf of its ids, of the files that are read.
        per_day: parts of a day in `IdPart.time`; 0 if times are integers, or if there are none.

    Raises UsageError if no file has integers in `column`, or times in `time`, or for what a loader refuses;
    CommandFailed if a file cannot be reached.
    """

    def __init__(
        self,
        files: FileSet,
        column: str,
        *,
        time: str | None = None,
        max_length: int | None = None,
        hashed: bool = False,
    ) -> None:
        """max_length: most ids of a row, the last ones. time: of a list, the last element counts. hashed: the column
        holds text, and ids are made of it as by `fsdata.text_key`."""
        wanted = {_IDS: column} | ({_TIME: time} if time else {})
        names, ids = list(wanted.values()), "texts" if hashed else "ids"
        bound = bind(files, names, {name: ids if name == column else "times" for name in names})
        self.files = files
        self.leaves = {
            number: leaves[column]
            for number, leaves in enumerate(bound.leaves)
            if all(name in leaves for name in names)
        }
        self._missing = bound.missing
        self._damaged: list[tuple[int, int, Skipped]] = []
        self._place: dict[int, tuple[_Source, int]] = {}  # of a file: its source, and its number there
        alike: dict[tuple[int, tuple[_Stored, ...]], list[int]] = {}
        systems: list[object] = []
        for number in self.leaves:
            footer = files.footers[number]
            if footer.file.filesystem not in systems:
                systems.append(footer.file.filesystem)
            stored = tuple(_Stored.of(footer, name) for name in names)
            alike.setdefault((systems.index(footer.file.filesystem), stored), []).append(number)
        self.per_day = max((stored[-1].per_day for _, stored in alike), default=0)
        with contextlib.ExitStack() as opened:
            for (_, stored), numbers in alike.items():
                some = [files.footers[number] for number in numbers]
                kinds = dict(zip(wanted, stored, strict=True))
                source = _opened(some, kinds, max_length, self.per_day, hashed, few=self._values() <= _FEW)
                opened.callback(source.opened.close)
                self._place |= {number: (source, place) for place, number in enumerate(numbers)}
            self._close = opened.pop_all().close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def skipped(self) -> list[Skipped]:
        """Files that are not read, and row groups that could not be read so far, in order."""
        damaged = sorted(self._damaged, key=lambda each: each[:2])
        return [*self._missing, *(one for _, _, one in damaged)]

    def read(self, file: int, group: int, rows: int, *, room: int | None = None) -> IdPart:
        """The first `rows` rows of a row group, as many as have no more than `room` ids; none if it is damaged.

        Raises OSError if the file cannot be reached.
        """
        source, place = self._place[file]
        whole = self.files.footers[file].metadata.row_group(group).num_rows
        slots = source.layout.slots
        try:
            found = source.opened.read(RowGroup(0, place, group, whole), source.layout, 0, rows)
        except (DataError, CorruptFileError) as error:
            self.leave_out(file, group, first_line(error.__cause__ or error))
            return NO_ROWS
        found = found.take(found.alive)
        if room is not None:
            fit = np.searchsorted(found.spans(slots[_IDS]).length[0].cumsum(), room, side="right")
            found = found.take(slice(0, int(fit)))
        ids, lengths = _values(found, slots[_IDS])
        if ids.min(initial=0) == NO_ID:
            null = ids == NO_ID
            before = np.concatenate([[0], np.cumsum(null)])
            ends = np.cumsum(lengths)
            lengths = lengths - (before[ends] - before[ends - lengths])
            ids = ids[~null]
        if _TIME not in slots:
            return NO_ROWS._replace(ids=ids, lengths=lengths)
        times, some = _values(found, slots[_TIME])
        time = np.full(found.num_rows, NO_ID)
        time[some == 1] = times
        return IdPart(ids, lengths, time * source.parts, time != NO_ID)

    def _values(self) -> int:
        """How many the column has in all files that are read, as their footers say."""
        metadata = {number: self.files.footers[number].metadata for number in self.leaves}
        return sum(
            metadata[number].row_group(group).column(leaf.index).num_values
            for number, leaf in self.leaves.items()
            for group in range(metadata[number].num_row_groups)
        )

    def leave_out(self, file: int, group: int, reason: str) -> None:
        """Note a row group that is of no use."""
        footer = self.files.footers[file]
        one = Skipped(file=footer.file.name, row_group=group, rows=footer.row_groups[group], reason=reason)
        self._damaged.append((file, group, one))


def _opened(
    footers: list[Footer], stored: dict[str, _Stored], max_length: int | None, finest: int, hashed: bool, *, few: bool
) -> _Source:
    """finest: of all files, see `_Stored.per_day`."""
    most = {_IDS: max_length, _TIME: 1}
    lists = [name for name, each in stored.items() if each.is_list]
    schema = Schema(
        sequences=tuple(Group(f"list of {name}", (name,), max_length=most[name]) for name in lists),
        context=tuple(name for name in stored if name not in lists),
    )
    taken: dict[str, Any] = {name: ".".join(each.names) for name, each in stored.items()}
    if hashed:
        taken[_IDS] = text_key(taken[_IDS])
    file = footers[0].file
    try:
        source = ParquetSource(
            [footer.file.path for footer in footers],
            filesystem=None if file.local else file.filesystem,
            columns=taken,
            defaults=dict.fromkeys(stored, NO_ID),
            decoder="pyarrow" if few else None,
        )
        opened = open_source(source, schema)
    except FreeScaleError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"the files cannot be read: {error}") from error
    per_day = stored[_TIME].per_day if _TIME in stored else 0
    return _Source(opened, layout_of(schema), finest // per_day if per_day else 1)


def _values(rows: RowRefs, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64, the values of a field of all rows, one after another; int64 [N], how many each row has)."""
    spans = rows.spans(slot)
    values = np.empty(int(spans.length.sum()), np.int64)
    spans.gather(np.array([values.itemsize]), np.array([values.ctypes.data]))
    return values, spans.length[0]
