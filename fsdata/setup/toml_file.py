"""Sources written down in a TOML file, beside the schema.

[[sources]]
paths = "impressions/*.parquet"          # or a list; relative to the TOML file. Or: table = "delta:impressions"
columns = { item_id = "items",           # renames, and text to ids; `list = true` for lists of text
            country = { hash = "country", buckets = 1000 } }
defaults = { country = 0 }
weight = 2.0                             # and every option of `ParquetSource` that is a name, a number or a table
retry = { tries = 8, max_s = 60 }

[[sources.join]]                         # the options of `Join`, and those of its source
on = "user_id"
fields = ["age"]
paths = "users.parquet"

[[sources.as_of]]                        # the options of `AsOf`, and those of its source
on = "user_id"
at = "request_ts"
time = "event_ts"
fields = ["item_id", "action"]
paths = "histories/*.parquet"

Expressions (`filter`, computed columns, `AsOf(where=...)`) are polars and have their place in a Python file. Reading a
TOML file opens no other file and no connection.
"""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fsdata.errors import SchemaError
from fsdata.histories.as_of import AsOf
from fsdata.histories.lookup import Lookup
from fsdata.schema import load_toml, table_of
from fsdata.sources import expressions
from fsdata.sources.source import ParquetSource, Retry
from fsdata.tables.join import Join

_IN_PYTHON = ("filter", "where", "pools", "events", "rows", "map", "follow", "filesystem")
_WRITE_PYTHON = "is written in Python: make the schema and its sources in a file schema.py, and load that"


def sources_from_toml(path: str | Path) -> list[ParquetSource]:
    """The sources that the `[[sources]]` tables of a TOML file describe; nothing of them is opened.

    Raises:
        SchemaError: not TOML, an option that does not exist, or what `ParquetSource` and the joins reject.
    """
    tables = load_toml(path).get("sources")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SchemaError(f"{path}: no [[sources]] table")
    folder = Path(path).absolute().parent
    return [_source(table, folder, f"{path}: sources[{number}]") for number, table in enumerate(tables)]


def _source(table: dict[str, Any], folder: Path, where: str) -> ParquetSource:
    given = dict(_allowed(table, where, [*_options(ParquetSource), "as_of", "lookup"]))
    if not {"paths", "catalog", "table"} & given.keys():
        raise SchemaError(f"{where} needs paths, or a catalog of them, or a table")
    joins = [
        _join(kind, entry, folder, f"{where}.{option}[{number}]")
        for option, kind in (("join", Join), ("as_of", AsOf), ("lookup", Lookup))
        for number, entry in enumerate(_list(given.pop(option, []), f"{where}.{option}"))
    ]
    if isinstance(given.get("columns"), dict):
        given["columns"] = {name: _column(value, f"{where}.columns.{name}") for name, value in given["columns"].items()}
    if "paths" in given:
        paths = given["paths"] if isinstance(given["paths"], list) else [given["paths"]]
        given["paths"] = [_absolute(path, folder, f"{where}.paths") for path in paths]
    if "catalog" in given:
        given["catalog"] = _absolute(given["catalog"], folder, f"{where}.catalog")
    if isinstance(given.get("table"), str):
        kind, colon, path = given["table"].partition(":")
        given["table"] = f"{kind}:{_absolute(path, folder, where)}" if colon and path else given["table"]
    if "retry" in given:
        inside = f"{where}.retry"
        given["retry"] = _made(Retry, inside, **table_of(given["retry"], inside, _options(Retry)))
    return _made(ParquetSource, where, **given, join=joins)


def _join(kind: type[Join | AsOf | Lookup], table: Any, folder: Path, where: str) -> Join | AsOf | Lookup:
    """Of a table that has the options of the join and those of its source."""
    own = _options(kind)
    _allowed(table, where, [*own, *_options(ParquetSource)])
    needed = [each.name for each in fields(kind) if each.name in own and each.default is MISSING]
    if not set(needed) <= table.keys():
        raise SchemaError(f"{where} needs {' and '.join(name for name in needed if name not in table)}")
    of_source = {name: value for name, value in table.items() if name not in own}
    given = {name: table[name] for name in own if name in table}
    return _made(kind, where, _source(of_source, folder, where), **given)


def _made(kind: Any, where: str, *source: ParquetSource, **options: Any) -> Any:
    try:
        return kind(*source, **options)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def _options(kind: type) -> list[str]:
    return [each.name for each in fields(kind) if each.init and each.name not in ("source", *_IN_PYTHON)]


def _allowed(table: Any, where: str, options: list[str]) -> dict[str, Any]:
    for option in _IN_PYTHON:
        if isinstance(table, dict) and option in table:
            raise SchemaError(f"{where}: {option} {_WRITE_PYTHON}")
    return table_of(table, where, options)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f"{where} is a list of tables, got {value!r}")
    return value


def _column(column: Any, where: str) -> Any:
    if not isinstance(column, dict):
        return column
    if "sql" in column:
        raise SchemaError(f"{where}: an expression {_WRITE_PYTHON}")
    if "key" in column:
        try:
            return expressions.text_key(**_renamed(table_of(column, where, ("key", "buckets"))))
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error
    table_of(column, where, ("hash", "buckets", "list"))
    name, buckets, is_list = column.get("hash"), column.get("buckets"), column.get("list", False)
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{where}: hash must be the name of a column, got {name!r}")
    if type(buckets) is not int or not 1 <= buckets < 2**63:
        raise SchemaError(f"{where}: buckets must be a positive integer, got {buckets!r}")
    if not isinstance(is_list, bool):
        raise SchemaError(f"{where}: list must be true or false, got {is_list!r}")
    return expressions.hashed(name, buckets, is_list=is_list)


def _renamed(table: dict[str, Any]) -> dict[str, Any]:
    return {"column" if name == "key" else name: value for name, value in table.items()}


def _absolute(path: Any, folder: Path, where: str) -> str:
    if not isinstance(path, str) or not path:
        raise SchemaError(f"{where}: paths are strings, got {path!r}")
    return path if "://" in path or path.startswith("~") or Path(path).is_absolute() else str(folder / path)
