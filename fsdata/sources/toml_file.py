"""Sources written down in a TOML file, beside the schema.

[[sources]]
paths = "impressions/*.parquet"          # or a list; relative to the TOML file. Or: table = "delta:impressions"
columns = { item_id = "items", hour = { sql = "DIV(request_ts, 3600) % 24" },
                country = { hash = "country", buckets = 1000 } }   # text; `list = true` for lists of text
defaults = { country = 0 }
nulls = { click = "drop" }
filter = "click IS NOT NULL"             # SQL, see `fsdata.sources.expressions.sql` and `sql_functions`
skip = 1000                              # rows, and of the rest
limit = 50000                            # at most so many
weight = 2.0
on_error = "skip"
retry = { tries = 8, max_s = 60 }        # of reads of remote files

[[sources.join]]
on = "user_id"
fields = ["age"]
paths = "users.parquet"                  # and every option above but weight, skip and limit

[[sources.as_of]]                        # histories stored once, see `AsOf`
on = "user_id"
at = "request_ts"
time = "event_ts"
fields = ["item_id", "action"]
where = "action <> 3"                    # SQL; as known_at, inclusive and bucketed, it can be left out
paths = "histories/*.parquet"            # and every option above but weight, skip and limit

Reading it touches no other file and no network.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fsdata.errors import SchemaError
from fsdata.schema import load_toml, table_of
from fsdata.sources.expressions import expressions
from fsdata.sources.source import AsOf, Join, ParquetSource, Retry

Made = TypeVar("Made")
_OPTIONS = (
    "paths",
    "catalog",
    "table",
    "columns",
    "defaults",
    "nulls",
    "filter",
    "skip",
    "limit",
    "weight",
    "on_error",
    "decoder",
    "retry",
    "join",
    "as_of",
)
_OF_JOIN = ("on", "fields")
_OF_HISTORIES = (*_OF_JOIN, "at", "time")


def sources_from_toml(path: str | Path) -> list[ParquetSource]:
    """The sources that the `[[sources]]` tables of a TOML file describe; nothing of them is opened.

    Raises:
        SchemaError: not TOML, an option that does not exist, or what `ParquetSource`, `Join` and `AsOf` reject.
    """
    tables = load_toml(path).get("sources")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SchemaError(f"{path}: no [[sources]] table")
    folder = Path(path).absolute().parent
    return [_source(table, folder, f"{path}: sources[{number}]") for number, table in enumerate(tables)]


def _source(table: Any, folder: Path, where: str) -> ParquetSource:
    table_of(table, where, _OPTIONS)
    if not {"paths", "catalog", "table"} & set(table):
        raise SchemaError(f"{where} needs paths, or a catalog of them, or a table")
    paths = table.get("paths", [])
    paths = paths if isinstance(paths, list) else [paths]
    catalog = table.get("catalog")
    for option in ("join", "as_of"):
        if not isinstance(table.get(option, []), list):
            raise SchemaError(f"{where}.{option} is a list of tables, got {table[option]!r}")
    columns = table.get("columns", {})
    if not isinstance(columns, dict):
        raise SchemaError(f"{where}.columns is a table, got {columns!r}")
    condition = table.get("filter")
    try:
        return ParquetSource(
            [_absolute(path, folder, where) for path in paths],
            catalog=None if catalog is None else _absolute(catalog, folder, where),
            table=_table(table.get("table"), folder, where),
            columns={name: _column(column, f"{where}.columns.{name}") for name, column in columns.items()},
            defaults=table.get("defaults", {}),
            nulls=table.get("nulls", {}),
            join=[
                *(_join(entry, folder, f"{where}.join[{n}]") for n, entry in enumerate(table.get("join", []))),
                *(_as_of(entry, folder, f"{where}.as_of[{n}]") for n, entry in enumerate(table.get("as_of", []))),
            ],
            filter=None if condition is None else expressions.parse(condition, f"{where}.filter"),
            skip=table.get("skip", 0),
            limit=table.get("limit"),
            weight=table.get("weight"),
            retry=Retry(**table_of(table.get("retry", {}), f"{where}.retry", ("tries", "max_s"))),
            on_error=table.get("on_error", "raise"),
            decoder=table.get("decoder"),
        )
    except SchemaError as error:
        raise error if str(error).startswith(where) else SchemaError(f"{where}: {error}") from error


def _join(table: Any, folder: Path, where: str) -> Join:
    given, source = _parts(table, _OF_JOIN, (), folder, where)
    return _made(lambda: Join(source, **given), where)


def _as_of(table: Any, folder: Path, where: str) -> AsOf:
    given, source = _parts(table, _OF_HISTORIES, ("known_at", "where", "inclusive", "bucketed"), folder, where)
    if "where" in given:
        given["where"] = expressions.parse(given["where"], f"{where}.where")
    return _made(lambda: AsOf(source, **given), where)


def _parts(
    table: Any, needed: Sequence[str], more: Sequence[str], folder: Path, where: str
) -> tuple[dict[str, Any], ParquetSource]:
    """The options of a join, and its source."""
    table_of(table, where, (*needed, *more, *_OPTIONS))
    missing = [option for option in needed if option not in table]
    if missing:
        raise SchemaError(f"{where} needs {' and '.join(missing)}")
    given = {name: value for name, value in table.items() if name in (*needed, *more)}
    return given, _source({name: value for name, value in table.items() if name not in given}, folder, where)


def _made(make: Callable[[], Made], where: str) -> Made:
    try:
        return make()
    except SchemaError as error:
        raise error if str(error).startswith(where) else SchemaError(f"{where}: {error}") from error


def _column(column: Any, where: str) -> Any:
    if not isinstance(column, dict):
        return column
    if set(column) == {"sql"}:
        return expressions.parse(column["sql"], where)
    if {"hash", "buckets"} <= set(column) <= {"hash", "buckets", "list"}:
        name, buckets, is_list = column["hash"], column["buckets"], column.get("list", False)
        if not isinstance(name, str) or not name:
            raise SchemaError(f"{where}: hash must be the name of a column, got {name!r}")
        if type(buckets) is not int or not 1 <= buckets < 2**63:
            raise SchemaError(f"{where}: buckets must be a positive integer, got {buckets!r}")
        if not isinstance(is_list, bool):
            raise SchemaError(f"{where}: list must be true or false, got {is_list!r}")
        return expressions.hashed(name, buckets, is_list=is_list)
    raise SchemaError(
        f"{where} is a name, {{ sql = '...' }} or {{ hash = 'column', buckets = n, list = false }}; got {column!r}"
    )


def _table(table: Any, folder: Path, where: str) -> str | None:
    kind, colon, path = table.partition(":") if isinstance(table, str) else ("", "", "")
    return f"{kind}:{_absolute(path, folder, where)}" if colon and path else table


def _absolute(path: Any, folder: Path, where: str) -> str:
    if not isinstance(path, str) or not path:
        raise SchemaError(f"{where}.paths: paths are strings, got {path!r}")
    return path if "://" in path or path.startswith("~") or Path(path).is_absolute() else str(folder / path)
