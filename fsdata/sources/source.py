"""`ParquetSource`: how files become the fields of a schema. Options are checked here; no file is opened."""

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from fsdata.errors import SchemaError
from fsdata.options import integer, is_number, mapping_of, one_of, plain, text, tuple_of
from fsdata.sources import expressions
from fsdata.sources.hash_split import checked_split

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


Policy = Literal["default", "drop", "error"]
_DECODERS = ("pages", "pyarrow")
POLICIES = ("error", "default", "drop")
_TABLE = re.compile(r"(delta|iceberg):(.+?)(?:@([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a read of a remote file is repeated after a transport error.

    Waits begin at a tenth of a second and grow by a factor of four. Each is shortened by a random part of up to one
    half, so that many ranks do not retry at the same moment.

    Args:
        tries: maximum number of tries, the first one included.
        max_s: maximum sum of all waits, in seconds.
    """

    tries: int = 5
    max_s: float = 30.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tries", integer("Retry(tries=...)", self.tries, 1, error=SchemaError))
        object.__setattr__(self, "max_s", plain(self.max_s))
        if not is_number(self.max_s) or not self.max_s >= 0:
            raise SchemaError(f"Retry(max_s=...) is a number of seconds, got {self.max_s!r}")


class Growing(ABC):
    """How files are added to a source while it is read. `Follow` implements it."""

    __slots__ = ()

    @property
    @abstractmethod
    def form(self) -> str:
        """The options that determine the order of rows; for fingerprints."""

    @property
    @abstractmethod
    def by_path(self) -> bool:
        """Whether new files are ordered by path."""


@dataclass(frozen=True, slots=True, eq=False)
class ParquetSource:
    """One set of Parquet files and how it becomes the fields of a `Schema`.

    Args:
        paths: files, globs (`*`, `?`, `[...]`, `**`), folders (all `.parquet` and `.parq` files below, except names
            that begin with `_` or `.`), or URLs of any pyarrow or fsspec filesystem. `key=value` folders are columns.
            Files of one glob or folder are read in the order of their names.
        catalog: replaces `paths`: a file that `freescale catalog` made of them. No folder is listed and no footer is
            read before planning. A file that has changed since then raises an error when it is read.
        table: replaces `paths`: a Delta Lake or Iceberg table, `delta:PATH` or `iceberg:PATH` with the folder of the
            table (or, for Iceberg, a metadata file). `@VERSION` after it (for Iceberg the id of a snapshot) selects a
            version other than the newest. Files and their partitions come from the table's metadata.
        events: replaces `paths`: made by `AsOf.anchors`. Rows are events of a table of histories.
        rows: replaces `paths`: a `RowSource`, for rows of another format than Parquet.
        columns: field -> column name, or a polars expression over the file's columns that gives one value (or one
            list) per row from that row alone, with the operations in `fsdata.sources.elementwise`; kept as an
            `Expression`. Any other field is the column of the same name.
        types: column of the files, or key of a folder -> the type to which its values are cast before every other use
            (`filter`, `split`, expressions, keys): `"string"`, `"int64"` or another type of numbers or times by its
            Arrow name; for lists, the type of their elements. Equal values of different types have different hashes,
            so a hashed key needs one type over all files, folders and sources; declare it here where they differ.
            Casts are exact: a value that the type cannot represent is a DataError. Keys of folders under a hash are
            `"string"` unless they are declared here.
        defaults: field -> number for a missing column and for nulls under the policy `default`; for a passthrough field
            of text a string. In lists it replaces null elements; a list that is null or missing becomes defaults, as
            many as its group's other lists have elements (none if the whole group is null).
        nulls: field -> `default`, `drop` (drop the row) or `error`. Without an entry: `default` if the field has a
            default, else `error`. In float fields NaN and infinities count as nulls. `time` and the main table's
            join keys have no policy: a null time is an error, a null key is a key without a match.
        join: side tables (`Join`), histories that are stored once (`AsOf`) and dimension tables (`Lookup`).
        follow: a `Follow`; `paths` is then one folder or glob.
        filter: polars expression over the file's columns; only rows for which it is true are read. Evaluated first.
        map: function(pyarrow.RecordBatch) -> pyarrow.RecordBatch, for computations beyond expressions. Its argument has
            the columns of the fields, under the names of the fields, after `filter` and expressions and before null
            policies. Its result has the same columns and as many rows, in types that serve the same fields. Decoding
            threads call it with any number of rows, and with some rows twice: it must be a function of each row alone.
            Saved states hold its module and name; its code is not compared. It does not see fields of partitions,
            defaults and joins, and does not change the order of `mix="time"`.
        split: a column of integers or text: only rows whose values hash into `keep` are read, for sets that share no
            user (or item, or day). A row is in the same set on every rank, in every run and version. Rows with a null
            are in no set. Evaluated first, like `filter`.
        keep: (low, high) in [0, 1]: `(0, 0.98)` keeps about 98 % of the values, `(0.98, 1)` the others.
        salt: a different salt gives a different assignment of the values to sets.
        filesystem: the pyarrow or fsspec filesystem of `paths`.
        skip: number of rows to skip, in the order of files and before `filter`.
        limit: maximum number of rows after `skip`, for runs on a part of the data. Joined tables are read whole.
        weight: share of this source under `mix="weighted"`. 0, under any mix: no row of it is read. This drops a source
            within an epoch, see docs/resume.md.
        retry: how often reads of remote files are repeated; local files are read once.
        decoder: `"pages"`: FreeScale decodes lists of numbers, pyarrow everything else; `"pyarrow"`: pyarrow decodes
            everything. The results are the same. None: the value of the environment variable `FSDATA_DECODER`, or
            without it `"pages"` except for lists in small row groups, which are decoded together. `describe()` has the
            lists that pyarrow decodes, with the reasons.
        on_error: at a corrupt file or row group `raise`, or `skip` it, which counts and lists it.

    Raises:
        SchemaError: options that contradict each other.
    """

    paths: str | Path | Sequence[str | Path] = ()
    _: KW_ONLY
    catalog: str | Path | None = None
    table: str | None = None
    events: "EventSource | None" = None
    rows: "RowSource | None" = None
    columns: Mapping[str, "str | pl.Expr | expressions.Expression"] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    nulls: Mapping[str, Policy] = field(default_factory=dict)
    join: "Sequence[Joined]" = ()
    follow: Growing | None = None
    filter: "pl.Expr | expressions.Expression | None" = None
    map: "Callable[[pa.RecordBatch], pa.RecordBatch] | None" = None
    split: str | None = None
    keep: tuple[float, float] = (0.0, 1.0)
    salt: str | int = ""
    filesystem: Any = None
    skip: int = 0
    limit: int | None = None
    weight: float | None = None
    on_error: Literal["raise", "skip"] = "raise"
    decoder: Literal["pages", "pyarrow"] | None = None
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "paths", _paths(self.paths, self.catalog, self.table, self.events, self.rows))
        if self.table is not None and self.filesystem is not None:
            raise SchemaError("a table is read by its own library: ParquetSource(table=...) takes no filesystem")
        for option in ("columns", "types", "defaults", "nulls"):
            set_field(self, option, mapping_of(option, getattr(self, option)))
        for name, kind in self.types.items():
            expressions.declared_type(name, kind)
        set_field(self, "join", _joins(self.join))
        columns = {
            name: column if isinstance(column, str) else expressions.checked(column, f"columns={{{name!r}: ...}}")
            for name, column in self.columns.items()
        }
        set_field(self, "columns", columns)
        for name, value in self.defaults.items():
            _check_default(name, value)
        for name, policy in self.nulls.items():
            if policy not in POLICIES:
                raise SchemaError(f"nulls={{{name!r}: ...}} must be one of {', '.join(POLICIES)}, got {policy!r}")
            if policy == "default" and name not in self.defaults:
                raise SchemaError(f"nulls={{{name!r}: 'default'}} needs the value: defaults={{{name!r}: ...}}")
        if self.filter is not None:
            set_field(self, "filter", expressions.checked_condition(self.filter, "filter=..."))
        checked_split(self.split, self.keep, self.salt)
        if self.map is not None and not callable(self.map):
            raise SchemaError(f"map takes a function of a pyarrow.RecordBatch, got {self.map!r}")
        set_field(self, "skip", integer("skip", self.skip, 0, error=SchemaError))
        set_field(self, "limit", integer("limit", self.limit, 1, optional=True, error=SchemaError))
        if self.weight is not None:
            set_field(self, "weight", plain(self.weight))
            if not is_number(self.weight) or not 0 <= self.weight < math.inf:
                raise SchemaError(
                    f"weight must be a positive number, or 0 for a source of which no row is read, got {self.weight!r}"
                )
        _check_follow(self)
        if not isinstance(self.retry, Retry):
            raise SchemaError(f"retry takes a Retry, got {self.retry!r}")
        set_field(self, "decoder", one_of("decoder", self.decoder, (*_DECODERS, None), error=SchemaError))
        set_field(self, "on_error", one_of("on_error", self.on_error, ("raise", "skip"), error=SchemaError))

    def policy(self, name: str) -> Policy:
        """The null policy of a field."""
        return self.nulls.get(name, "default" if name in self.defaults else "error")

    @property
    def label(self) -> str:
        """The first path, short enough for a message."""
        replacement = self.events or self.rows
        if replacement is not None:
            return replacement.label
        paths = self.path_list or (str(self.table or self.catalog),)
        return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    @property
    def table_parts(self) -> tuple[str, str, int | None]:
        """Kind, path and version of `table`."""
        match = _TABLE.fullmatch(self.table or "")
        assert match is not None
        return match[1], match[2], None if match[3] is None else int(match[3])

    @property
    def computed(self) -> dict[str, expressions.Expression]:
        """The fields with expressions."""
        return {
            name: replace(cast(expressions.Expression, column), types=self.declared)
            for name, column in self.columns.items()
            if type(column) is not str
        }

    def expression_of(self, name: str) -> expressions.Expression:
        """The expression of a field: the given one, or the cast of its column to the declared type."""
        column = self.columns.get(name, name)
        return (
            replace(expressions.from_column(column), types=self.declared)
            if isinstance(column, str)
            else self.computed[name]
        )

    @property
    def declared(self) -> "dict[str, pa.DataType]":
        """`types` as Arrow types."""
        return {name: expressions.declared_type(name, kind) for name, kind in self.types.items()}

    @property
    def hashed(self) -> frozenset[str]:
        """The columns whose types determine hashes, that of `split` included."""
        condition = self.condition
        columns = {name for expression in self.computed.values() for name in expression.hashed}
        if condition is not None:
            columns |= {*condition.hashed, *([] if condition.split is None else [condition.split.column])}
        return frozenset(columns)

    @property
    def uses_pages(self) -> bool:
        """Whether FreeScale decodes pages."""
        decoder = self.decoder or os.environ.get("FSDATA_DECODER") or "pages"
        if decoder not in _DECODERS:
            raise SchemaError(f"the environment variable FSDATA_DECODER must be pages or pyarrow, got {decoder!r}")
        return decoder == "pages"

    @property
    def only_pages(self) -> bool:
        """Whether `"pages"` was requested explicitly: then FreeScale also decodes lists in small row groups."""
        return self.uses_pages and bool(self.decoder or os.environ.get("FSDATA_DECODER"))

    @property
    def condition(self) -> expressions.Expression | None:
        """`filter` and `split`, checked, as one condition."""
        condition = cast("expressions.Expression | None", self.filter)
        both = expressions.with_split(condition, checked_split(self.split, self.keep, self.salt))
        return None if both is None else replace(both, types=self.declared)

    @property
    def path_list(self) -> tuple[str, ...]:
        """`paths` as a tuple of strings."""
        return cast(tuple[str, ...], self.paths)


class RowSource(ABC):
    """Rows of another format than Parquet, for `ParquetSource(rows=...)`: a subclass describes and reads them.

    Rows are in units, as those of a file are in row groups: units are shuffled and dealt to ranks, and decoding
    threads read each as a whole or in part. Column names, expressions, filters, null policies, joins, resume and the
    other options of a `ParquetSource` work as with files. `examples/arrow_ipc.py` reads Arrow IPC files.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in messages, for example a path."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that changes whenever the rows change, for example names, sizes and times of files. It must be the
        same on all hosts: ranks compare it, and saved states hold a hash of it."""

    @property
    @abstractmethod
    def schema(self) -> "pa.Schema":
        """All columns of the rows."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[int]:
        """The number of rows of each unit."""

    @abstractmethod
    def read(self, unit: int, start: int, stop: int, names: Sequence[str]) -> "pa.RecordBatch":
        """Rows [start, stop) of a unit, with the columns `names` of the types of `schema`. Blocks.

        Several threads call it at the same time. An OSError or pyarrow.ArrowException counts as damage of this unit,
        see `ParquetSource(on_error=...)`.
        """


class EventSource(ABC):
    """Rows that are events of a joined table instead of rows of files. `AsOf.anchors` makes one."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def form(self) -> str:
        """All options; for fingerprints."""

    @abstractmethod
    def lists(self, source: ParquetSource, wanted: Any) -> Mapping[str, bool]:
        """Lists that the first joined table of the source must provide because rows are made of them -> whether they
        are required.

        wanted: the fields of the rows.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A table whose fields are added to the rows, found by a key: the common base of `Join`, `AsOf` and `Lookup`.

    Args:
        source: the table. Its rows must have different keys.
        on: the key.
        fields: the schema's fields from the table; their columns follow `source.columns`.
    """

    source: ParquetSource
    _: KW_ONLY
    on: str
    fields: Sequence[str]

    kind: ClassVar[Literal["side table", "histories", "lookup table"]]
    """The kind of its table: `fsdata.compose.reading` opens it accordingly."""
    finds_values: ClassVar[bool] = False  # whether its fields are values for the ids of another field, not for rows

    def label(self, rows: str) -> str:
        """The name of its table in messages. rows: the name of the rows in messages."""
        return f"{rows}, {self.kind} {self.source.label}"

    @property
    def form(self) -> str:
        """All options except the source; for fingerprints."""
        raise NotImplementedError

    def check(self, source: ParquetSource, schema: Any, label: str) -> None:
        """Raise SchemaError if it contradicts the schema or other tables of its source."""

    def stores(self, group: Any) -> bool:
        """Whether the table has the events of a `Sequence` once per key, so that rows refer to windows of them."""
        return False

    @property
    def row_time(self) -> str | None:
        """The field or column of the rows with the time up to which they see events."""
        return None

    def _check(self, columns: Iterable[str], *, shared: bool) -> None:
        """Check the options that all kinds have, and make `fields` a tuple.

        columns: names that `source.columns` may have beside `fields`. shared: processes share the table.
        """
        kind = type(self).__name__
        if not isinstance(self.source, ParquetSource):
            raise SchemaError(f"{kind} takes a ParquetSource, got {self.source!r}")
        object.__setattr__(self, "on", text(f"{kind}(on=...)", self.on, what="key"))
        if isinstance(self.fields, str):
            raise SchemaError(
                f"{kind}(fields=...) takes a tuple of names, got {self.fields!r}; write ({self.fields!r},)"
            )
        object.__setattr__(self, "fields", tuple_of(self.fields, str))
        if not self.fields or not all(isinstance(name, str) and name for name in self.fields):
            raise SchemaError(
                f"{kind}(fields=...) names at least one field of the schema, in order, got {self.fields!r}"
            )
        object.__setattr__(self, "fields", tuple(map(plain, self.fields)))
        if len(set(self.fields)) < len(self.fields):
            raise SchemaError(f"{kind}(fields=...) names a field twice: {self.fields!r}")
        if self.source.map is not None and shared:
            raise SchemaError(
                f"the source of this {kind} takes no map: processes share the table, and their functions cannot be "
                "compared. Write the values into the table"
            )
        if self.source.join:
            raise SchemaError(f"the source of a {kind} cannot have joins itself: join both tables to the main source")
        if self.source.follow is not None and kind != "Join":
            raise SchemaError(f"the source of this {kind} is read once, when the loader is made: it cannot be followed")
        if self.source.skip or self.source.limit is not None:
            raise SchemaError(f"the source of a {kind} is read whole: it takes no skip and no limit")
        for option in ("columns", "defaults", "nulls"):
            if option == "defaults" and kind == "AsOf":
                continue  # may name any list of the table; checked when the table is opened
            allowed = {*self.fields, *columns} if option == "columns" else set(self.fields)
            unknown = sorted(set(getattr(self.source, option)) - allowed)
            if unknown:
                raise SchemaError(
                    f"{kind}(on={self.on!r}): its source's {option} names {', '.join(unknown)}, not a joined field: "
                    f"{', '.join(self.fields)}"
                )
        if self.source.weight is not None:
            raise SchemaError(f"the source of a {kind} takes no weight: joined tables are not mixed")


def _check_follow(source: ParquetSource) -> None:
    if source.follow is None:
        if any(join.source.follow is not None for join in source.join):
            raise SchemaError("a followed side table needs followed rows: give both sources a Follow")
        return
    if not isinstance(source.follow, Growing):
        raise SchemaError(f"follow takes a Follow, got {source.follow!r}")
    if len(source.path_list) != 1:
        raise SchemaError("a followed source takes one path, a folder or a glob, and no catalog")
    if source.skip or source.limit is not None:
        raise SchemaError("a followed source takes no skip and no limit: its rows are not known beforehand")


def _paths(value: Any, catalog: Any, table: Any, events: Any, rows: Any) -> tuple[str, ...]:
    paths = tuple_of(value, str | Path)
    if rows is not None:
        if not isinstance(rows, RowSource):
            raise SchemaError(f"rows takes a RowSource, got {rows!r}")
        if paths or any(option is not None for option in (catalog, table, events)):
            raise SchemaError("ParquetSource(rows=...) takes no paths, catalog, table or events")
        return ()
    if events is not None:
        if paths or catalog is not None or table is not None or not isinstance(events, EventSource):
            raise SchemaError(
                "ParquetSource(events=...) takes the result of AsOf.anchors, and no paths, catalog or table"
            )
        return ()
    if table is not None:
        if not isinstance(table, str) or not _TABLE.fullmatch(table):
            raise SchemaError(f"table is 'delta:PATH' or 'iceberg:PATH', with @VERSION if wanted, got {table!r}")
        if paths or catalog is not None:
            raise SchemaError("ParquetSource takes paths, a catalog of them or a table: one of the three")
        return ()
    if catalog is not None:
        if not isinstance(catalog, str | Path) or not str(catalog):
            raise SchemaError(f"ParquetSource(catalog=...) names one file, got {catalog!r}")
        if paths:
            raise SchemaError("ParquetSource takes paths or a catalog of them, not both")
        return ()
    if not paths or not all(isinstance(path, str | Path) and str(path) for path in paths):
        raise SchemaError(f"ParquetSource takes one or more paths, in order, got {value!r}")
    for path in map(str, paths):
        if "\0" in path or any("\ud800" <= character <= "\udfff" for character in path):
            raise SchemaError(f"paths={path!r}: no path contains such a character")
    return tuple(str(path) for path in paths)


def _joins(value: Any) -> tuple[Joined, ...]:
    joins = tuple_of(value, Joined)
    if not all(isinstance(join, Joined) for join in joins):
        raise SchemaError(f"join takes Join objects, AsOf objects and Lookup objects, got {value!r}")
    fields = [name for join in joins for name in join.fields]
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise SchemaError(f"two joins add the same field: {', '.join(twice)}")
    return joins


def _check_default(name: str, value: Any) -> None:
    if isinstance(value, str):
        return  # valid for passthrough fields; which fields these are is in the schema
    if not is_number(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be finite, got {value!r}")
