"""The identity of a source, equal on every host and at resume: names, footers, arguments. No absolute path, no time."""

from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from typing import Any

from fsdata.catalog.binding.key_types import text_by_hash
from fsdata.catalog.catalog import Catalog
from fsdata.sources.source import ParquetSource

_MOST_NAMED = 10_000


def fingerprint(
    source: ParquetSource, catalog: Catalog, side: Iterable[dict[str, str]], version: str | None = None
) -> dict[str, str]:
    """Item -> short description; equal for equal sources.

    Args:
        version: of the Delta or Iceberg table, if the files belong to one.
        side: the fingerprints of the side tables, in the order of `source.join`.
    """
    items = {"arguments": arguments(source, catalog, source.weight)}
    if source.follow is None:  # the files of a followed folder change; its state has them
        sizes = catalog.size.tolist()
        rows = int(catalog.rows.sum())
        items["files"] = f"{len(catalog)} files, {rows} rows, names {_hash(catalog.files.names())}"
        items["footers"] = _hash(f"{size} {catalog.digest(file)}" for file, size in enumerate(sizes))
    if version is not None:
        items["table"] = version
    for number, table in enumerate(side):
        items.update({f"join {number} {name}": value for name, value in table.items()})
    return items


def arguments(source: ParquetSource, catalog: Catalog, weight: float | None) -> str:
    """The item "arguments" of the source, if it had this weight."""
    folders = [folder.partitions for folder in catalog.files.folders]
    texts = (f"text {name}" for name in text_by_hash(source, folders))
    return _hash([*_arguments(source, weight), *texts])


def file_descriptions(catalog: Catalog) -> dict[str, str]:
    """Name -> description of every file, to list the differing ones in a message; empty if there are too many."""
    if len(catalog) > _MOST_NAMED:
        return {}
    names = catalog.files.names()
    return {name: f"{catalog.size[file]} bytes, footer {catalog.digest(file)}" for file, name in enumerate(names)}


def _arguments(source: ParquetSource, weight: float | None) -> Iterable[str]:
    computed = source.computed
    for name, column in sorted(source.columns.items()):
        yield f"column {name}"
        yield computed[name].form if name in computed else str(column)
    yield from (f"default {name} {value!r}" for name, value in sorted(source.defaults.items()))
    yield from (f"nulls {name} {policy}" for name, policy in sorted(source.nulls.items()))
    yield from (f"type {name} {kind}" for name, kind in sorted(source.declared.items()))
    condition = source.condition
    if condition is not None and condition.polars is not None:
        yield "filter"
        yield condition.form
    if condition is not None and condition.split is not None:
        yield condition.split.form
    if source.events is not None:
        yield source.events.form
    if source.map is not None:
        yield f"map {_name_of(source.map)}"
    yield from (join.form for join in source.join)
    if source.skip or source.limit is not None:
        yield f"skip {source.skip} limit {source.limit}" + ("" if condition is None else " before filter")
    if source.follow is not None:
        yield source.follow.form
    yield f"weight {weight!r} on_error {source.on_error}"


def _name_of(function: Any) -> str:
    """Module and name of a function, of the one inside a partial, or of the class of a callable object. No `repr`: it
    may have an address, which differs in every process."""
    if isinstance(function, partial):
        return f"partial {_name_of(function.func)}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _hash(texts: Iterable[str]) -> str:
    result = blake2b(digest_size=8)
    for text in texts:
        raw = text.encode()
        result.update(len(raw).to_bytes(8, "little") + raw)  # with lengths, so that "ab", "c" differs from "a", "bc"
    return result.hexdigest()
