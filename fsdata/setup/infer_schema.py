"""Guesses a first schema from the columns of files, for `Schema.infer` and `freescale init`.

Every column gets one guess, with the reason in words. Its type determines the possible roles, its name and its values
select one of them: an integer may be an id, an amount, a label or a time. Lists with the same lengths in all sampled
rows are one sequence.
"""

import datetime
import functools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.binding.arrow_types import encrypted_columns, is_list, is_text, leaves_of, objection, plain
from fsdata.catalog.binding.column_paths import array_at, paths_in
from fsdata.catalog.footers import check_footer, footer_bytes, open_file, parquet_file, parse_footer
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying, unreachable
from fsdata.errors import CorruptFileError, SchemaError
from fsdata.schema import Field, FieldKind, Schema
from fsdata.schema import Sequence as Group

_LOG = logging.getLogger("fsdata")
_FILES = 8
_ROWS = 8192  # sampled from all files together
_VALUES = 1 << 20  # sampled from a list column

_LABEL = {"label", "labels", "click", "clicks", "clicked", "conversion", "converted", "purchased", "bought", "liked"}
_EVENT_LABEL = {"label", "labels"}  # past clicks are features of a history
_CANDIDATE = {"candidate", "candidates", "impression", "impressions", "slate", "shown", "exposed"}
_TIME = {"ts", "time", "timestamp", "date", "datetime"}
_AMOUNT = {"age", "n", "count", "num", "days", "hours", "price", "amount", "quantity", "score", "rate", "duration"}
_ID_OF_A_ROW = {"request", "impression", "session", "trace", "event"}
_MOST_LABELS = 32  # distinct values of a label; a column with more has ids
_UNIQUE = 0.9  # share of distinct texts from which on a text is passed through
_OR_CONTEXT = "; if the model may know it beforehand, it is context"
_YEAR_1990, _YEAR_2100 = 631_152_000, 4_102_444_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The guess for one column.

    Attributes:
        column: its name, or its path through structs.
        role: the option of `Schema`, or of the `Sequence` called `group`, that lists it; None if the schema omits it.
        why: the reason, in words.
        buckets: number of ids to which a text is hashed; 0 if the column is not a hashed text.
        text: whether it is a text that is passed through.
        gaps: the reason for missing values: nulls or values that are not finite, or files without the column.
        instead: the column that has the only place for this role; None if the place is free.
    """

    column: str
    role: str | None
    why: str
    group: str | None = None
    buckets: int = 0
    text: bool = False
    gaps: Literal["", "some are null", "some files lack it"] = ""
    instead: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """The guesses for all columns of some files, in the order of the columns.

    Attributes:
        files, rows: number of sampled files, among `all_files`, and rows.
        groups: name of a sequence, the longest first, or `candidates` -> description of its lists.
        partitions: keys of `key=value` folders -> a value.
    """

    columns: tuple[Guess, ...]
    groups: dict[str, str]
    partitions: dict[str, Any]
    files: int
    all_files: int
    rows: int

    @property
    def schema(self) -> Schema:
        """The schema of all columns with a role."""
        used = [guess for guess in self.columns if guess.role]
        sequences = [_sequence(name, used) for name in self.groups if name != "candidates"]
        roles = _by_role(guess for guess in used if guess.group is None)
        times = roles.pop("time", ())
        return Schema(
            sequences=tuple(sequences),
            candidates=_sequence("candidates", used) if "candidates" in self.groups else None,
            time=times[0] if times else None,
            **roles,
        )


def _sequence(name: str, used: Sequence[Guess]) -> Group:
    return Group(name, **_by_role(guess for guess in used if guess.group == name))


def _by_role(guesses: Iterator[Guess]) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    for guess in guesses:
        roles[str(guess.role)] = (*roles.get(str(guess.role), ()), guess.column)
    return roles


def infer_schema(path: str | Path, filesystem: Any) -> Schema:
    """See `Schema.infer`."""
    guesses = guess_columns([str(path)], filesystem, hash_text=False)
    for guess in guesses.columns:
        if guess.role is None:
            _LOG.warning("Schema.infer leaves out %s: %s", guess.column, guess.why)
    return guesses.schema


def guess_columns(paths: Sequence[str], filesystem: Any, *, hash_text: bool) -> Guesses:
    """`guess_columns_of` the files of the paths."""
    return guess_columns_of(discover(paths, filesystem, label=str(paths[0])), where=str(paths[0]), hash_text=hash_text)


def guess_columns_of(files: Sequence[FileRef], *, where: str, hash_text: bool) -> Guesses:
    """Guess from the first rows of some of the files. Blocks for reading them.

    where: the files, for messages.
    hash_text: hash text with repeated values, and lists of text, to ids. Otherwise text is passed through, and lists of
        text are omitted.

    Raises:
        FileNotFoundError, PermissionError, ConnectionError; CorruptFileError: not Parquet, or damaged;
        SchemaError: no rows, files with different columns, or no column that can be a field.
    """
    tables, rows = _sampled_rows(files, where)
    lacking = {name for table in tables for name in set(rows.schema.names) - set(table.schema.names)}
    guesses: dict[str, Guess] = {}
    lists: dict[bytes, list[str]] = {}  # by the lengths of all rows
    for name in rows.schema.names:
        column, kind = rows.column(name), plain(rows.schema.field(name).type)
        if name in encrypted_columns(rows.schema):
            guesses[name] = Guess(column=name, role=None, why="it is encrypted")
        elif name in files[0].partitions:
            guesses[name] = Guess(column=name, role=None, why="it is a key of the folders, too")
        elif is_list(kind):
            lists.setdefault(_lengths(column).tobytes(), []).append(name)
        else:
            guesses[name] = _scalar(name, kind, column, hash_text=hash_text)
    groups = {}
    for group, why, in_group in _groups(rows, lists, hash_text=hash_text):
        guesses |= {guess.column: guess for guess in in_group}
        if group:
            groups[group] = why
    _keep_one_time(guesses)
    for name, guess in guesses.items():
        guesses[name] = _with_gaps(guess, rows.column(name), missing=name in lacking)
    if not any(guess.role not in (None, "time") for guess in guesses.values()):
        reasons = "; ".join(f"{guess.column}: {guess.why}" for guess in guesses.values())
        raise SchemaError(f"{files[0].path} has no column that a sample can be made of: {reasons}")
    return Guesses(
        columns=tuple(guesses[name] for name in rows.schema.names),
        groups=groups,
        partitions=dict(files[0].partitions),
        files=len(tables),
        all_files=len(files),
        rows=len(rows),
    )


def _sampled_rows(files: Sequence[FileRef], where: str) -> tuple[list[pa.Table], pa.Table]:
    """(the first rows of files at equal distances in the list, by file; all of them in one table)."""
    retry = Retrying()
    spread = range(0, len(files), -(-len(files) // _FILES))
    tables: dict[str, pa.Table] = {}
    # If none of these files has rows, the first of the others that has some.
    for number in [*spread, *(number for number in range(len(files)) if number not in spread)]:
        if number not in spread and tables:
            break
        file = files[number]
        rows = retry.call(functools.partial(_first_rows, file, _ROWS // len(spread)), file)
        if len(rows):
            tables[file.name] = _without_dictionaries(_without_structs(rows))
    if not tables:
        raise SchemaError(f"{where}: no file has a row to look at")
    _check_alike(tables, where)
    try:
        return list(tables.values()), pa.concat_tables(tables.values(), promote_options="permissive").combine_chunks()
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise SchemaError(
            f"{where}: its files do not have the same columns, so they are several sources; name the files of one of "
            f"them. {error}"
        ) from error


def _check_alike(tables: dict[str, pa.Table], where: str) -> None:
    """Raise SchemaError if a file lacks half of the columns of the first one: no schema would fit both."""
    first, *_ = tables
    names = set(tables[first].schema.names)
    for other, table in tables.items():
        common = names & set(table.schema.names)
        if 2 * len(common) < max(len(names), table.num_columns):
            raise SchemaError(
                f"{where}: {first} and {other} have {len(common) or 'no'} columns in common, so they are several "
                f"sources. Name the files of one of them, as those that are named like {first}"
            )


def _first_rows(file: FileRef, most: int) -> pa.Table:
    """The first rows, without key-value metadata; encrypted columns are null."""
    with open_file(file) as handle:
        size = handle.size()
        footer = check_footer(footer_bytes(handle, size, file), size, file)
        metadata, schema, _ = parse_footer(footer, file, {})
        try:
            parquet = parquet_file(handle, metadata=metadata)
            encrypted = encrypted_columns(schema)
            plain_leaves = [
                leaf
                for field, leaves in zip(schema, leaves_of(schema), strict=True)
                for leaf in (leaves if field.name not in encrypted else ())
            ]
            batches: list[pa.RecordBatch] = []
            left = most
            # Row group by row group: pyarrow 26 cannot concatenate lists of dictionaries of several row groups.
            for group in range(metadata.num_row_groups):
                for batch in parquet.reader.iter_batches(left, [group], plain_leaves, use_threads=False):
                    batches.append(batch.slice(0, left))
                    left -= batches[-1].num_rows
                    if left == 0:
                        return _with_nulls(batches, schema, encrypted)
            return _with_nulls(batches, schema, encrypted)
        except (pa.ArrowException, OSError) as error:
            if unreachable(error):
                raise
            raise CorruptFileError(f"{file.path}: cannot be read as Parquet: {error}") from error


def _with_nulls(batches: Sequence[pa.RecordBatch], schema: pa.Schema, nulls: Sequence[str]) -> pa.Table:
    """A table with all columns of the schema; those in `nulls` are null, the others are in the batches."""
    if not batches:
        return schema.empty_table()
    columns, rows = iter(pa.Table.from_batches(batches).columns), sum(batch.num_rows for batch in batches)
    return pa.Table.from_arrays(
        [pa.nulls(rows, field.type) if field.name in nulls else next(columns) for field in schema],
        schema=schema,
    )


def _without_dictionaries(table: pa.Table) -> pa.Table:
    """The table with dictionaries decoded, also inside lists: files may store one column with and without them."""
    for position, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            table = table.set_column(position, field.name, table.column(position).cast(kind.value_type))
        elif is_list(kind) and pa.types.is_dictionary(kind.value_type):
            list_of = pa.large_list if pa.types.is_large_list(kind) else pa.list_
            lists = table.column(position).cast(list_of(kind.value_type.value_type))
            table = table.set_column(position, field.name, lists)
    return table


def _without_structs(table: pa.Table) -> pa.Table:
    """The table with a column, named by its path, for every field inside structs and lists of structs."""
    names = set(table.schema.names)
    (batch,) = table.combine_chunks().to_batches()
    fields, columns = [], []
    for field in table.schema:
        for path, _ in paths_in(field.name, field.type):
            if path == field.name or path not in names:
                columns.append(array_at(batch, path))
                fields.append(field.with_name(path).with_type(columns[-1].type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _scalar(name: str, kind: pa.DataType, column: pa.ChunkedArray, *, hash_text: bool) -> Guess:
    if pa.types.is_null(kind):
        return Guess(column=name, role=None, why="it is null in all rows")
    if is_text(kind):
        return _text(name, column, hash_text=hash_text)
    if pa.types.is_boolean(kind):
        return Guess(column=name, role="labels", why=f"true or false{_OR_CONTEXT}")
    if (span := _times(name, kind, column)) is not None:
        return Guess(column=name, role="time", why=span)
    role = next((role for role in ("context", "dense") if objection(Field(name, role), kind) is None), None)
    if role is None:
        return Guess(column=name, role=None, why=str(objection(Field(name, "context"), kind)))
    different, words = _different(column), words_of(name)
    if words & _LABEL and not words & {"id", "ids"} and (role == "dense" or different <= _MOST_LABELS):
        return Guess(column=name, role="labels", why="its name says so")
    if role == "dense" or words & _AMOUNT:
        bounds = pc.min_max(column.cast(pa.float64(), safe=False)).as_py().values()
        least, most = (float("nan") if bound is None else bound for bound in bounds)
        return Guess(column=name, role="dense", why=f"numbers from {least:.6g} to {most:.6g}")
    if different == 2 and _is_zero_or_one(column):
        return Guess(column=name, role="labels", why=f"0 or 1{_OR_CONTEXT}")
    if different == len(column) and words & _ID_OF_A_ROW:
        return Guess(column=name, role="passthrough", why="whole numbers, another one in every row")
    return Guess(column=name, role="context", why=f"whole numbers, {different:,} different")


def _text(name: str, column: pa.ChunkedArray, *, hash_text: bool) -> Guess:
    different = _different(column)
    if not hash_text:
        return Guess(column=name, role="passthrough", why="text", text=True)
    if different >= _UNIQUE * len(column):
        return Guess(column=name, role="passthrough", why="text, another one in nearly every row", text=True)
    return Guess(column=name, role="context", why=f"text, {different:,} different", buckets=_buckets(different))


def _buckets(different: int) -> int:
    """A power of two with room for many more texts than were sampled."""
    return 1 << max(10, (16 * different).bit_length())


def _groups(
    rows: pa.Table, lists: dict[bytes, list[str]], *, hash_text: bool
) -> Iterator[tuple[str | None, str, list[Guess]]]:
    """(name, description of its lists, guesses) for every group, the longest lists first; the name is None if the
    schema omits the group."""
    ordered = sorted(lists.values(), key=lambda names: -_lengths(rows.column(names[0])).mean())
    scored = next((names for names in ordered if any(words_of(name) & _CANDIDATE for name in names)), None)
    group: str | None = "uih"
    for names in ordered:
        guesses = [_list(name, rows.column(name), names is scored, hash_text=hash_text) for name in names]
        first = next((guess.column for guess in guesses if guess.role in ("fields", "floats")), None)
        if first is None:
            reason = "no list of single values is as long"
            yield None, "", [replace(guess, role=None, why=reason if guess.role else guess.why) for guess in guesses]
            continue
        name = "candidates" if names is scored else group or f"{first} list"
        group = None if name == group else group
        # Labels of candidates are labels of the schema itself, like those of the sample.
        in_schema = ("labels",) if names is scored else ()
        members = [replace(guess, group=None if guess.role in (None, *in_schema) else name) for guess in guesses]
        yield name, _common(rows, names), members


def _common(rows: pa.Table, names: list[str]) -> str:
    lengths = _lengths(rows.column(names[0]))
    alike = f"lists of equal length in all {len(rows):,} rows" if len(names) > 1 else "lists"
    return f"{alike}, {lengths.min():,} to {lengths.max():,} long, mean {lengths.mean():,.1f}"


def _list(name: str, column: pa.ChunkedArray, scored: bool, *, hash_text: bool) -> Guess:
    kind = plain(column.type)
    values = pc.list_flatten(column).slice(0, _VALUES)
    inner = plain(kind.value_type)
    if is_text(inner) and hash_text:
        different = _different(values)
        return Guess(column=name, role="fields", why=f"texts, {different:,} different", buckets=_buckets(different))
    kinds: dict[str, FieldKind] = {"fields": "ids", "floats": "floats", "nested": "nested"}
    role = next((role for role, field in kinds.items() if objection(Field(name, field), kind) is None), None)
    if role is None:
        return Guess(column=name, role=None, why=str(objection(Field(name, "ids"), kind)))
    if role == "nested":
        return Guess(column=name, role=role, why="lists of ids")
    words, different = words_of(name), _different(values)
    named = words & (_LABEL if scored else _EVENT_LABEL) and not words & {"id", "ids"}
    if named and (role == "floats" or different <= _MOST_LABELS):
        return Guess(column=name, role="labels", why="its name says so")
    if scored and pa.types.is_boolean(inner):
        return Guess(column=name, role="labels", why="true or false")
    if scored and different == 2 and _is_zero_or_one(values):
        return Guess(column=name, role="labels", why="0 or 1 for every candidate")
    return Guess(column=name, role=role, why="numbers" if role == "floats" else f"ids, {different:,} different")


def _keep_one_time(guesses: dict[str, Guess]) -> None:
    times = [name for name, guess in guesses.items() if guess.role == "time"]
    for name in times[1:]:
        why = f"{guesses[name].why}: a time, and the time of a sample is {times[0]}. As an id it is context"
        guesses[name] = replace(guesses[name], role=None, why=why, instead=times[0])


def _with_gaps(guess: Guess, column: pa.ChunkedArray, *, missing: bool) -> Guess:
    """The guess with `gaps`; without a role if nothing can replace the missing values of such a field."""
    if guess.role is None or (not missing and not _has_gaps(column)):
        return guess
    if missing and (guess.buckets or guess.role == "labels"):
        why = f"{guess.why}; some files lack it, and {'an expression' if guess.buckets else 'a label'} has no default"
        return replace(guess, role=None, group=None, why=why)
    if guess.role == "time":
        return replace(guess, role=None, why=f"{guess.why}: a time, but some rows have none")
    return replace(guess, gaps="some files lack it" if missing else "some are null")


def _has_gaps(column: Any) -> bool:
    """Whether it has nulls or values that are not finite, also inside lists."""
    kind = plain(column.type)
    if column.null_count:
        return True
    if is_list(kind):
        return _has_gaps(pc.list_flatten(column))
    return pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py()


def _times(name: str, kind: pa.DataType, column: pa.ChunkedArray) -> str | None:
    """The period, in words; None if the values are not times. Integers are times since 1970 in a unit that puts nearly
    all of them between 1990 and 2100: real data have a few impossible times."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        bounds = pc.min_max(column.cast(kind if pa.types.is_date(kind) else pa.timestamp("s"), safe=False))
        least, most = (bounds[end].cast(pa.string()).as_py() for end in ("min", "max"))
        return f"times from {least} to {most}"
    if not pa.types.is_integer(kind) or not words_of(name) & _TIME:
        return None
    least, most = pc.quantile(column, [0.02, 0.98], interpolation="nearest").to_pylist()
    for unit, per_second in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        if least is not None and _YEAR_1990 * per_second <= least <= most < _YEAR_2100 * per_second:
            days = [datetime.datetime.fromtimestamp(time / per_second, datetime.UTC).date() for time in (least, most)]
            return f"{unit} since 1970, mostly from {days[0]} to {days[1]}"
    return None


def _different(values: Any) -> int:
    return 0 if pa.types.is_null(values.type) else int(pc.count_distinct(values).as_py())


def _is_zero_or_one(values: Any) -> bool:
    return pa.types.is_integer(values.type) and pc.min_max(values).as_py() == {"min": 0, "max": 1}


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    """int64 [rows]; a null is an empty list."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def words_of(name: str) -> set[str]:
    """The words of a name, the same for `requestTs` and `request_ts`."""
    return set(re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
