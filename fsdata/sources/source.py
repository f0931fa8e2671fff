"""`ParquetSource`: how files become the fields of a schema. Nothing is opened here."""

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from fsdata.errors import SchemaError
from fsdata.options import integer, is_number, mapping_of, one_of, plain, positive, text, tuple_of
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
    """How often a read of a remote file is repeated after an error of its transport.

    Waits grow four times with each try, from a tenth of a second on, and a random part of up to one half is left out of
    each, so that many ranks do not come back together.

    Args:
        tries: at most so many, the first included.
        max_s: seconds of all waits together.
    """

    tries: int = 5
    max_s: float = 30.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tries", integer("Retry(tries=...)", self.tries, 1, error=SchemaError))
        object.__setattr__(self, "max_s", plain(self.max_s))
        if not is_number(self.max_s) or not self.max_s >= 0:
            raise SchemaError(f"Retry(max_s=...) is a number of seconds, got {self.max_s!r}")


class Growing(ABC):
    """How the files of a source come while it is read: what a `Follow` says."""

    __slots__ = ()

    @property
    @abstractmethod
    def form(self) -> str:
        """What of it decides the order of rows; for fingerprints."""

    @property
    @abstractmethod
    def by_path(self) -> bool:
        """Whether files come in the order of their paths."""


@dataclass(frozen=True, slots=True, eq=False)
class ParquetSource:
    """One set of Parquet files and how it becomes the fields of a `Schema`.

    Args:
        paths: files, globs (`*`, `?`, `[...]`, `**`), folders (all `.parquet` and `.parq` files below, names that
            begin with `_` or `.` left out), or URLs of any pyarrow or fsspec filesystem. `key=value` folders are
            columns. Files of one glob or folder are read in the order of their names.
        catalog: a file that `freescale catalog` made of the paths, in their place: nothing is listed, and no footer is
            read before planning. A file that has changed since is an error when it is read.
        table: a Delta Lake or Iceberg table, in the place of paths: `delta:PATH` or `iceberg:PATH`, the folder of the
            table (of Iceberg also a metadata file), and behind it `@VERSION` (of Iceberg the id of a snapshot) for
            another version than the newest. The table's metadata says which files there are, and their partitions.
        events: made by `AsOf.anchors`, in the place of paths: rows are events of a table of histories.
        rows: a `RowSource`, in the place of paths: rows of another format than Parquet.
        columns: field -> column name, or a polars expression over the file's columns that gives one value (or one
            list) per row from that row alone, of the operations in `fsdata.sources.elementwise`; kept as an
            `Expression`. A field that is not named here is the column of the same name.
        types: column of the files, or key of a folder -> the type that its values have before anything else is made of
            them (`filter`, `split`, expressions, keys): `"string"`, `"int64"` or another type of numbers or times by
            its Arrow name; of lists, the type of their elements. Hashes tell types apart, so a key that is hashed has
            one type over all files, folders and sources; give it here where they differ. Values are cast exactly. A
            value that cannot be cast is a DataError. Keys of folders under a hash are `"string"` unless named here.
        defaults: field -> number for a missing column and for nulls under the policy `default`; for a passthrough field
            of text it is a string. In lists it stands for null elements; a list that is null or missing becomes
            defaults, as many as its group's other lists have elements (none if the whole group is null).
        nulls: field -> `default`, `drop` (leave the row out) or `error`. Unnamed: `default` if the field has a
            default, else `error`. In float fields NaN and infinities count as nulls. `time` and the main table's
            join keys have no policy: a null time is an error, a null key is a key without a match.
        join: side tables, see `Join`, histories that are stored once, see `AsOf`, and dimension tables, see `Lookup`.
        follow: see `Follow`; `paths` is one folder or glob then.
        filter: polars expression over the file's columns; rows where it is true are kept, before anything else.
        map: function(pyarrow.RecordBatch) -> pyarrow.RecordBatch, for what no expression says. It gets the columns that
            fields are made of, under the names of the fields, after `filter` and expressions and before null policies.
            It gives the same columns and as many rows, in types that serve the same fields. Decoding threads call it
            with any number of rows, and with some rows twice: it must be a function of each row alone. States know it
            by module and name; its code is not compared. Fields of partitions, defaults and joins do not pass it, nor
            does the order of `mix="time"`.
        split: a column of integers or text: the rows whose values hash into `keep` are read, for sets that share no
            user (or item, or day). A row is in the same set on every rank, in every run and version. Rows where the
            column is null are in no set. As a `filter`, it comes before anything else.
        keep: (low, high) of [0, 1): `(0, 0.98)` keeps about 98 % of the values, `(0.98, 1)` the others.
        salt: another one deals the values out anew.
        filesystem: a pyarrow or fsspec filesystem that `paths` belong to.
        skip: leave out so many rows, in the order of files and before `filter`.
        limit: read at most so many of the rest: for runs on a part of the data. Of `Join` and `AsOf` all rows are read.
        weight: share of this source under `mix="weighted"`.
        retry: how often reads of remote files are repeated; local files are read once.
        decoder: `"pages"`: lists of numbers are decoded by FreeScale, all else by pyarrow; `"pyarrow"`: all by
            pyarrow. The results are the same. None: what the environment variable `FSDATA_DECODER` says, and without it
            `"pages"`, except for lists in small row groups that are decoded together. `describe()` says which lists
            are left to pyarrow, and why.
        on_error: `raise` at a corrupt file or row group, or `skip` it: counted and listed.

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
            set_field(self, "weight", positive("weight", self.weight, error=SchemaError))
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
        given = self.events or self.rows
        if given is not None:
            return given.label
        paths = self.path_list or (str(self.table or self.catalog),)
        return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    @property
    def table_parts(self) -> tuple[str, str, int | None]:
        """Kind, path and version of `table`."""
        found = _TABLE.fullmatch(self.table or "")
        assert found is not None
        return found[1], found[2], None if found[3] is None else int(found[3])

    @property
    def computed(self) -> dict[str, expressions.Expression]:
        """The fields that are made by expressions."""
        return {
            name: replace(cast(expressions.Expression, each), types=self.declared)
            for name, each in self.columns.items()
            if type(each) is not str
        }

    def expression_of(self, name: str) -> expressions.Expression:
        """The expression of a field: the given one, or the cast of its column to the declared type."""
        column = self.columns.get(name, name)
        return (
            replace(expressions.of_column(column), types=self.declared)
            if isinstance(column, str)
            else self.computed[name]
        )

    @property
    def declared(self) -> "dict[str, pa.DataType]":
        """`types` as Arrow types."""
        return {name: expressions.declared_type(name, kind) for name, kind in self.types.items()}

    @property
    def hashed(self) -> frozenset[str]:
        """The columns whose type decides what a hash gives, that of `split` included."""
        condition = self.condition
        found = {name for each in self.computed.values() for name in each.hashed}
        if condition is not None:
            found |= {*condition.hashed, *([] if condition.split is None else [condition.split.column])}
        return frozenset(found)

    @property
    def uses_pages(self) -> bool:
        """Whether pages are decoded here, and not by pyarrow."""
        decoder = self.decoder or os.environ.get("FSDATA_DECODER") or "pages"
        if decoder not in _DECODERS:
            raise SchemaError(f"the environment variable FSDATA_DECODER must be pages or pyarrow, got {decoder!r}")
        return decoder == "pages"

    @property
    def only_pages(self) -> bool:
        """Whether `"pages"` was chosen: then no list is left to pyarrow for being in a small row group."""
        return self.uses_pages and bool(self.decoder or os.environ.get("FSDATA_DECODER"))

    @property
    def condition(self) -> expressions.Expression | None:
        """`filter` as it was checked, and `split`."""
        given = cast("expressions.Expression | None", self.filter)
        found = expressions.with_split(given, checked_split(self.split, self.keep, self.salt))
        return None if found is None else replace(found, types=self.declared)

    @property
    def path_list(self) -> tuple[str, ...]:
        """`paths` as given, always a tuple of strings."""
        return cast(tuple[str, ...], self.paths)


class RowSource(ABC):
    """Rows of another format than Parquet, for `ParquetSource(rows=...)`: a subclass says what there is, and reads it.

    Rows come in units, as those of a file come in row groups: units are shuffled and dealt to ranks, and decoding
    threads read each as a whole or in part. Column names, expressions, filters, null policies, joins, resume and all
    else of a `ParquetSource` are then as with files. `examples/arrow_ipc.py` reads Arrow IPC files.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages call it: a path, say."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that is another one where the rows are others: names, sizes and times of files, say. The same on all
        hosts: ranks compare it, and saved states hold a hash of it."""

    @property
    @abstractmethod
    def schema(self) -> "pa.Schema":
        """All columns that rows have."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[int]:
        """How many rows each unit has."""

    @abstractmethod
    def read(self, unit: int, start: int, stop: int, names: Sequence[str]) -> "pa.RecordBatch":
        """Rows [start, stop) of a unit, with the columns `names` of the types of `schema`. Blocks.

        Several threads call it at once. What it raises as OSError or pyarrow.ArrowException is damage of this unit,
        see `ParquetSource(on_error=...)`.
        """


class EventSource(ABC):
    """Rows that are events of a joined table, in place of rows of files: what `AsOf.anchors` makes."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages call it."""

    @property
    @abstractmethod
    def form(self) -> str:
        """What it says; for fingerprints."""

    @abstractmethod
    def lists(self, source: ParquetSource, wanted: Any) -> Mapping[str, bool]:
        """Lists that the first joined table of the source needs, as rows are made of them, and whether it must have
        them.

        wanted: the fields of the rows.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A table whose fields are added to the rows, found by a key: what the kinds of joins have in common.

    Args:
        source: the table. Its rows must have different keys.
        on: the key.
        fields: the schema's fields that come from the table; their columns follow `source.columns`.
    """

    source: ParquetSource
    _: KW_ONLY
    on: str
    fields: Sequence[str]

    kind: ClassVar[Literal["side table", "histories", "lookup table"]]
    """Of its table: `fsdata.compose.reading` opens it accordingly."""
    finds_values: ClassVar[bool] = False  # its fields are values for the ids of another field, and not for rows

    def label(self, rows: str) -> str:
        """How messages call its table. rows: how they call the rows."""
        return f"{rows}, {self.kind} {self.source.label}"

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        raise NotImplementedError

    def check(self, source: ParquetSource, schema: Any, label: str) -> None:
        """Raise SchemaError if it does not go together with the schema, or with other tables of its source."""

    def stores(self, group: Any) -> bool:
        """Whether it stores the events of a `Sequence` once per key, and rows see windows of them."""
        return False

    @property
    def row_time(self) -> str | None:
        """The field or column of the rows that says as of when they see it."""
        return None

    def _check(self, columns: Iterable[str], *, shared: bool) -> None:
        """Check what all kinds have, and make `fields` a tuple.

        columns: what `source.columns` may name beside those. shared: processes share the table.
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
                f"the source of this {kind} has no map: processes share the table, and cannot tell whether their "
                "functions are the same. Write the values into the table"
            )
        if self.source.join:
            raise SchemaError(f"the source of a {kind} cannot have joins itself: join both tables to the main source")
        if self.source.follow is not None and kind != "Join":
            raise SchemaError(f"the source of this {kind} is read once, when the loader is made: it cannot be followed")
        if self.source.skip or self.source.limit is not None:
            raise SchemaError(f"the source of a {kind} is read whole: it has no skip and no limit")
        for option in ("columns", "defaults", "nulls"):
            if option == "defaults" and kind == "AsOf":
                continue  # of all lists that are read; which these are is known when the table is opened
            known = {*self.fields, *columns} if option == "columns" else set(self.fields)
            unknown = sorted(set(getattr(self.source, option)) - known)
            if unknown:
                raise SchemaError(
                    f"{kind}(on={self.on!r}): its source's {option} names {', '.join(unknown)}, not a joined field: "
                    f"{', '.join(self.fields)}"
                )
        if self.source.weight is not None:
            raise SchemaError(f"the source of a {kind} is not mixed: leave its weight out")


def _check_follow(source: ParquetSource) -> None:
    if source.follow is None:
        if any(join.source.follow is not None for join in source.join):
            raise SchemaError("a side table that is followed needs rows that are followed: give both a Follow")
        return
    if not isinstance(source.follow, Growing):
        raise SchemaError(f"follow takes a Follow, got {source.follow!r}")
    if len(source.path_list) != 1:
        raise SchemaError("a source that is followed has one path, a folder or a glob, and no catalog")
    if source.skip or source.limit is not None:
        raise SchemaError("a source that is followed has no skip and no limit: there is no whole to take a part of")


def _paths(value: Any, catalog: Any, table: Any, events: Any, rows: Any) -> tuple[str, ...]:
    paths = tuple_of(value, str | Path)
    if rows is not None:
        if not isinstance(rows, RowSource):
            raise SchemaError(f"rows takes a RowSource, got {rows!r}")
        if paths or any(each is not None for each in (catalog, table, events)):
            raise SchemaError(
                "ParquetSource(rows=...) has no paths, catalog, table or events: it reads the rows itself"
            )
        return ()
    if events is not None:
        if paths or catalog is not None or table is not None or not isinstance(events, EventSource):
            raise SchemaError("ParquetSource(events=...) is made by AsOf.anchors, and has no paths, catalog or table")
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
        if "\0" in path or any("\ud800" <= sign <= "\udfff" for sign in path):
            raise SchemaError(f"paths={path!r}: no path contains such a character")
    return tuple(str(path) for path in paths)


def _joins(value: Any) -> tuple[Joined, ...]:
    joins = tuple_of(value, Joined)
    if not all(isinstance(join, Joined) for join in joins):
        raise SchemaError(f"join takes Join objects, AsOf objects and Lookup objects, got {value!r}")
    fields = [name for join in joins for name in join.fields]
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise SchemaError(f"two joins bring the same field: {', '.join(twice)}")
    return joins


def _check_default(name: str, value: Any) -> None:
    if isinstance(value, str):
        return  # right for passthrough fields, which only the schema knows
    if not is_number(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be finite, got {value!r}")
