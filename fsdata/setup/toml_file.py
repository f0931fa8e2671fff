"""Sources in a TOML file, beside the schema.

The options, with their checks, are the fields of `ParquetSource`, `Join`, `AsOf` and `Lookup`; there is no list of them
here.

[[sources]]
paths = "impressions/*.parquet"          # or a list; relative to the TOML file. Or: table = "delta:impressions"
columns = { item_id = "items",           # renames, and text to ids; `list = true` for lists of text
            country = { hash = "country", buckets = 1000 } }
defaults = { country = 0 }
weight = 2.0                             # like every option of `ParquetSource` that is a name, a number or a table
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

Expressions (`filter`, computed columns, `AsOf(where=...)`) are polars and belong in a Python file. Reading a TOML file
opens no other file and no connection.
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
    """The sources in the `[[sources]]` tables of a TOML file. Their files are not opened.

    Raises:
        SchemaError: not TOML, an unknown option, or a value that `ParquetSource` or a join rejects.
    """
    tables = load_toml(path).get("sources")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SchemaError(f"{path}: no [[sources]] table")
    folder = Path(path).absolute().parent
    return [_source(table, folder, f"{path}: sources[{number}]") for number, table in enumerate(tables)]


def _source(table: dict[str, Any], folder: Path, where: str) -> ParquetSource:
    options = dict(_allowed(table, where, [*_options(ParquetSource), "as_of", "lookup"]))
    if not {"paths", "catalog", "table"} & options.keys():
        raise SchemaError(f"{where} needs paths, or a catalog of them, or a table")
    joins = [
        _join(kind, entry, folder, f"{where}.{name}[{number}]")
        for name, kind in (("join", Join), ("as_of", AsOf), ("lookup", Lookup))
        for number, entry in enumerate(_list(options.pop(name, []), f"{where}.{name}"))
    ]
    if isinstance(options.get("columns"), dict):
        options["columns"] = {
            name: _column(value, f"{where}.columns.{name}") for name, value in options["columns"].items()
        }
    if "paths" in options:
        paths = options["paths"] if isinstance(options["paths"], list) else [options["paths"]]
        options["paths"] = [_absolute(path, folder, f"{where}.paths") for path in paths]
    if "catalog" in options:
        options["catalog"] = _absolute(options["catalog"], folder, f"{where}.catalog")
    if isinstance(options.get("table"), str):
        kind, colon, path = options["table"].partition(":")
        options["table"] = f"{kind}:{_absolute(path, folder, where)}" if colon and path else options["table"]
    if "retry" in options:
        inside = f"{where}.retry"
        options["retry"] = _constructed(Retry, inside, **table_of(options["retry"], inside, _options(Retry)))
    return _constructed(ParquetSource, where, **options, join=joins)


def _join(kind: type[Join | AsOf | Lookup], table: Any, folder: Path, where: str) -> Join | AsOf | Lookup:
    """A join from a table with its options and those of its source."""
    names = _options(kind)
    _allowed(table, where, [*names, *_options(ParquetSource)])
    needed = [option.name for option in fields(kind) if option.name in names and option.default is MISSING]
    if not set(needed) <= table.keys():
        raise SchemaError(f"{where} needs {' and '.join(name for name in needed if name not in table)}")
    source = _source({name: value for name, value in table.items() if name not in names}, folder, where)
    return _constructed(kind, where, source, **{name: table[name] for name in names if name in table})


def _constructed(kind: Any, where: str, *source: ParquetSource, **options: Any) -> Any:
    try:
        return kind(*source, **options)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def _options(kind: type) -> list[str]:
    return [option.name for option in fields(kind) if option.init and option.name not in ("source", *_IN_PYTHON)]


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
        options = dict(table_of(column, where, ("key", "buckets")))
        try:
            return expressions.text_key(options.pop("key"), **options)
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


def _absolute(path: Any, folder: Path, where: str) -> str:
    if not isinstance(path, str) or not path:
        raise SchemaError(f"{where}: paths are strings, got {path!r}")
    return path if "://" in path or path.startswith("~") or Path(path).is_absolute() else str(folder / path)
