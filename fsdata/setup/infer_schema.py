"""A schema to begin with, guessed from the columns of files: for `Schema.infer` and `freescale init`.

Every column gets one guess, with the reason in words. Its type decides what it can be. Its name and its values decide
between what is left: an integer may be an id, an amount, a label or a time. Lists that have the same lengths in all
rows that were looked at are one sequence.
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
_ROWS = 8192  # of all files together
_VALUES = 1 << 20  # of a list column that are looked at

_LABEL = {"label", "labels", "click", "clicks", "clicked", "conversion", "converted", "purchased", "bought", "liked"}
_EVENT_LABEL = {"label", "labels"}  # past clicks are features of a history
_CANDIDATE = {"candidate", "candidates", "impression", "impressions", "slate", "shown", "exposed"}
_TIME = {"ts", "time", "timestamp", "date", "datetime"}
_AMOUNT = {"age", "n", "count", "num", "days", "hours", "price", "amount", "quantity", "score", "rate", "duration"}
_ID_OF_A_ROW = {"request", "impression", "session", "trace", "event"}
_MOST_LABELS = 32  # different numbers: more are ids
_UNIQUE = 0.9  # share of the rows with a text of their own, from which on it is passed through
_OR_CONTEXT = "; if the model may know it beforehand, it is context"
_YEAR_1990, _YEAR_2100 = 631_152_000, 4_102_444_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What a column is taken for.

    Attributes:
        column: its name, or its path through structs.
        role: a field of `Schema`; of the `Sequence` called `group`, if it has one; None where it is left out.
        why: in words.
        buckets: how many ids a text is hashed to; 0 where it is no text, or stays one.
        text: it is a text and stays one.
        gaps: where a row or an element has no value, why: it is null or not finite, or files lack the column.
        instead: the column that has the role which this one could have, too; None where there is none.
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
    """All columns of some files, in their order.

    Attributes:
        files, rows: how many were looked at, of `all_files`.
        groups: sequences, the longest first, and maybe `candidates` -> what their lists have in common, in words.
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
        """Without the columns that are left out."""
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
    """`guess_columns_of` the files that the paths stand for."""
    return guess_columns_of(discover(paths, filesystem, label=str(paths[0])), where=str(paths[0]), hash_text=hash_text)


def guess_columns_of(files: Sequence[FileRef], *, where: str, hash_text: bool) -> Guesses:
    """Look at the first rows of some of the files. Blocks for reading them.

    where: the files are, for messages.
    hash_text: text of which many rows have the same becomes ids by a hash, and so do lists of text. Otherwise text is
        passed through, and lists of it are left out.

    Raises:
        FileNotFoundError, PermissionError, ConnectionError; CorruptFileError: a file that is no Parquet, or damaged;
        SchemaError: no rows, files whose columns do not fit together, or no column that can be a field.
    """
    some, rows = _some_rows(files, where)
    lacking = {name for each in some for name in set(rows.schema.names) - set(each.schema.names)}
    found: dict[str, Guess] = {}
    lists: dict[bytes, list[str]] = {}  # by the lengths of all rows
    for name in rows.schema.names:
        column, kind = rows.column(name), plain(rows.schema.field(name).type)
        if name in encrypted_columns(rows.schema):
            found[name] = Guess(column=name, role=None, why="it is encrypted")
        elif name in files[0].partitions:
            found[name] = Guess(column=name, role=None, why="it is a key of the folders, too")
        elif is_list(kind):
            lists.setdefault(_lengths(column).tobytes(), []).append(name)
        else:
            found[name] = _scalar(name, kind, column, hash_text=hash_text)
    groups = {}
    for group, why, guesses in _groups(rows, lists, hash_text=hash_text):
        found |= {guess.column: guess for guess in guesses}
        if group:
            groups[group] = why
    _keep_one_time(found)
    for name, guess in found.items():
        found[name] = _with_gaps(guess, rows.column(name), missing=name in lacking)
    if not any(guess.role not in (None, "time") for guess in found.values()):
        reasons = "; ".join(f"{guess.column}: {guess.why}" for guess in found.values())
        raise SchemaError(f"{files[0].path} has no column that a sample can be made of: {reasons}")
    return Guesses(
        columns=tuple(found[name] for name in rows.schema.names),
        groups=groups,
        partitions=dict(files[0].partitions),
        files=len(some),
        all_files=len(files),
        rows=len(rows),
    )


def _some_rows(files: Sequence[FileRef], where: str) -> tuple[list[pa.Table], pa.Table]:
    """The first rows of files all over the list, each and together; files without rows do not count."""
    retry = Retrying()
    spread = range(0, len(files), -(-len(files) // _FILES))
    found: dict[str, pa.Table] = {}
    for number in [*spread, *(each for each in range(len(files)) if each not in spread)]:
        if number not in spread and found:
            break
        file = files[number]
        rows = retry.call(functools.partial(_first_rows, file, _ROWS // len(spread)), file)
        if len(rows):
            found[file.name] = _without_dictionaries(_without_structs(rows))
    if not found:
        raise SchemaError(f"{where}: no file has a row to look at")
    _check_kinds(found, where)
    some = list(found.values())
    try:
        return some, pa.concat_tables(some, promote_options="permissive").combine_chunks()
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise SchemaError(
            f"{where}: its files do not have the same columns, so they are several sources; name the files of one of "
            f"them. {error}"
        ) from error


def _check_kinds(found: dict[str, pa.Table], where: str) -> None:
    """Refuse files of which one lacks half of the columns of another: a schema of all would fit none of them."""
    first, *_ = found
    names = set(found[first].schema.names)
    for other, table in found.items():
        common = names & set(table.schema.names)
        if 2 * len(common) < max(len(names), table.num_columns):
            raise SchemaError(
                f"{where}: {first} and {other} have {len(common) or 'no'} columns in common, so they are several "
                f"sources. Name the files of one of them, as those that are named like {first}"
            )


def _first_rows(file: FileRef, most: int) -> pa.Table:
    """Without metadata by key; encrypted columns are null."""
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
            for group in range(metadata.num_row_groups):  # pyarrow 26 joins no lists of dictionaries of several
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
    """A table with all columns of a schema; the batches have those that are not in `nulls`."""
    if not batches:
        return schema.empty_table()
    columns, rows = iter(pa.Table.from_batches(batches).columns), sum(batch.num_rows for batch in batches)
    return pa.Table.from_arrays(
        [pa.nulls(rows, field.type) if field.name in nulls else next(columns) for field in schema],
        schema=schema,
    )


def _without_dictionaries(table: pa.Table) -> pa.Table:
    """Files may store one column with a dictionary and without; also the values of lists."""
    for place, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            table = table.set_column(place, field.name, table.column(place).cast(kind.value_type))
        elif is_list(kind) and pa.types.is_dictionary(kind.value_type):
            list_of = pa.large_list if pa.types.is_large_list(kind) else pa.list_
            lists = table.column(place).cast(list_of(kind.value_type.value_type))
            table = table.set_column(place, field.name, lists)
    return table


def _without_structs(table: pa.Table) -> pa.Table:
    """With a column for every field inside structs and lists of structs, called by its path."""
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
        found = pc.min_max(column.cast(pa.float64(), safe=False)).as_py().values()
        least, most = (float("nan") if each is None else each for each in found)
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
    """A power of two with room for many more than were seen."""
    return 1 << max(10, (16 * different).bit_length())


def _groups(
    rows: pa.Table, lists: dict[bytes, list[str]], *, hash_text: bool
) -> Iterator[tuple[str | None, str, list[Guess]]]:
    """Name, what its lists have in common, and the guesses of every group; the longest lists first. None: left out."""
    ordered = sorted(lists.values(), key=lambda names: -_lengths(rows.column(names[0])).mean())
    scored = next((names for names in ordered if any(words_of(name) & _CANDIDATE for name in names)), None)
    group: str | None = "uih"
    for names in ordered:
        guesses = [_list(name, rows.column(name), names is scored, hash_text=hash_text) for name in names]
        first = next((guess.column for guess in guesses if guess.role in ("fields", "floats")), None)
        if first is None:
            reason = "no list of single values is as long"
            yield None, "", [replace(each, role=None, why=reason if each.role else each.why) for each in guesses]
            continue
        name = "candidates" if names is scored else group or f"{first} list"
        group = None if name == group else group
        # Labels of candidates stand in the schema itself, beside those of the sample.
        yield (
            name,
            _common(rows, names),
            [
                replace(each, group=name if each.role and not (names is scored and each.role == "labels") else None)
                for each in guesses
            ],
        )


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
    role = next((role for role, of in kinds.items() if objection(Field(name, of), kind) is None), None)
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


def _keep_one_time(found: dict[str, Guess]) -> None:
    times = [name for name, guess in found.items() if guess.role == "time"]
    for name in times[1:]:
        why = f"{found[name].why}: a time, and the time of a sample is {times[0]}. As an id it is context"
        found[name] = replace(found[name], role=None, why=why, instead=times[0])


def _with_gaps(guess: Guess, column: pa.ChunkedArray, *, missing: bool) -> Guess:
    """The guess with what it says of values that are not there. Some fields have nothing in their place."""
    if guess.role is None or (not missing and not _has_gaps(column)):
        return guess
    if missing and (guess.buckets or guess.role == "labels"):
        why = f"{guess.why}; some files lack it, and {'an expression' if guess.buckets else 'a label'} has no default"
        return replace(guess, role=None, group=None, why=why)
    if guess.role == "time":
        return replace(guess, role=None, why=f"{guess.why}: a time, but some rows have none")
    return replace(guess, gaps="some files lack it" if missing else "some are null")


def _has_gaps(column: Any) -> bool:
    """Of null or not finite values, in lists also."""
    kind = plain(column.type)
    if column.null_count:
        return True
    if is_list(kind):
        return _has_gaps(pc.list_flatten(column))
    return pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py()


def _times(name: str, kind: pa.DataType, column: pa.ChunkedArray) -> str | None:
    """From when to when; None if these are no times. Whole numbers count from 1970, in the unit in which nearly all of
    them lie in our time: some data have a few times that cannot be."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        spread = pc.min_max(column.cast(kind if pa.types.is_date(kind) else pa.timestamp("s"), safe=False))
        least, most = (spread[name].cast(pa.string()).as_py() for name in ("min", "max"))
        return f"times from {least} to {most}"
    if not pa.types.is_integer(kind) or not words_of(name) & _TIME:
        return None
    least, most = pc.quantile(column, [0.02, 0.98], interpolation="nearest").to_pylist()
    for unit, per_second in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        if least is not None and _YEAR_1990 * per_second <= least <= most < _YEAR_2100 * per_second:
            days = [datetime.datetime.fromtimestamp(each / per_second, datetime.UTC).date() for each in (least, most)]
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
    """`requestTs` and `request_ts` have the same."""
    return set(re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
