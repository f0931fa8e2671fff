"""`AsOf`: histories that are stored once per key, and their events as rows. Nothing is opened here."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from fsdata.errors import SchemaError
from fsdata.histories.lookup import Lookup, found_by_lookups
from fsdata.options import boolean, integer, is_integer, mapping_of, one_of, plain, text, tuple_of
from fsdata.schema import Field, Schema, Sequence
from fsdata.sources import expressions
from fsdata.sources.hash_split import HashSplit, checked_split
from fsdata.sources.source import EventSource, Joined, ParquetSource

if TYPE_CHECKING:
    import polars as pl


POSITION = "position"  # where a row stands in the history of its key
MOST_POOLS = 8  # bits of a mask, which is kept as one byte for each event


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AsOf(Joined):
    """Histories that are stored once per key, taken for every row as of its time.

    The table has one row per key, with aligned lists in ascending time (`freescale histories` makes one of an event
    log). A row gets the events of its key that happened before it, and of those as many as `Sequence(max_length, keep)`
    says. The table is held in memory once per host, in the integers of the files, shared by the ranks of the host.

    A key without a history has none: its lists are empty, unless `source.nulls` says `drop` or `error` for a field.
    Null elements need a default in `source.defaults`, by the name of the list where it is no field.

    Args:
        source: the table of histories. Its rows must have different keys.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers, or dates or
            timestamps of one type in both.
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
            raise SchemaError("AsOf(time=...) names the times of the events; only at='position' does without")
        self._check_pools()
        if self.where is not None:
            object.__setattr__(self, "where", expressions.checked_condition(self.where, "AsOf(where=...)"))
        self._check((self.on, *self.times, *self.only_read), shared=True)
        if self.mask is not None and self.mask not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, self.mask))
        if self.at in self.fields:
            raise SchemaError(f"AsOf(at={self.at!r}) is the time of a row, and one of the fields of its history, too")

    def _check_pools(self) -> None:
        pools = {
            name: expressions.checked_condition(each, f"AsOf(pools={{{name!r}: ...}})")
            for name, each in mapping_of("AsOf(pools=...)", self.pools).items()
        }
        object.__setattr__(self, "pools", pools)
        if len(pools) > MOST_POOLS:
            raise SchemaError(f"AsOf(pools=...) has {len(pools)} pools; at most {MOST_POOLS} can be told apart")
        by_name = isinstance(self.cap, Mapping)
        cap = mapping_of("AsOf(cap=...)", self.cap) if by_name else plain(self.cap)
        object.__setattr__(self, "cap", cap)
        caps = cap.values() if isinstance(cap, Mapping) else [] if cap is None else [cap]
        if not all(is_integer(each, 1) for each in caps):
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

    def check(self, source: ParquetSource, schema: Schema, label: str) -> None:
        """A history brings whole sequences: fields of one sequence have the same events."""
        looked_up = found_by_lookups(source)
        for group in schema.groups:
            missing = [name for name in group.all_fields if name not in self.fields and name not in looked_up]
            if missing and any(name in self.fields for name in group.all_fields):
                raise SchemaError(
                    f"{label}: AsOf brings some fields of the sequence {group.name!r} and not {', '.join(missing)}: "
                    "its fields have the same events, so all of them come from one table"
                )
            brought = [name for name in group.all_fields if name in self.fields]
            if brought and self.pools and group.share is not None:
                raise SchemaError(
                    f"{label}: Sequence({group.name!r}, share=...) shares stretches of a history, and those of "
                    "AsOf(pools=...) have gaps: leave one of both out"
                )
            if brought and self.pools and group.keep == "first" and group.max_length is not None:
                raise SchemaError(
                    f"{label}: Sequence({group.name!r}, keep='first') and AsOf(pools=...) do not go together: of "
                    "pools, the last events are kept"
                )
            nested = [name for name in group.nested if name in self.fields]
            if nested:
                raise SchemaError(f"{label}: {', '.join(nested)} are nested: AsOf brings lists of numbers")
        lists = {name for group in schema.groups for name in group.all_fields}
        others = [name for name in self.fields if name not in lists]
        if others:
            raise SchemaError(
                f"{label}: AsOf brings fields of sequences, and {', '.join(others)} are not: use a Join for values per "
                "key"
            )

    def stores(self, group: Sequence) -> bool:
        return group.share == self.on and group.all_fields[0] in self.fields

    @property
    def row_time(self) -> str:
        return self.at

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
    ) -> ParquetSource:
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
        part = checked_split(split, keep, salt)
        unknown = sorted(
            {"paths", "catalog", "table", "events", "follow", "filter", "filesystem", "skip", "limit"} & set(options)
        )
        if unknown:
            raise SchemaError(f"anchors has no option {', '.join(unknown)}: its rows are the events of the AsOf")
        if self.time is None and (order == "time" or time_window is not None):
            raise SchemaError("anchors(order='time', time_window=...) need AsOf(time=...), the times of the events")
        if not self.by_position:
            raise SchemaError("anchors have a position and see what comes before it: give AsOf(at='position')")
        events = Events(self, condition, min_history, order, time_window, part)
        return ParquetSource(events=events, join=(self, *tuple_of(options.pop("join", ()), Joined)), **options)

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
class Events(EventSource):
    """Which events of a table of histories are rows, see `AsOf.anchors`, which makes it."""

    of: AsOf
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
        return f"events of {self.of.source.label}"

    @property
    def form(self) -> str:
        where = None if self.condition is None else self.condition.form
        split = "" if self.split is None else f" {self.split.form}"
        window = f" time_window={self.time_window}" if self.time_window else ""
        return f"events where {where} min_history={self.min_history} order={self.order}{window}{split}"

    def lists(self, source: ParquetSource, wanted: SequenceOf[Field]) -> dict[str, bool]:
        """Where a field has a default, the table need not have its list."""
        read = dict[str, bool]()
        for name in (of.name for of in wanted):
            column = source.columns.get(name, name)
            if isinstance(column, str):
                read[column] = read.get(column, False) or name not in source.defaults
        made = [*source.computed.values(), *([] if self.condition is None else [self.condition])]
        read |= {name: True for each in made for name in each.columns}
        looked_up = {name: join.on for join in source.join if isinstance(join, Lookup) for name in join.fields}
        read |= {looked_up[name]: True for name in read if name in looked_up}
        return {name: read[name] for name in sorted(read) if name not in {self.of.on, POSITION, *looked_up}}
