"""Requires one type per hashed key: equal values of different types have different hashes, so one id would be two ids.

polars hashes -7 as int32, as int64 and as text to three numbers. `split` hashes all widths of integers alike, and
texts in another way. Hashed columns must therefore have one type over all files of a source and all sources of a
loader, that of the files or the one declared by `ParquetSource(types=...)`. The value of a `key=value` folder has no
type of its own: under a hash and for `split` it is text, so that it does not depend on the other folders that are read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from fsdata.catalog.binding.arrow_types import is_list, is_text, plain
from fsdata.catalog.listing.file_list import Partitions
from fsdata.sources.source import ParquetSource

HashedTypes = Mapping[tuple[str, str], str]
"""(use: a field, `filter` or `split`; column) -> the type on which the hash depends."""


def hashed_types(source: ParquetSource, type_of: Callable[[str], pa.DataType | None]) -> dict[tuple[str, str], str]:
    """The types of all columns that the source hashes.

    type_of: the type of a column in some files, keys of folders included; None where it is missing.
    """
    types = {}
    uses = [(name, expression.hashed) for name, expression in source.computed.items()]
    condition = source.condition
    if condition is not None:
        uses.append(("filter", condition.hashed))
        uses.append(("split", () if condition.split is None else (condition.split.column,)))
    for use, columns in uses:
        for column in columns:
            kind = source.declared.get(column) or type_of(column)
            if kind is not None and not pa.types.is_null(kind):
                types[use, column] = _of_split(kind) if use == "split" else _of_hash(kind)
    return types


def differences(one: HashedTypes, others: HashedTypes) -> Iterator[tuple[str, str]]:
    """(use, message) for each column with another type in `one` than in `others`."""
    for (use, column), kind in one.items():
        other = others.get((use, column), kind)
        if kind != other:
            yield use, f"{column!r} is {kind} in some files and {other} in the first: {advice(column, kind, other)}"


def by_use(types: HashedTypes) -> dict[str, list[tuple[str, str]]]:
    """Use -> (column, type) of its columns, in the order of the expression; without filters, as the rows of a filter
    belong to one source."""
    uses: dict[str, list[tuple[str, str]]] = {}
    for (use, column), kind in types.items():
        if use == "split":
            uses[f"split={column!r}"] = [(column, kind)]
        elif use != "filter":
            uses.setdefault(use, []).append((column, kind))
    return uses


def between(one: HashedTypes, other: HashedTypes) -> Iterator[tuple[str, str, str]]:
    """(use, type in one, type in the other) for columns that two tables hash with different types."""
    there = by_use(other)
    for use, columns in by_use(one).items():
        for (column, kind), (other_column, other_kind) in zip(columns, there.get(use, ()), strict=False):
            if kind != other_kind:
                yield use, f"{column!r} is {kind}", f"{other_column!r} is {other_kind}"


def advice(column: str, *kinds: str) -> str:
    """The consequence of two types of a hashed column, and the remedy; for a message."""
    declared = "string" if "text" in kinds else "int64"
    return (
        "a hash tells types apart, so that one value would be two ids, or in two parts of a split. Declare one type, "
        f"that of the values that were hashed until now: types={{{column!r}: {declared!r}}}"
    )


def folder_columns(source: ParquetSource, folders: Iterable[Partitions]) -> dict[str, pa.DataType]:
    """The type of every `key=value` folder: the declared one, else text where the source hashes it, else int64 if all
    values in all folders are integers, else text. Values of tables have their own types."""
    texts: dict[str, list[str]] = {}
    for partitions in folders:
        for name, text in partitions.items():
            if isinstance(text, str):
                texts.setdefault(name, []).append(text)
            elif text is None:
                texts.setdefault(name, [])  # a key that is null in all folders is a column, too
    return {name: _folder_type(source, name, values) for name, values in texts.items()}


def text_by_hash(source: ParquetSource, folders: Sequence[Partitions]) -> list[str]:
    """Keys of folders that are text only because the source hashes them: their values are integers."""
    return sorted(
        name
        for name in folder_columns(source, folders)
        if name in source.hashed and name not in source.declared and _all_int64(_texts(folders, name))
    )


def _folder_type(source: ParquetSource, name: str, texts: Sequence[str]) -> pa.DataType:
    if name in source.declared:
        return source.declared[name]
    return pa.int64() if name not in source.hashed and _all_int64(texts) else pa.string()


def _texts(folders: Iterable[Partitions], name: str) -> list[str]:
    return [text for partitions in folders if isinstance(text := partitions.get(name), str)]


def _all_int64(texts: Iterable[str]) -> bool:
    return all(_is_int64(text) for text in texts)


def _is_int64(text: str) -> bool:
    # Not `int(text)` alone: it takes "1_000", " 7" and digits of other scripts, which Arrow does not cast.
    digits = text[1:] if text[:1] == "-" else text
    return digits.isascii() and digits.isdigit() and -(2**63) <= int(text) < 2**63


def _of_hash(kind: pa.DataType) -> str:
    inner = plain(kind)
    while is_list(inner):
        inner = plain(inner.value_type)
    return "text" if is_text(inner) else str(inner)


def _of_split(kind: pa.DataType) -> str:
    inner = plain(kind)
    return "text" if is_text(inner) else "integer" if pa.types.is_integer(inner) else str(inner)
