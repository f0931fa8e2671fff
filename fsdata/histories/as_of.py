"""`AsOf`: histories that are stored once per key, and their events as rows. The objects check their options and open
nothing."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from fsdata.errors import SchemaError
from fsdata.histories.lookup import Lookup, fields_of_lookups
from fsdata.options import boolean, integer, is_integer, mapping_of, one_of, plain, text, tuple_of
from fsdata.schema import Field, Schema, Sequence
from fsdata.sources import expressions
from fsdata.sources.hash_split import HashSplit, checked_split
from fsdata.sources.source import EventSource, Joined, ParquetSource

if TYPE_CHECKING:
    import polars as pl


POSITION = "position"  # column with the number of events of the key's history that precede the row
MOST_POOLS = 8  # bits of a mask, which is stored as one byte per event


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AsOf(Joined):
    """Histories that are stored once per key, joined to every row as of its time.

    The table has one row per key, with aligned lists in ascending time (`freescale histories` writes one from an event
    log). A row gets the events of its key before its time, truncated by `Sequence(max_length, keep)`. The table is in
    memory once per host, in the integer types of the files, shared by the ranks of the host.

    The lists of a key without a history are empty, unless `source.nulls` is `drop` or `error` for a field. Null
    elements need a default in `source.defaults`, under the name of the list if it is not a field.

    Args:
        source: the table of histories. Its keys must be distinct.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers, or dates or
            timestamps of one type in both.
        at: the time of a row, a field or column of the main source. `time` has the same unit: both are timestamps or
            dates, or both are integers. `"position"`: the column `position` of a row is the number of events of its
            history that precede it. Ties in time are then irrelevant, and the rows may be the events themselves, see
            `anchors`.
        time: the times of the events, a list column of `source`, ascending in every row; with `at="position"` in any
            order, or None.
        fields: the schema's fields that come from the histories: all fields of one or several sequences. `time` and
            `known_at` may be among them; timestamps and dates are nanoseconds there, whatever the unit of the column.
        known_at: a second list of times, at which each event became known. Events that became known at `at` or later
            do not count for the row, at any position of the history.
        where: polars expression over the elements of the lists (fields, `time`, `known_at` and other lists of integers,
            by their names in the schema or the files), as if each event were a row. Other events are dropped.
        inclusive: events at the time of the row count, too. They may leak the label of the row.
        scan: consider only this many events before a row, the last ones; None: all.
        pools: name -> polars expression over the elements of the lists, as in `where`: several kinds of events in one
            history. A row gets the last `cap` events of each pool, in the order of the history; events without a pool
            are dropped. At most 8. Positions are indexed when the table is read, so the cost of a row depends on the
            events it gets, not on the events between them.
        cap: number of events of each pool, or pool -> number; None: all, so that `Sequence(max_length=...)` keeps the
            last events of any pool.
        mask: a field of ids with the pools of each event: the sum of 1 for the first, 2 for the second, 4 for the third
            and so on.
        bucketed: store the table on disk, in the folder for temporary files (`TMPDIR`), for tables that do not fit in
            memory. Inside a shuffle window rows are then grouped by this many buckets of histories, so that the
            histories of one bucket are in memory while they are used. Without shuffling rows keep their order.

    Raises:
        SchemaError: options that contradict each other.
    """

    kind = "histories"

    at: str
    time: str | None = None
    known_at: str | None = None
    where: "pl.Expr | expressions.Expression | None" = None
    inclusive: bool = False
    scan: int | None = None
    pools: "Mapping[str, pl.Expr | expressions.Expression]" = field(default_factory=dict)
    cap: int | Mapping[str, int] | None = None
    mask: str | None = None
    bucketed: int | None = None

    def __post_init__(self) -> None:
        checked = {
            "bucketed": integer("AsOf(bucketed=...)", self.bucketed, 1, optional=True, error=SchemaError),
            "scan": integer("AsOf(scan=...)", self.scan, 1, optional=True, error=SchemaError),
            "inclusive": boolean("AsOf(inclusive=...)", self.inclusive, error=SchemaError),
            "at": text("AsOf(at=...)", self.at),
            **{
                option: text(f"AsOf({option}=...)", getattr(self, option), optional=True)
                for option in ("time", "known_at", "mask")
            },
        }
        for option, value in checked.items():
            object.__setattr__(self, option, value)
        if self.time is None and self.at != POSITION:
            raise SchemaError("AsOf needs time=..., the list of the times of the events, unless at='position'")
        self._check_pools()
        if self.where is not None:
            object.__setattr__(self, "where", expressions.checked_condition(self.where, "AsOf(where=...)"))
        self._check((self.on, *self.times, *self.only_read), shared=True)
        if self.mask is not None and self.mask not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, self.mask))
        if self.at in self.fields:
            raise SchemaError(
                f"AsOf(at={self.at!r}) is the time of a row, but also one of the fields of its history: rename one"
            )

    def _check_pools(self) -> None:
        pools = {
            name: expressions.checked_condition(condition, f"AsOf(pools={{{name!r}: ...}})")
            for name, condition in mapping_of("AsOf(pools=...)", self.pools).items()
        }
        object.__setattr__(self, "pools", pools)
        if len(pools) > MOST_POOLS:
            raise SchemaError(f"AsOf(pools=...) has {len(pools)} pools; at most {MOST_POOLS} are supported")
        by_name = isinstance(self.cap, Mapping)
        cap = mapping_of("AsOf(cap=...)", self.cap) if by_name else plain(self.cap)
        object.__setattr__(self, "cap", cap)
        caps = cap.values() if isinstance(cap, Mapping) else [] if cap is None else [cap]
        if not all(is_integer(number, 1) for number in caps):
            raise SchemaError(f"AsOf(cap=...) is an integer of at least 1, or one for pools by name, got {self.cap!r}")
        unknown = set(self.cap) - set(pools) if isinstance(self.cap, Mapping) else set()
        if unknown:
            names = ", ".join(sorted(unknown))
            raise SchemaError(f"AsOf(cap=...) names {names}: pools are {', '.join(pools) or 'none'}")
        if not pools and (self.cap is not None or self.mask is not None):
            raise SchemaError("AsOf(cap=..., mask=...) need pools: give AsOf(pools={name: expression})")
        by_position = "pools" if pools else "at='position'" if self.at == POSITION else ""
        if by_position and self.known_at is not None:
            raise SchemaError(
                f"AsOf(known_at=...) cannot be combined with {by_position}: these select events by position"
            )
        if self.at == POSITION and self.where is not None:
            raise SchemaError(
                "AsOf(where=...) would change the positions of events, which at='position' refers to: use pools"
            )

    def check(self, source: ParquetSource, schema: Schema, label: str) -> None:
        """The fields of a sequence have the same events, so a sequence comes from a history as a whole."""
        looked_up = fields_of_lookups(source)
        for group in schema.groups:
            missing = [name for name in group.all_fields if name not in self.fields and name not in looked_up]
            joined = [name for name in group.all_fields if name in self.fields]
            if missing and joined:
                raise SchemaError(
                    f"{label}: AsOf has some fields of the sequence {group.name!r} but not {', '.join(missing)}: the "
                    "fields of a sequence have the same events, so all of them must come from one table"
                )
            if joined and self.pools and group.share is not None:
                raise SchemaError(
                    f"{label}: Sequence({group.name!r}, share=...) shares contiguous windows of a history, and windows "
                    "of AsOf(pools=...) have gaps: remove one of both"
                )
            if joined and self.pools and group.keep == "first" and group.max_length is not None:
                raise SchemaError(
                    f"{label}: Sequence({group.name!r}, keep='first') cannot be combined with AsOf(pools=...), which "
                    "keeps the last events of each pool"
                )
            nested = [name for name in group.nested if name in self.fields]
            if nested:
                raise SchemaError(f"{label}: {', '.join(nested)} are nested: fields of an AsOf are lists of numbers")
        lists = {name for group in schema.groups for name in group.all_fields}
        others = [name for name in self.fields if name not in lists]
        if others:
            raise SchemaError(
                f"{label}: fields of an AsOf are fields of sequences, but {', '.join(others)} are not: use a Join for "
                "values per key"
            )

    def stores(self, group: Sequence) -> bool:
        return group.share == self.on and group.all_fields[0] in self.fields

    @property
    def row_time(self) -> str:
        return self.at

    @property
    def times(self) -> tuple[str, ...]:
        """The distinct names of `time` and `known_at`, if given."""
        return tuple(dict.fromkeys(name for name in (self.time, self.known_at) if name is not None))

    @property
    def by_position(self) -> bool:
        return self.at == POSITION

    @property
    def caps(self) -> tuple[int | None, ...]:
        """`cap` of each pool."""
        by_pool = self.cap if isinstance(self.cap, Mapping) else dict.fromkeys(self.pools, self.cap)
        return tuple(by_pool.get(name) for name in self.pools)

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
    ) -> ParquetSource:
        """A source whose rows are events of the histories themselves, so that no second table has to be written.

        A row is one event. Its columns have one value each: the `position` in the history of its key, the key, the
        element of every list of the table, and the values that a `Lookup` has for these. Fields of a sequence or of the
        candidates that are computed from them are lists of one element. The history of a row are the events before it.

        Args:
            where: polars expression over these columns, without those of a `Lookup`: only events for which it is true
                become rows.
            min_history: least number of events before a row.
            order: of the rows: history after history in the order of the keys, or by `time` (ties in that order).
            time_window: length of windows of time, in the unit of `time`, from the time of the first row on (computed
                without `split`). An epoch of a loader is then one window: epoch n is the nth.
            split, keep, salt: as in `ParquetSource`, by key.
            options: other options of `ParquetSource`: `columns`, `defaults`, `nulls`, `join`, `map`, `weight`.

        Raises:
            SchemaError: options that contradict each other.
        """
        condition = None if where is None else expressions.checked_condition(where, "anchors(where=...)")
        if split is not None and split != self.on:
            raise SchemaError(f"anchors(split={split!r}): histories can only be split by their key, {self.on!r}")
        hash_split = checked_split(split, keep, salt)
        unknown = sorted(
            {"paths", "catalog", "table", "events", "follow", "filter", "filesystem", "skip", "limit"} & set(options)
        )
        if unknown:
            raise SchemaError(f"anchors has no option {', '.join(unknown)}: its rows are the events of the AsOf")
        if self.time is None and (order == "time" or time_window is not None):
            raise SchemaError("anchors(order='time', time_window=...) need AsOf(time=...), the times of the events")
        if not self.by_position:
            raise SchemaError("the history of an anchor are the events before its position: give AsOf(at='position')")
        events = Events(self, condition, min_history, order, time_window, hash_split)
        return ParquetSource(events=events, join=(self, *tuple_of(options.pop("join", ()), Joined)), **options)

    @property
    def condition(self) -> expressions.Expression | None:
        """`where` after `__post_init__`, which converts it to an expression of fsdata."""
        return cast("expressions.Expression | None", self.where)

    @property
    def form(self) -> str:
        """Its options, without its source; for fingerprints."""
        times = f"{self.at} {self.time} {self.known_at} inclusive={self.inclusive}"
        where = None if self.condition is None else self.condition.form
        bucketed = f" bucketed={self.bucketed}" if self.bucketed else ""
        scan = f" scan={self.scan}" if self.scan else ""
        pools = [f" pool {pool.form} cap={cap}" for pool, cap in zip(self.pool_conditions, self.caps, strict=True)]
        mask = f" mask={self.mask}" if self.mask else ""
        return f"as of {self.on} {times} {' '.join(self.fields)} where {where}{scan}{''.join(pools)}{mask}{bucketed}"

    @property
    def pool_conditions(self) -> tuple[expressions.Expression, ...]:
        """The expressions of `pools`, converted like `condition`."""
        return tuple(cast(expressions.Expression, condition) for condition in self.pools.values())

    @property
    def only_read(self) -> tuple[str, ...]:
        """Lists that only `where` and `pools` use."""
        conditions = [*self.pool_conditions, *([] if self.condition is None else [self.condition])]
        columns = dict.fromkeys(name for condition in conditions for name in condition.columns)
        return tuple(name for name in columns if name not in (*self.fields, *self.times))


@dataclass(frozen=True, slots=True, eq=False)
class Events(EventSource):
    """The events of a table of histories that are rows; constructed by `AsOf.anchors`."""

    as_of: AsOf
    condition: expressions.Expression | None
    min_history: int
    order: Literal["user", "time"]
    time_window: int | None
    split: HashSplit | None

    def __post_init__(self) -> None:
        window = integer("anchors(time_window=...)", self.time_window, 1, optional=True, error=SchemaError)
        history = integer("anchors(min_history=...)", self.min_history, 0, error=SchemaError)
        order = one_of("anchors(order=...)", self.order, ("user", "time"), error=SchemaError)
        for name, value in (("time_window", window), ("min_history", history), ("order", order)):
            object.__setattr__(self, name, value)

    @property
    def label(self) -> str:
        return f"events of {self.as_of.source.label}"

    @property
    def form(self) -> str:
        where = None if self.condition is None else self.condition.form
        split = "" if self.split is None else f" {self.split.form}"
        window = f" time_window={self.time_window}" if self.time_window else ""
        return f"events where {where} min_history={self.min_history} order={self.order}{window}{split}"

    def lists(self, source: ParquetSource, wanted: SequenceOf[Field]) -> dict[str, bool]:
        """The lists of the table that the rows use -> whether the table must have them: not where a field has a
        default."""
        required = dict[str, bool]()
        for name in (wanted_field.name for wanted_field in wanted):
            column = source.columns.get(name, name)
            if isinstance(column, str):
                required[column] = required.get(column, False) or name not in source.defaults
        expressions_read = [*source.computed.values(), *([] if self.condition is None else [self.condition])]
        required |= {name: True for expression in expressions_read for name in expression.columns}
        looked_up = {name: join.on for join in source.join if isinstance(join, Lookup) for name in join.fields}
        required |= {looked_up[name]: True for name in required if name in looked_up}
        return {name: required[name] for name in sorted(required) if name not in {self.as_of.on, POSITION, *looked_up}}
