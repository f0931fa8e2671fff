"""Finds the sequences in a folder of Parquet files without a description.

Footers tell which columns are integer lists, and how many values they hold. One row group of the largest file
tells which of these columns are aligned, and which hold rising time stamps. If another table holds times at
which the keys of these histories come back, its rows are the samples, with what was before them.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import UsageError
from freescale_tools.demo.data import DemoData, Histories, TableSource
from freescale_tools.demo.model.features import TIME_BUCKETS, Feature
from freescale_tools.demo.plain_histories import as_of_lengths, read_files

MAX_LENGTH = 4_096
_TOKENS_PER_STEP = 20_000  # of one rank: about a second of work for the demo's model
_STEPS = 16  # the set should have at least so many global batches
_EPOCH_SECONDS = 100_000_000  # larger rising integers count as time stamps
_MAX_ROWS = 1 << 18  # of a table


class DiscoveryError(UsageError):
    """The folder has no data to train on. The message says what was looked for and what was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    path: Path
    rows: int
    lists: dict[str, int]  # integer list column -> values in the file
    integers: tuple[str, ...]  # columns of one integer per row


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lists:
    """A list column of a row group: int64 offsets [rows + 1] and values."""

    offsets: np.ndarray
    values: np.ndarray


def discover(
    folder: str | Path,
    *,
    sequence: tuple[str, ...] = (),
    max_length: int | None = MAX_LENGTH,
    batch_size: int | None = None,
    world_size: int = 2,
    requests: bool = True,
) -> DemoData:
    """Describe the largest table of integer lists, or the table that holds `sequence` (the item first).

    `requests`: look for a table of requests, too.

    Raises DiscoveryError if the folder has no Parquet files or no integer lists, or if a column of `sequence`
    is missing, not an integer list, or not aligned.
    """
    folder = Path(folder)
    files = _survey(folder)
    chosen = _with_sequence(files, sequence, folder) if sequence else _largest_table(files, folder)
    sample = _sample(max(chosen, key=lambda file: sum(file.lists.values())))
    fields, unaligned = _aligned(sample, sequence)
    table = TableSource(paths=tuple(file.path for file in chosen))
    history = tuple(_feature(name, sample[name], item=name == fields[0]) for name in fields)
    used, asked = {*table.paths}, _requests(files, chosen, history) if requests else None
    if asked is None:
        rows, events = sum(file.rows for file in chosen), sum(file.lists[fields[0]] for file in chosen)
    else:
        table, used = asked, {*asked.paths, *used}
        rows, events = _counted(asked, max_length)
    if batch_size is None:
        batch_size = _batch_size(rows, events, world_size)
    if rows < batch_size * world_size:
        raise DiscoveryError(
            f"{folder}: {rows} samples with {fields[0]!r} do not fill one step of {world_size} x {batch_size} samples; "
            "give a smaller --batch-size"
        )
    ignored = [file.path.relative_to(folder) for file in files if file.path not in used]
    return DemoData(
        name=str(folder),
        tables=(table,),
        history=history,
        max_length=max_length,
        batch_size=batch_size,
        notes=_notes(fields, table, unaligned, ignored),
    )


def _survey(folder: Path) -> list[_File]:
    if not folder.is_dir():
        raise DiscoveryError(f"{folder}: no such folder")
    paths = sorted(folder.rglob("*.parquet"))
    if not paths:
        raise DiscoveryError(f"{folder}: no *.parquet file in it or below it")
    files = []
    for path in paths:
        try:
            files.append(_footer(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise DiscoveryError(f"{path}: cannot read its footer as Parquet: {error}") from error
    return files


def _footer(path: Path) -> _File:
    with pq.ParquetFile(path) as file:
        names = [field.name for field in file.schema_arrow if _is_integer_list(field.type)]
        leaf = {file.schema.column(i).path.split(".")[0]: i for i in range(len(file.schema))}
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        lists = {name: sum(group.column(leaf[name]).num_values for group in groups) for name in names}
        integers = tuple(field.name for field in file.schema_arrow if pa.types.is_integer(field.type))
        return _File(path=path, rows=file.metadata.num_rows, lists=lists, integers=integers)


def _is_integer_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and pa.types.is_integer(kind.value_type)


def _largest_table(files: list[_File], folder: Path) -> list[_File]:
    """The files that share the integer list columns of the table with the most list values."""
    tables: dict[frozenset[str], list[_File]] = defaultdict(list)
    for file in files:
        if file.lists and file.rows:
            tables[frozenset(file.lists)].append(file)
    if not tables:
        raise DiscoveryError(
            f"{folder}: none of its {len(files)} Parquet files has rows and a column of integer lists. The demo trains "
            "on histories: one row per sample, item ids as a list"
        )
    return max(tables.values(), key=lambda table: sum(sum(file.lists.values()) for file in table))


def _with_sequence(files: list[_File], sequence: tuple[str, ...], folder: Path) -> list[_File]:
    chosen = [file for file in files if file.rows and all(name in file.lists for name in sequence)]
    if not chosen:
        known = sorted({name for file in files for name in file.lists})
        raise DiscoveryError(
            f"{folder}: no file with rows has all of {', '.join(sequence)} as integer lists; "
            f"integer list columns found: {', '.join(known) or 'none'}"
        )
    return chosen


def _requests(files: list[_File], chosen: list[_File], history: tuple[Feature, ...]) -> TableSource | None:
    """The largest table whose rows name a key of the histories and a time, if keys come back in it."""
    time = next((feature.name for feature in history if feature.kind == "time"), None)
    if time is None:
        return None
    paths = tuple(file.path for file in chosen)
    integers = [name for name in chosen[0].integers if all(name in file.integers for file in chosen)]
    table = read_files(paths, (*integers, time))
    keys = [name for name in integers if table[name].null_count() == 0 and table[name].is_unique().all()]
    events = table[time].explode().drop_nulls().to_numpy()
    others: dict[tuple[str, ...], list[_File]] = defaultdict(list)
    for file in files:
        if file.path not in paths and file.rows and set(file.integers) & set(keys):
            others[file.integers].append(file)
    for columns, found in sorted(others.items(), key=lambda other: -sum(file.rows for file in other[1])):
        rows = read_files([file.path for file in found], columns)
        key = next(name for name in columns if name in keys)
        times = [name for name in columns if name != key and _same_era(rows[name].to_numpy(), events)]
        if times and rows[key].is_duplicated().any() and rows[key].null_count() == 0:
            histories = Histories(paths=paths, on=key, at=times[0], time=time)
            return TableSource(paths=tuple(file.path for file in found), histories=histories)
    return None


def _same_era(times: np.ndarray, events: np.ndarray) -> bool:
    """Whether numbers may be times of the unit of `events`: both cover some of the same time. Nulls make floats."""
    if not len(times) or times.dtype.kind != "i" or times.min() < _EPOCH_SECONDS:
        return False
    return bool(times.min() <= events.max() and events.min() <= times.max() <= 2 * events.max())


def _counted(requests: TableSource, max_length: int | None) -> tuple[int, int]:
    """(rows, events that they see) of a table of requests."""
    lengths = as_of_lengths(requests, max_length)
    return len(lengths), int(lengths.sum())


def _sample(file: _File) -> dict[str, _Lists]:
    """Every integer list column of the file's first row group that holds rows."""
    with pq.ParquetFile(file.path) as parquet:
        group = next(i for i in range(parquet.num_row_groups) if parquet.metadata.row_group(i).num_rows)
        table = parquet.read_row_group(group, columns=list(file.lists), use_threads=False)
    return {name: _lists(table[name].combine_chunks()) for name in file.lists}


def _lists(column: pa.Array) -> _Lists:
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = column.flatten().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _Lists(offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), values=values)


def _aligned(sample: dict[str, _Lists], sequence: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(fields of the sequence with the item first, integer lists that are not aligned with it)."""
    item = sequence[0] if sequence else next((name for name in sample if "item" in name.lower()), next(iter(sample)))

    def fits(name: str) -> bool:
        return np.array_equal(sample[name].offsets, sample[item].offsets)

    ragged = tuple(name for name in sequence or sample if not fits(name))
    if sequence and ragged:
        raise DiscoveryError(f"{', '.join(ragged)}: lists are not of the same length as those of {item!r} in every row")
    rest = (name for name in sequence or sample if name != item and name not in ragged)
    return (item, *rest), ragged


def _feature(name: str, column: _Lists, *, item: bool) -> Feature:
    if not item and _is_time(column):
        return Feature(name=name, kind="time", rows=TIME_BUCKETS)
    largest = int(column.values.max(initial=0))
    return Feature(name=name, kind="item" if item else "id", rows=min(max(1 << largest.bit_length(), 64), _MAX_ROWS))


def _is_time(column: _Lists) -> bool:
    if len(column.values) < 2 or column.values.max() < _EPOCH_SECONDS:
        return False
    falls = np.diff(column.values) < 0
    falls[np.unique(column.offsets[(column.offsets > 0) & (column.offsets < len(column.values))]) - 1] = False
    return not falls.any()


def _batch_size(rows: int, events: int, world_size: int) -> int:
    """A power of two: a rank gets about _TOKENS_PER_STEP events, and the set has some steps."""
    wanted = min(_TOKENS_PER_STEP * rows / max(events, 1), rows / (world_size * _STEPS), 1_024)
    return 1 << max(int(wanted), 1).bit_length() - 1


def _notes(
    fields: tuple[str, ...], table: TableSource, unaligned: tuple[str, ...], ignored: list[Path]
) -> tuple[str, ...]:
    notes = [f"sequence: {', '.join(fields)}; the task is the next {fields[0]!r}"]
    if table.histories is not None:
        of, first = table.histories, table.paths[0].name
        more = f" and {len(table.paths) - 1} more" if len(table.paths) > 1 else ""
        notes.append(
            f"samples: rows of {first}{more}, each with the history of its {of.on!r} before its {of.at!r} "
            f"(by {of.time!r}); --no-requests trains on whole histories"
        )
    if unaligned:
        notes.append(f"ignored, not aligned with {fields[0]!r}: {', '.join(unaligned)}")
    if ignored:
        notes.append(f"ignored, no such sequence: {', '.join(map(str, ignored))}")
    return tuple(notes)
