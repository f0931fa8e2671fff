"""Finds the histories in a folder of Parquet files that nobody has described.

`freescale_tools.scan.discover` says which lists are aligned. The table with the most values in lists of integers has
the histories. If another table holds times at which the keys of these histories come back, its rows are the samples,
with what was before them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.console.errors import UsageError
from freescale_tools.demo.data import DemoData, Feature, some_lengths
from freescale_tools.scan.discover import discover as discover_columns
from freescale_tools.scan.discover import item_of
from freescale_tools.scan.files import open_files
from fsdata import AsOf, ParquetSource
from fsdata.catalog.binding.arrow_types import is_list

MAX_LENGTH = 4_096
_TOKENS_PER_STEP = 20_000  # of one rank: about a second of work for the demo's model
_STEPS = 16  # the set should have at least so many global batches
_LEAST_TIME = 100_000_000  # larger rising integers count as time stamps
_MAX_ROWS = 1 << 18  # of an embedding table
_LOOKED_AT = 4_096  # rows from which values are judged


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    path: Path
    rows: int
    lists: dict[str, int]  # column of integer lists -> values in the file
    integers: tuple[str, ...]  # columns of one integer per row

    @property
    def values(self) -> int:
        return sum(self.lists.values())


def discover(
    folder: str | Path,
    *,
    sequence: tuple[str, ...] = (),
    max_length: int = MAX_LENGTH,
    batch_size: int | None = None,
    world_size: int = 2,
    requests: bool = True,
) -> DemoData:
    """Describe the largest table of integer lists, or the table that holds `sequence` (the item first).

    `requests`: look for a table of requests, too.

    Raises UsageError if the folder has no Parquet files or no integer lists, or if a column of `sequence` is missing,
    not an integer list, or not aligned.
    """
    folder = Path(folder)
    files = _survey(folder)
    histories = _histories(files, sequence, folder)
    largest = max(histories, key=lambda file: file.values)
    aligned = _aligned(largest, sequence[0] if sequence else None)
    fields = sequence or aligned
    if ragged := [name for name in sequence if name not in aligned]:
        raise UsageError(
            f"{', '.join(ragged)}: lists are not of the same length as those of {fields[0]!r} in every row"
        )
    looked_at = _read([largest], fields, _LOOKED_AT)
    history = tuple(_feature(looked_at[name], item=name == fields[0]) for name in fields)
    notes = [f"sequence: {', '.join(fields)}; the task is the next {fields[0]!r}"]

    samples, key = histories, None
    joins: list[AsOf] = []
    clock = next((feature.name for feature in history if feature.divide > 1), None)
    if requests and clock and (found := _requests(files, histories, clock)):
        samples, key, at = found
        joins = [AsOf(_source(histories), on=key, at=at, time=clock, fields=fields)]
        notes.append(
            f"samples: rows of {', '.join(file.path.name for file in samples)}, each with the history of its {key!r} "
            f"before its {at!r} (by {clock!r}); --no-requests trains on whole histories"
        )
    if unaligned := [name for name in largest.lists if name not in aligned]:
        notes.append(f"ignored, not aligned with {fields[0]!r}: {', '.join(unaligned)}")
    if ignored := [str(file.path.relative_to(folder)) for file in files if file not in (*samples, *histories)]:
        notes.append(f"ignored, no such sequence: {', '.join(ignored)}")

    # A name for the picture that another folder, also one of the same name, does not have.
    place = folder.resolve()
    digits = hashlib.sha256(str(place).encode()).hexdigest()[:6]
    data = DemoData(
        name=str(folder),
        picture=f"freescale-demo-{place.name}-{digits}{'-requests' if key else ''}",
        sources=(_source(samples, joins),),
        history=history,
        key=key,
        max_length=max_length,
        rows=sum(file.rows for file in samples),
        batch_size=batch_size or 1,
        notes=tuple(notes),
    )
    if batch_size is None:
        # A power of two: a rank gets about _TOKENS_PER_STEP events, and the set has some steps.
        lengths = some_lengths(data)
        mean = max(float(lengths.mean()) if len(lengths) else 1.0, 1.0)
        wanted = min(_TOKENS_PER_STEP / mean, data.rows / (world_size * _STEPS), 1_024)
        data = replace(data, batch_size=1 << max(int(wanted), 1).bit_length() - 1)
    if data.rows < data.batch_size * world_size:
        raise UsageError(
            f"{folder}: {data.rows} samples with {fields[0]!r} do not fill one step of {world_size} x "
            f"{data.batch_size} samples; give a smaller --batch-size"
        )
    return data


def _survey(folder: Path) -> list[_File]:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    found = []
    for path in sorted(folder.rglob("*.parquet")):
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"{path}: cannot read its footer as Parquet: {error}") from error
        kinds = {field.name: field.type for field in metadata.schema.to_arrow_schema()}
        leaf = {metadata.schema.column(place).path.split(".")[0]: place for place in range(metadata.num_columns)}
        groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
        lists = {
            name: sum(group.column(leaf[name]).num_values for group in groups)
            for name, kind in kinds.items()
            if is_list(kind) and pa.types.is_integer(kind.value_type)
        }
        integers = tuple(name for name, kind in kinds.items() if pa.types.is_integer(kind))
        found.append(_File(path=path, rows=metadata.num_rows, lists=lists, integers=integers))
    if not found:
        raise UsageError(f"{folder}: no *.parquet file in it or below it")
    return found


def _histories(files: list[_File], sequence: tuple[str, ...], folder: Path) -> list[_File]:
    """The files with all of `sequence`; without it, those of the table with the most values in lists of integers."""
    tables: dict[frozenset[str], list[_File]] = defaultdict(list)
    for file in files:
        if file.rows and file.lists and file.lists.keys() >= set(sequence):
            tables[frozenset(sequence or file.lists)].append(file)
    if tables:
        return max(tables.values(), key=lambda table: sum(file.values for file in table))
    if sequence:
        known = sorted({name for file in files for name in file.lists})
        raise UsageError(
            f"{folder}: no file with rows has all of {', '.join(sequence)} as integer lists; "
            f"integer list columns found: {', '.join(known) or 'none'}"
        )
    raise UsageError(
        f"{folder}: none of its {len(files)} Parquet files has rows and a column of integer lists. The demo trains "
        "on histories: one row per sample, item ids as a list"
    )


def _aligned(file: _File, item: str | None) -> tuple[str, ...]:
    """The lists of integers whose lengths are those of the item's in every row, the item first."""
    columns = discover_columns(open_files([str(file.path)]), item or item_of(list(file.lists)))
    return tuple(name for name in columns.sequences if name in file.lists)


def _feature(column: pl.Series, *, item: bool) -> Feature:
    """Time stamps get a row for every hour of the week, other ids one for each, as far as there is room."""
    values = column.explode().drop_nulls()
    if not item and len(values) and _is_time(values):
        least: Any = column.list.diff().list.min().min()
        if least is None or least >= 0:
            thousands = max(len(str(values.max())) - 10, 0) // 3  # seconds have 10 digits, milliseconds 13
            return Feature(name=column.name, rows=168, divide=3_600 * 1_000**thousands)
    largest: Any = values.max() or 0
    return Feature(name=column.name, rows=min(max(1 << int(largest).bit_length(), 64), _MAX_ROWS))


def _is_time(values: pl.Series) -> bool:
    return bool(values.dtype.is_integer() and values.null_count() == 0 and values.min() >= _LEAST_TIME)  # type: ignore[operator]


def _requests(files: list[_File], histories: list[_File], clock: str) -> tuple[list[_File], str, str] | None:
    """(files, key, time) of the largest table whose rows name a key of the histories and a time, if keys come back."""
    integers = [name for name in histories[0].integers if all(name in file.integers for file in histories)]
    table = _read(histories, [*integers, clock])
    keys = [name for name in integers if table[name].null_count() == 0 and table[name].is_unique().all()]
    events = table[clock].explode().drop_nulls()
    others: dict[tuple[str, ...], list[_File]] = defaultdict(list)
    for file in files:
        if file not in histories and file.rows and set(file.integers) & set(keys):
            others[file.integers].append(file)
    for columns, found in sorted(others.items(), key=lambda other: -sum(file.rows for file in other[1])):
        rows = _read(found, columns)
        key = next(name for name in columns if name in keys)
        times = [name for name in columns if name != key and _is_time(rows[name]) and _overlap(rows[name], events)]
        if times and rows[key].null_count() == 0 and rows[key].is_duplicated().any():
            return found, key, times[0]
    return None


def _overlap(times: pl.Series, events: pl.Series) -> bool:
    """Whether times may be of the unit of the events: both cover some of the same time."""
    first, last, begin, end = (int(value) for value in (times.min(), times.max(), events.min(), events.max()))  # type: ignore[arg-type]
    return first <= end and begin <= last <= 2 * end


def _read(files: Many[_File], columns: Many[str], rows: int | None = None) -> pl.DataFrame:
    """Columns of integers and of lists of integers, whatever integers each of the files has; `rows` of each file."""
    parts = []
    for file in files:
        part = pl.read_parquet(file.path, columns=list(columns), n_rows=rows)
        parts.append(
            part.cast({name: pl.List(of.inner) for name, of in part.schema.items() if isinstance(of, pl.Array)})
        )
    return pl.concat(parts, how="vertical_relaxed")


def _source(files: Many[_File], joins: Many[AsOf] = ()) -> ParquetSource:
    return ParquetSource([str(file.path) for file in files], join=joins)
