"""Sources written down in a TOML file, beside the schema.

[[sources]]
paths = "impressions/*.parquet"          # or a list; relative to the TOML file
columns = { item_id = "items", hour = { sql = "DIV(request_ts, 3600) % 24" },
                country = { hash = "country", buckets = 1000 } }   # text; `list = true` for lists of text
defaults = { country = 0 }
nulls = { click = "drop" }
filter = "click IS NOT NULL"             # SQL, see `fsdata.sources.sql` and `sql_functions`
weight = 2.0
on_error = "skip"

[[sources.join]]
on = "user_id"
fields = ["age"]
paths = "users.parquet"                  # and every option above but weight

Reading it touches no other file and no network.
"""

import tomllib
from pathlib import Path
from typing import Any

from fsdata.errors import SchemaError
from fsdata.sources import expressions
from fsdata.sources.source import Join, ParquetSource

_OPTIONS = ("paths", "columns", "defaults", "nulls", "filter", "weight", "on_error", "join")


def sources_from_toml(path: str | Path) -> list[ParquetSource]:
    """The sources that the `[[sources]]` tables of a TOML file describe; nothing of them is opened.

    Raises:
        SchemaError: not TOML, an option that does not exist, or what `ParquetSource` and `Join` reject.
    """
    try:
        document = tomllib.loads(Path(path).read_text())
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{path}: not valid TOML: {error}") from error
    tables = document.get("sources")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SchemaError(f"{path}: no [[sources]] table")
    folder = Path(path).absolute().parent
    return [_source(table, folder, f"{path}: sources[{number}]") for number, table in enumerate(tables)]


def _source(table: dict[str, Any], folder: Path, where: str) -> ParquetSource:
    unknown = sorted(set(table) - set(_OPTIONS))
    if unknown:
        raise SchemaError(f"{where} has no option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
    if "paths" not in table:
        raise SchemaError(f"{where} needs paths")
    paths = table["paths"] if isinstance(table["paths"], list) else [table["paths"]]
    joins = table.get("join", [])
    condition = table.get("filter")
    try:
        return ParquetSource(
            [_absolute(path, folder, where) for path in paths],
            columns={
                name: _column(column, f"{where}.columns.{name}") for name, column in table.get("columns", {}).items()
            },
            defaults=table.get("defaults", {}),
            nulls=table.get("nulls", {}),
            join=[_join(entry, folder, f"{where}.join[{number}]") for number, entry in enumerate(joins)],
            filter=None if condition is None else expressions.parse(condition, f"{where}.filter"),
            weight=table.get("weight"),
            on_error=table.get("on_error", "raise"),
        )
    except SchemaError as error:
        raise error if str(error).startswith(where) else SchemaError(f"{where}: {error}") from error


def _join(table: dict[str, Any], folder: Path, where: str) -> Join:
    missing = [option for option in ("on", "fields") if option not in table]
    if missing:
        raise SchemaError(f"{where} needs {' and '.join(missing)}")
    rest = {name: value for name, value in table.items() if name not in ("on", "fields")}
    return Join(_source(rest, folder, where), on=table["on"], fields=table["fields"])


def _column(column: Any, where: str) -> Any:
    if not isinstance(column, dict):
        return column
    if set(column) == {"sql"}:
        return expressions.parse(column["sql"], where)
    if {"hash", "buckets"} <= set(column) <= {"hash", "buckets", "list"}:
        buckets = column["buckets"]
        if not isinstance(buckets, int) or buckets < 1:
            raise SchemaError(f"{where}: buckets must be a positive integer, got {buckets!r}")
        return expressions.hashed(column["hash"], buckets, is_list=bool(column.get("list", False)))
    raise SchemaError(
        f"{where} is a name, {{ sql = '...' }} or {{ hash = 'column', buckets = n, list = false }}; got {column!r}"
    )


def _absolute(path: Any, folder: Path, where: str) -> str:
    if not isinstance(path, str):
        raise SchemaError(f"{where}: paths are strings, got {path!r}")
    return path if "://" in path or Path(path).is_absolute() else str(folder / path)
