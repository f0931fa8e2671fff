"""Finds columns in many files and reads them batch by batch, or only the lengths of their lists.

A row group of any size is decoded in batches of 1.5 MiB. Memory thus depends on the number of reading threads
only, and Arrow reuses the memory that it has just freed. Lengths are read page by page, without values, and
take 8 bytes per row.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import FileSet, Leaf, UnusableColumn, leaf
from freescale_tools.scan.levels import Lengths, read_lengths
from fsdata.catalog.arrow_types import plain
from fsdata.catalog.footers import Footer, Skipped, open_file
from fsdata.decode.pages.chunk import Damaged, LeftToArrow

_BATCH_BYTES = 3 << 19  # larger batches decode more slowly: their memory is no longer in the cache
_MAX_ROWS = 8192
# Column chunks up to this size are read at once. From larger chunks Arrow reads page by page, and allocates
# what each page header asks for: up to 2 GiB if the header is damaged.
_WHOLE_BYTES = 16 << 20
# Larger chunks are read in pieces of this size; a request to a remote file should be worth it.
_STREAM_BYTES = 1 << 20
_REMOTE_STREAM_BYTES = 8 << 20
_LEVEL_BYTES = 1 << 17  # a header, and mostly all levels of a page if they are not compressed
_NAMED = 12

Check = Callable[[Footer, str, Leaf], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Columns of a set of files.

    Attributes:
        leaves: one dictionary per footer, column -> its leaf there, without those that the file lacks.
        missing: one entry per file and column that the file lacks or has as another kind.
    """

    leaves: tuple[dict[str, Leaf], ...]
    missing: tuple[Skipped, ...]


def bind_lists(files: FileSet, columns: Sequence[str]) -> Bound:
    """Find list columns in all files; raises as `bind`."""
    return bind(files, columns, check=_check_list)


def bind(files: FileSet, columns: Sequence[str], *, check: Check | None = None) -> Bound:
    """Find columns in all files. Files in which a column is absent or unusable are listed as missing it.

    `check` raises UnusableColumn for a column that cannot be used. Raises UsageError for a column that no
    file has usable.
    """
    leaves: list[dict[str, Leaf]] = []
    missing = []
    found: dict[str, Leaf | UnusableColumn] = {}
    before: Footer | None = None
    for footer in files.footers:
        if before is None or not _same_leaves(footer, before, found.values()):
            found = {column: _find(footer, column, check) for column in columns}
        before = footer
        leaves.append({column: place for column, place in found.items() if isinstance(place, Leaf)})
        missing += [
            Skipped(file=footer.file.name, row_group=None, rows=footer.metadata.num_rows, reason=str(place))
            for place in found.values()
            if isinstance(place, UnusableColumn)
        ]
    for column in columns:
        if not any(column in one for one in leaves):
            raise UsageError(_of_no_use(files, column, check))
    return Bound(leaves=tuple(leaves), missing=tuple(missing))


def _find(footer: Footer, column: str, check: Check | None) -> Leaf | UnusableColumn:
    try:
        place = leaf(footer, column)
        if place is None:
            return UnusableColumn(f"no column {column}")
        if check is not None:
            check(footer, column, place)
    except UnusableColumn as misfit:
        return misfit
    return place


def _check_list(footer: Footer, column: str, place: Leaf) -> None:
    if not place.is_list:
        raise UnusableColumn(
            f"{column} is {type_of(footer.schema, column)}, one value per row; a sequence is a list column"
        )


def _of_no_use(files: FileSet, column: str, check: Check | None) -> str:
    """Why no file has the column usable: the reason of the first file that has the column at all."""
    for footer in files.footers:
        found = _find(footer, column, check)
        if str(found) != f"no column {column}":
            return f"{footer.file.path}: {found}"
    names = files.footers[0].schema.names
    close = difflib.get_close_matches(column, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    there = f"{files.footers[0].file.path} has {', '.join(names[:_NAMED])}{more}"
    return f"no file has a column {column!r}; {there}.{meant}"


def only_list(files: FileSet) -> str:
    """The list column of the files, where the first has one alone. Raises UsageError, which names them, otherwise."""
    if not files.footers:
        raise UsageError("no file can be read: which list column holds the history cannot be found")
    footer = files.footers[0]
    lists = [field.name for field in footer.schema if _is_list(footer, field.name)]
    if len(lists) == 1:
        return lists[0]
    if not lists:
        raise UsageError(f"{footer.file.path} has no list column: a history is a list of events")
    raise UsageError(f"name the history with --sequence: {footer.file.path} has the list columns {', '.join(lists)}")


def _is_list(footer: Footer, column: str) -> bool:
    found = _find(footer, column, _check_list)
    return isinstance(found, Leaf)


def _same_leaves(footer: Footer, before: Footer, found: Iterable[Leaf | UnusableColumn]) -> bool:
    """Whether two files have the same leaves.

    Names inside lists can differ although Arrow's types are equal.
    """
    schema = footer.metadata.schema
    return footer.schema.equals(before.schema) and all(
        isinstance(place, UnusableColumn) or schema.column(place.index).path == place.path for place in found
    )


def type_of(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column. A dotted name is followed into structs, but not into lists."""
    name, rest = first_name(schema.names, column)
    kind = plain(schema.field(name).type)
    while rest and pa.types.is_struct(kind):
        name, rest = first_name([kind.field(index).name for index in range(kind.num_fields)], rest)
        kind = plain(kind.field(name).type)
    return kind


def holds(footer: Footer, column: str, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type of the elements of a list column passes a test such as `pa.types.is_integer`."""
    return test(plain(type_of(footer.schema, column).value_type))


class Reader:
    """One open file, for one thread. A context manager."""

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._source = open_file(footer.file)
        self._files: dict[int, pq.ParquetFile] = {}  # by the bytes of a read; 0 reads whole chunks

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def batches(self, row_group: int, leaves: dict[str, Leaf]) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """(first row in the row group, column -> array) for all rows of the row group.

        Raises pa.ArrowException or OSError if the row group is damaged.
        """
        group = self._footer.metadata.row_group(row_group)
        stored = [group.column(place.index).total_compressed_size for place in leaves.values()]
        file = self._file(max(stored, default=0))
        rows = _batch_rows(group, [place.index for place in leaves.values()])
        paths = [place.path for place in leaves.values()]
        first = 0
        for batch in file.iter_batches(rows, row_groups=[row_group], columns=paths, use_threads=False):
            yield first, {column: _column(batch, column) for column in leaves}
            first += batch.num_rows
        if first != group.num_rows:
            raise pa.ArrowInvalid(f"{first} rows where the footer says {group.num_rows}")

    def lengths(self, row_group: int, column: str, place: Leaf) -> Iterator[tuple[int, Lengths]]:
        """(first row in the row group, lengths of the lists from there on) for all rows of the row group.

        From the levels of the pages where FreeScale can read these, else by pyarrow, with all values. Raises as
        `batches`; OSError names column and page.
        """
        try:
            yield 0, self._from_levels(row_group, place)
        except LeftToArrow:
            for first, arrays in self.batches(row_group, {column: place}):
                yield first, lengths_of(arrays[column])
        except Damaged as error:
            raise OSError(f"column {column!r}, {error}") from error

    def _from_levels(self, row_group: int, place: Leaf) -> Lengths:
        if place.levels is None:
            raise LeftToArrow("no list, or one of another kind")
        piece = _LEVEL_BYTES if self._footer.file.local else _REMOTE_STREAM_BYTES
        group = self._footer.metadata.row_group(row_group)
        return read_lengths(group, place.index, place.levels, self._read, piece=piece)

    def _read(self, begin: int, memory: np.ndarray) -> int:
        self._source.seek(begin)
        return self._source.readinto(memory)

    def _file(self, chunk_bytes: int) -> pq.ParquetFile:
        pieces = _STREAM_BYTES if self._footer.file.local else _REMOTE_STREAM_BYTES
        size = 0 if chunk_bytes <= _WHOLE_BYTES else pieces
        if size not in self._files:
            self._files[size] = pq.ParquetFile(
                self._source,
                metadata=self._footer.metadata,
                page_checksum_verification=True,
                pre_buffer=False,
                buffer_size=size,
            )
        return self._files[size]


def lengths_of(array: pa.Array) -> Lengths:
    """The lengths of a list array of any kind: list, large_list, list_view, fixed_size_list."""
    counted = pc.list_value_length(array)
    null_rows = counted.null_count
    if null_rows:
        counted = pc.fill_null(counted, 0)
    elements = array.flatten()
    while pa.types.is_struct(elements.type):
        elements = pc.struct_field(elements, [0])
    return Lengths(of_row=_integers(counted), null_rows=null_rows, null_elements=elements.null_count)


def whole_numbers(array: pa.Array) -> np.ndarray:
    """int64[N - nulls]: an integer array, or timestamps or dates in microseconds. Nulls are left out."""
    array = array.drop_null()
    if pa.types.is_temporal(array.type):
        zone = getattr(array.type, "tz", None)
        array = array.cast(pa.timestamp("us", tz=zone), safe=False)
    return _integers(array.cast(pa.int64(), safe=False))


def present(array: pa.Array) -> np.ndarray:
    """int64 positions of the values that are not null."""
    return _integers(pc.indices_nonzero(array.is_valid()))


def _integers(array: pa.Array) -> np.ndarray:
    # Not `to_numpy`, whose first call imports pandas.
    raw = np.frombuffer(array.buffers()[1] or b"", f"i{array.type.bit_width // 8}")
    return raw[array.offset : array.offset + len(array)].astype(np.int64, copy=False)


def _batch_rows(group: pq.RowGroupMetaData, leaves: Sequence[int]) -> int:
    """How many rows decode to about 1.5 MiB, all columns together."""
    size = 1
    for index in leaves:
        chunk = group.column(index)
        size += max(8 * chunk.num_values, chunk.total_uncompressed_size)
    return min(max(_BATCH_BYTES * group.num_rows // size, 1), _MAX_ROWS)


def _column(batch: pa.RecordBatch, column: str) -> pa.Array:
    """The list or scalar array that `column` names. Rows with a null struct above it are null."""
    name, rest = first_name(batch.schema.names, column)
    array = _storage(batch.column(name))
    while rest and pa.types.is_struct(array.type):
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        name, rest = first_name(names, rest)
        array = _storage(pc.struct_field(array, [names.index(name)]))
    return array


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def first_name(names: Sequence[str], column: str) -> tuple[str, str]:
    """(first name of a dotted path, rest of the path)."""
    for name in names:
        if column == name or column.startswith(f"{name}."):
            return name, column[len(name) + 1 :]
    raise AssertionError(f"{column} is not in {names}")
