"""`ParquetSource`, `Join` and `AsOf`: how files become the fields of a schema. Nothing is opened here."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fsdata.errors import SchemaError
from fsdata.sources import expressions
from fsdata.sources.follow import Follow, seconds
from fsdata.sources.hash_split import HashSplit

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


Policy = Literal["default", "drop", "error"]
POSITION = "position"  # where a row stands in the history of its key
MOST_POOLS = 8  # bits of a mask, which is kept as one byte for each event
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
        if type(self.tries) is not int or self.tries < 1:
            raise SchemaError(f"Retry(tries=...) is an integer of at least 1, got {self.tries!r}")
        if not _is_number(self.max_s) or not self.max_s >= 0:
            raise SchemaError(f"Retry(max_s=...) is a number of seconds, got {self.max_s!r}")


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
        columns: field -> column name, or a polars expression over the file's columns that gives one value (or one
            list) per row from that row alone, of the operations in `fsdata.sources.elementwise`; kept as an
            `Expression`. A field that is not named here is the column of the same name.
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
        decoder: `"pages"`: columns of numbers and of lists of numbers are decoded by FreeScale, others by pyarrow;
            `"pyarrow"`: all by pyarrow. The results are the same. None: what the environment variable `FSDATA_DECODER`
            says, and without it `"pages"`. `describe()` says which columns are left to pyarrow, and why.
        on_error: `raise` at a corrupt file or row group, or `skip` it: counted and listed.

    Raises:
        SchemaError: options that contradict each other.
    """

    paths: str | Path | Sequence[str | Path] = ()
    _: KW_ONLY
    catalog: str | Path | None = None
    table: str | None = None
    events: "Events | None" = None
    columns: Mapping[str, "str | pl.Expr | expressions.Expression"] = field(default_factory=dict)
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    nulls: Mapping[str, Policy] = field(default_factory=dict)
    join: Sequence["Join | AsOf | Lookup"] = ()
    follow: Follow | None = None
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
        set_field(self, "paths", _paths(self.paths, self.catalog, self.table, self.events))
        if self.table is not None and self.filesystem is not None:
            raise SchemaError("a table is read by its own library: ParquetSource(table=...) takes no filesystem")
        for option in ("columns", "defaults", "nulls"):
            set_field(self, option, _mapping(option, getattr(self, option)))
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
        if self.split is None and (self.keep not in ((0.0, 1.0), [0.0, 1.0]) or self.salt != ""):
            raise SchemaError("keep=... and salt=... belong to split=..., the column whose hash they are asked of")
        if self.split is not None:
            _part(self.split, self.keep, self.salt)
        if self.map is not None and not callable(self.map):
            raise SchemaError(f"map takes a function of a pyarrow.RecordBatch, got {self.map!r}")
        for name, least in (("skip", 0), ("limit", 1)):
            value = getattr(self, name)
            if not (name == "limit" and value is None) and (type(value) is not int or value < least):
                raise SchemaError(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.weight is not None and not (_is_number(self.weight) and 0 < self.weight < math.inf):
            raise SchemaError(f"weight must be a positive number, got {self.weight!r}")
        _check_follow(self)
        if not isinstance(self.retry, Retry):
            raise SchemaError(f"retry takes a Retry, got {self.retry!r}")
        if self.decoder not in (None, *_DECODERS):
            raise SchemaError(f"decoder must be 'pages', 'pyarrow' or None, got {self.decoder!r}")
        if self.on_error not in ("raise", "skip"):
            raise SchemaError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")

    def policy(self, name: str) -> Policy:
        """The null policy of a field."""
        return self.nulls.get(name, "default" if name in self.defaults else "error")

    @property
    def label(self) -> str:
        """The first path, short enough for a message."""
        if self.events is not None:
            return f"events of {self.events.of.source.label}"
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
            name: cast(expressions.Expression, each) for name, each in self.columns.items() if type(each) is not str
        }

    @property
    def uses_pages(self) -> bool:
        """Whether pages are decoded here, and not by pyarrow."""
        decoder = self.decoder or os.environ.get("FSDATA_DECODER") or "pages"
        if decoder not in _DECODERS:
            raise SchemaError(f"the environment variable FSDATA_DECODER must be pages or pyarrow, got {decoder!r}")
        return decoder == "pages"

    @property
    def condition(self) -> expressions.Expression | None:
        """`filter` as it was checked, and `split`."""
        given = cast("expressions.Expression | None", self.filter)
        return expressions.with_split(given, None if self.split is None else _part(self.split, self.keep, self.salt))

    @property
    def path_list(self) -> tuple[str, ...]:
        """`paths` as given, always a tuple of strings."""
        return cast(tuple[str, ...], self.paths)


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """A side table whose fields are added to every row by key (left join).

    The table is read into memory once, when the source is opened. Null policies and defaults of the joined fields are
    those of `source`; a key without a match is a null of each of them, if `missing` does not say otherwise.

    Args:
        source: the side table. Its rows must have different keys.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers.
        fields: the schema's fields that come from the side table; their columns follow `source.columns`.
        missing: what becomes of a row whose key has no match: `"default"`, every field has its default (all need one);
            `"mask"`, it has its default or 0, and `Batch.mask[field]` is False; `"drop"`, the row is left out;
            `"error"`. None: what the policies of the fields say.
        wait: of a `source` that is followed, as the source of the rows has to be then: a file of rows is read when all
            of its keys have a match, or when it was not changed for so long ("30m"). Files after it wait, too. A match
            may also come before its row, by as much. The table is not held in memory; only what rows need is.
        bucketed: keep the table on disk, in the folder for temporary files (`TMPDIR`), once for all ranks of a host,
            for tables that do not fit in memory. Inside a shuffle window rows then come in groups, one for each of so
            many stretches of the table, so that what lies together is read together. Without shuffling rows keep their
            order.

    Raises:
        SchemaError: options that contradict each other.
    """

    source: ParquetSource
    _: KW_ONLY
    on: str
    fields: Sequence[str]
    missing: Literal["mask", "default", "drop", "error"] | None = None
    wait: str | None = None
    bucketed: int | None = None

    @property
    def wait_s(self) -> float:
        """`wait` in seconds."""
        return 0.0 if self.wait is None else seconds(self.wait, "wait")

    def __post_init__(self) -> None:
        if self.missing not in (None, "mask", *POLICIES):
            raise SchemaError(
                f"Join(missing=...) must be 'mask', {', '.join(map(repr, POLICIES))} or None, got {self.missing!r}"
            )
        _check_join(self, columns=(self.on,))
        if self.bucketed is not None and (type(self.bucketed) is not int or self.bucketed < 1):
            raise SchemaError(f"Join(bucketed=...) is an integer of at least 1 or None, got {self.bucketed!r}")
        if self.bucketed is not None and self.wait is not None:
            raise SchemaError(
                "Join(bucketed=...) is for a table that is read once, and wait=... for one that is followed"
            )
        if (self.wait is None) != (self.source.follow is None):
            raise SchemaError(
                "Join(wait=...) goes with a source that is followed: give both, or none of them to read the table once"
            )
        if self.source.follow is not None and self.source.follow.by != "path":
            raise SchemaError("the source of a Join is followed by path: its rows have no order")
        if self.wait is not None:
            seconds(self.wait, "wait")
        without = [name for name in self.fields if name not in self.source.defaults]
        if self.missing == "default" and without:
            raise SchemaError(
                f"Join(missing='default') needs the values: defaults={{{without[0]!r}: ...}} of its source"
            )

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        missing = f" missing={self.missing}" if self.missing else ""
        wait = f" wait={self.wait}" if self.wait else ""
        bucketed = f" bucketed={self.bucketed}" if self.bucketed else ""
        return f"join {self.on} {' '.join(self.fields)}{missing}{wait}{bucketed}"


@dataclass(frozen=True, slots=True, eq=False)
class AsOf:
    """Histories that are stored once per key, taken for every row as of its time.

    The table has one row per key, with aligned lists in ascending time (`freescale histories` makes one of an event
    log). A row gets the events of its key that happened before it, and of those as many as `Sequence(max_length, keep)`
    says. The table is held in memory once per host, in the integers of the files, shared by the ranks of the host.

    A key without a history has none: its lists are empty, unless `source.nulls` says `drop` or `error` for a field.
    Null elements need a default in `source.defaults`, by the name of the list where it is no field.

    Args:
        source: the table of histories. Its rows must have different keys.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers.
        at: the time of a row, a field or column of the main source. `time` counts the same unit: both are timestamps or
            dates, or both are integers. `"position"`: rows are placed by their `position`, a column of integers that
            says how many events of the history come before the row. Then ties in time do not matter, and the rows may
            be the events themselves, see `anchors`.
        time: the times of the events, a list column of `source`, ascending in every row; with `at="position"` in any
            order, or None.
        fields: the schema's fields that come from the histories: all fields of one or several sequences. `time` and
            `known_at` may be among them; timestamps and dates are nanoseconds there, whatever the unit of the column.
        known_at: a second list of times, when each event became known. Those that became known at `at` or later do not
            count for the row, wherever they stand in the history.
        where: polars expression over the lists' elements (fields, `time`, `known_at` and other lists of integers, by
            the names they have in the schema or the files), as if each event were a row. Only events for which it is
            true are kept.
        inclusive: events at the time of the row count, too. They may tell what the row is to predict.
        scan: of the events before a row, only so many are looked at, the last ones; None: all.
        pools: name -> polars expression over the lists' elements, as in `where`: several kinds of events in one
            history. A row gets the last `cap` events of each pool, put back into the order of the history; events of no
            pool are left out. At most 8. Their places are found once, so a row costs what it keeps, not what it looks
            at.
        cap: how many events of each pool, or pool -> how many; None: all, so that `Sequence(max_length=...)` keeps the
            last events of any pool.
        mask: a field of ids that says of each event which pools it is in: 1 for the first, 2 for the second, 4 for the
            third, added up.
        bucketed: keep the table on disk, in the folder for temporary files (`TMPDIR`), for tables that do not fit in
            memory. Inside a shuffle window rows then come in groups, one for each of so many buckets of histories, so
            that those of one bucket are in memory while they are used. Without shuffling rows keep their order.

    Raises:
        SchemaError: options that contradict each other.
    """

    source: ParquetSource
    _: KW_ONLY
    on: str
    at: str
    time: str | None = None
    fields: Sequence[str]
    known_at: str | None = None
    where: "pl.Expr | expressions.Expression | None" = None
    inclusive: bool = False
    scan: int | None = None
    pools: "Mapping[str, pl.Expr | expressions.Expression]" = field(default_factory=dict)
    cap: int | Mapping[str, int] | None = None
    mask: str | None = None
    bucketed: int | None = None

    def __post_init__(self) -> None:
        if self.bucketed is not None and (type(self.bucketed) is not int or self.bucketed < 1):
            raise SchemaError(f"AsOf(bucketed=...) is an integer of at least 1 or None, got {self.bucketed!r}")
        optional = (each for each in ("time", "known_at", "mask") if getattr(self, each) is not None)
        for option in ("at", *optional):
            if not isinstance(getattr(self, option), str) or not getattr(self, option):
                raise SchemaError(f"AsOf({option}=...) names one column, got {getattr(self, option)!r}")
        if self.time is None and self.at != POSITION:
            raise SchemaError("AsOf(time=...) names the times of the events; only at='position' does without")
        if self.scan is not None and (type(self.scan) is not int or self.scan < 1):
            raise SchemaError(f"AsOf(scan=...) is an integer of at least 1 or None, got {self.scan!r}")
        self._check_pools()
        if not isinstance(self.inclusive, bool):
            raise SchemaError(f"AsOf(inclusive=...) is True or False, got {self.inclusive!r}")
        if self.where is not None:
            object.__setattr__(self, "where", expressions.checked_condition(self.where, "AsOf(where=...)"))
        _check_join(self, columns=(self.on, *self.times, *self.only_read))
        if self.mask is not None and self.mask not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, self.mask))
        if self.at in self.fields:
            raise SchemaError(f"AsOf(at={self.at!r}) is the time of a row, and one of the fields of its history, too")

    def _check_pools(self) -> None:
        pools = {
            name: expressions.checked_condition(each, f"AsOf(pools={{{name!r}: ...}})")
            for name, each in _mapping("AsOf(pools=...)", self.pools).items()
        }
        object.__setattr__(self, "pools", pools)
        if len(pools) > MOST_POOLS:
            raise SchemaError(f"AsOf(pools=...) has {len(pools)} pools; at most {MOST_POOLS} can be told apart")
        caps = self.cap.values() if isinstance(self.cap, Mapping) else [] if self.cap is None else [self.cap]
        if not all(type(each) is int and each >= 1 for each in caps):
            raise SchemaError(f"AsOf(cap=...) is an integer of at least 1, or one for pools by name, got {self.cap!r}")
        unknown = set(self.cap) - set(pools) if isinstance(self.cap, Mapping) else set()
        if unknown:
            named = ", ".join(sorted(unknown))
            raise SchemaError(f"AsOf(cap=...) names {named}: pools are {', '.join(pools) or 'none'}")
        if not pools and (self.cap is not None or self.mask is not None):
            raise SchemaError("AsOf(cap=..., mask=...) say something of pools: give AsOf(pools={name: expression})")
        by_place = "pools" if pools else "at='position'" if self.at == POSITION else ""
        if by_place and self.known_at is not None:
            raise SchemaError(f"AsOf(known_at=...) and {by_place} do not go together: events count by their place")
        if self.at == POSITION and self.where is not None:
            raise SchemaError("AsOf(where=...) would move the places of events, which at='position' counts: use pools")

    @property
    def times(self) -> tuple[str, ...]:
        """`time` if there is one, and `known_at` if it is another one."""
        return tuple(dict.fromkeys(each for each in (self.time, self.known_at) if each is not None))

    @property
    def by_position(self) -> bool:
        return self.at == POSITION

    @property
    def caps(self) -> tuple[int | None, ...]:
        """Of each pool."""
        of = self.cap if isinstance(self.cap, Mapping) else dict.fromkeys(self.pools, self.cap)
        return tuple(of.get(name) for name in self.pools)

    def anchors(
        self,
        *,
        where: "pl.Expr | expressions.Expression | None" = None,
        min_history: int = 0,
        order: Literal["user", "time"] = "user",
        time_window: int | None = None,
        split: str | None = None,
        keep: tuple[float, float] = (0.0, 1.0),
        salt: str | int = "",
        **options: Any,
    ) -> "ParquetSource":
        """A source whose rows are events of the histories themselves: no second table is written.

        A row is one event, with its `position` in the history of its key, the key, the values that the lists of the
        table have for it, and what a `Lookup` finds for these: all as columns of one value, by their names. Fields of a
        sequence or of the candidates that are made of them are lists of one element. Its history is what comes before.

        Args:
            where: polars expression over these columns, without looked-up ones; events for which it is true are rows.
            min_history: so many events of the history come before a row at least.
            order: of the rows: history after history in the order of the keys, or by `time` (ties in that order).
            time_window: cut time into windows so long, in the unit of `time`, from the first row's time on (whatever
                `split` says). An epoch of a loader is then one window: epoch n the nth.
            split, keep, salt: as of `ParquetSource`; of the key.
            options: other options of `ParquetSource`: `columns`, `defaults`, `nulls`, `join`, `map`, `weight`.

        Raises:
            SchemaError: options that contradict each other.
        """
        condition = None if where is None else expressions.checked_condition(where, "anchors(where=...)")
        if split is not None and split != self.on:
            raise SchemaError(f"anchors(split={split!r}): histories are split by their key, {self.on!r}")
        part = None if split is None else _part(split, keep, salt)
        if split is None and (keep not in ((0.0, 1.0), [0.0, 1.0]) or salt != ""):
            raise SchemaError("keep=... and salt=... belong to split=..., the key whose hash they are asked of")
        unknown = sorted(
            {"paths", "catalog", "table", "events", "follow", "filter", "filesystem", "skip", "limit"} & set(options)
        )
        if unknown:
            raise SchemaError(f"anchors has no option {', '.join(unknown)}: its rows are the events of the AsOf")
        events = Events(self, condition, min_history, order, time_window, part)
        return ParquetSource(events=events, join=(self, *_joins(options.pop("join", ()))), **options)

    @property
    def condition(self) -> expressions.Expression | None:
        """`where` as it was checked."""
        return cast("expressions.Expression | None", self.where)

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        times = f"{self.at} {self.time} {self.known_at} inclusive={self.inclusive}"
        where = None if self.condition is None else self.condition.form
        bucketed = f" bucketed={self.bucketed}" if self.bucketed else ""
        scan = f" scan={self.scan}" if self.scan else ""
        pools = [f" pool {each.form} cap={cap}" for each, cap in zip(self.of_pools, self.caps, strict=True)]
        mask = f" mask={self.mask}" if self.mask else ""
        return f"as of {self.on} {times} {' '.join(self.fields)} where {where}{scan}{''.join(pools)}{mask}{bucketed}"

    @property
    def of_pools(self) -> tuple[expressions.Expression, ...]:
        """`pools` as they were checked."""
        return tuple(cast(expressions.Expression, each) for each in self.pools.values())

    @property
    def only_read(self) -> tuple[str, ...]:
        """Lists that only `where` and `pools` need."""
        conditions = [*self.of_pools, *([] if self.condition is None else [self.condition])]
        read = dict.fromkeys(name for each in conditions for name in each.columns)
        return tuple(name for name in read if name not in (*self.fields, *self.times))


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Which events of a table of histories are rows, see `AsOf.anchors`, which makes it."""

    of: AsOf
    condition: expressions.Expression | None
    min_history: int
    order: Literal["user", "time"]
    time_window: int | None
    split: HashSplit | None

    def __post_init__(self) -> None:
        if type(self.min_history) is not int or self.min_history < 0:
            raise SchemaError(f"anchors(min_history=...) is an integer of at least 0, got {self.min_history!r}")
        if self.order not in ("user", "time"):
            raise SchemaError(f"anchors(order=...) is 'user' or 'time', got {self.order!r}")
        if self.time_window is not None and (type(self.time_window) is not int or not 1 <= self.time_window < 2**63):
            raise SchemaError(f"anchors(time_window=...) is an integer from 1 to 2**63 - 1, got {self.time_window!r}")
        if self.of.time is None and (self.order == "time" or self.time_window is not None):
            raise SchemaError("anchors(order='time', time_window=...) need AsOf(time=...), the times of the events")
        if not self.of.by_position:
            raise SchemaError("anchors have a position and see what comes before it: give AsOf(at='position')")

    @property
    def form(self) -> str:
        """What it says; for fingerprints."""
        where = None if self.condition is None else self.condition.form
        split = "" if self.split is None else f" {self.split.form}"
        window = f" time_window={self.time_window}" if self.time_window else ""
        return f"events where {where} min_history={self.min_history} order={self.order}{window}{split}"


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Values of a dimension table for every id of a field: an item's artist and album.

    The fields are as long as the one that is looked up: those of a sequence stand beside its events, those of the
    candidates beside these, those of a context id are context. Values are found where ids are copied into a batch, so
    nothing of them is stored with the rows. The table is held once per host: as an array by id where ids lie close
    together, else as a hash table.

    Args:
        source: the dimension table. Its rows must have different keys.
        on: the field whose ids are looked up, and the key column of the table, which `source.columns` may rename.
        fields: the schema's fields that are found; their columns follow `source.columns`. Of numbers.
        default: the value of ids that the table does not have, or field -> its value.

    Raises:
        SchemaError: options that contradict each other.
    """

    source: ParquetSource
    _: KW_ONLY
    on: str
    fields: Sequence[str]
    default: float | Mapping[str, float] = 0

    def __post_init__(self) -> None:
        _check_join(self, columns=(self.on,))
        if self.on in self.fields:
            raise SchemaError(f"Lookup(on={self.on!r}) looks up its own field: name what is found otherwise")
        given = self.default if isinstance(self.default, Mapping) else dict.fromkeys(self.fields, self.default)
        unknown = sorted(set(given) - set(self.fields))
        if unknown:
            raise SchemaError(f"Lookup(default=...) names {', '.join(unknown)}, not one of {', '.join(self.fields)}")
        for name, value in given.items():
            if not _is_number(value) or not math.isfinite(value):
                raise SchemaError(f"Lookup(default=...) is a finite number, got {value!r} for {name!r}")

    def default_of(self, name: str) -> float:
        return self.default.get(name, 0) if isinstance(self.default, Mapping) else self.default

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        found = " ".join(f"{name}:{self.default_of(name)!r}" for name in self.fields)
        return f"lookup {self.on} {found}"


def _part(split: str, keep: Sequence[float], salt: str | int) -> HashSplit:
    if not isinstance(keep, tuple | list) or len(keep) != 2 or not all(map(_is_number, keep)):
        raise SchemaError(f"keep is (low, high), two numbers, got {keep!r}")
    if not isinstance(salt, str | int):
        raise SchemaError(f"salt is a text or an integer, got {salt!r}")
    return HashSplit(split, float(keep[0]), float(keep[1]), str(salt))


def _check_follow(source: ParquetSource) -> None:
    if source.follow is None:
        if any(join.source.follow is not None for join in source.join):
            raise SchemaError("a side table that is followed needs rows that are followed: give both a Follow")
        return
    if not isinstance(source.follow, Follow):
        raise SchemaError(f"follow takes a Follow, got {source.follow!r}")
    if len(source.path_list) != 1:
        raise SchemaError("a source that is followed has one path, a folder or a glob, and no catalog")
    if source.skip or source.limit is not None:
        raise SchemaError("a source that is followed has no skip and no limit: there is no whole to take a part of")


def _check_join(join: Join | AsOf | Lookup, columns: Iterable[str]) -> None:
    """Check what all kinds have, and make `fields` a tuple. columns: what `source.columns` may name beside those."""
    kind = type(join).__name__
    if not isinstance(join.source, ParquetSource):
        raise SchemaError(f"{kind} takes a ParquetSource, got {join.source!r}")
    if not isinstance(join.on, str) or not join.on:
        raise SchemaError(f"{kind}(on=...) names one key, got {join.on!r}")
    if isinstance(join.fields, str):
        raise SchemaError(f"{kind}(fields=...) takes a tuple of names, got {join.fields!r}; write ({join.fields!r},)")
    object.__setattr__(join, "fields", _tuple_of(join.fields, str))
    if not join.fields or not all(isinstance(name, str) and name for name in join.fields):
        raise SchemaError(f"{kind}(fields=...) names at least one field of the schema, in order, got {join.fields!r}")
    if len(set(join.fields)) < len(join.fields):
        raise SchemaError(f"{kind}(fields=...) names a field twice: {join.fields!r}")
    if join.source.map is not None and (not isinstance(join, Join) or join.bucketed is not None):
        raise SchemaError(
            f"the source of this {kind} has no map: processes share the table, and cannot tell whether their functions "
            "are the same. Write the values into the table"
        )
    if join.source.join:
        raise SchemaError(f"the source of a {kind} cannot have joins itself: join both tables to the main source")
    if join.source.follow is not None and kind != "Join":
        raise SchemaError(f"the source of this {kind} is read once, when the loader is made: it cannot be followed")
    if join.source.skip or join.source.limit is not None:
        raise SchemaError(f"the source of a {kind} is read whole: it has no skip and no limit")
    for option in ("columns", "defaults", "nulls"):
        if option == "defaults" and kind == "AsOf":
            continue  # of all lists that are read; which these are is known when the table is opened
        known = {*join.fields, *columns} if option == "columns" else set(join.fields)
        unknown = sorted(set(getattr(join.source, option)) - known)
        if unknown:
            raise SchemaError(
                f"{kind}(on={join.on!r}): its source's {option} names {', '.join(unknown)}, not a joined field: "
                f"{', '.join(join.fields)}"
            )
    if join.source.weight is not None:
        raise SchemaError(f"the source of a {kind} is not mixed: leave its weight out")


def _paths(value: Any, catalog: Any, table: Any, events: Any) -> tuple[str, ...]:
    paths = _tuple_of(value, str | Path)
    if events is not None:
        if paths or catalog is not None or table is not None or not isinstance(events, Events):
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


def _tuple_of(value: Any, kind: Any) -> tuple[Any, ...]:
    """One of a kind or several of them as a tuple; what is neither is left for the caller to refuse, as is a set: it
    has another order in every process."""
    several = isinstance(value, Iterable) and not isinstance(value, kind | set | frozenset)
    return tuple(value) if several else (value,)


def _mapping(option: str, value: Any) -> dict[str, Any]:
    mapping = {} if value is None else value
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) and name for name in mapping):
        raise SchemaError(f"{option} maps field names, got {value!r}")
    return dict(mapping)


def _joins(value: Any) -> tuple[Join | AsOf | Lookup, ...]:
    joins = _tuple_of(value, Join | AsOf | Lookup)
    if not all(isinstance(join, Join | AsOf | Lookup) for join in joins):
        raise SchemaError(f"join takes Join objects, AsOf objects and Lookup objects, got {value!r}")
    fields = [name for join in joins for name in join.fields]
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise SchemaError(f"two joins bring the same field: {', '.join(twice)}")
    return joins


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_default(name: str, value: Any) -> None:
    if isinstance(value, str):
        return  # right for passthrough fields, which only the schema knows
    if not _is_number(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise SchemaError(f"defaults={{{name!r}: ...}} must be finite, got {value!r}")
