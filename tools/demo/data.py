"""Describes the data that the demo trains on, for FreeScale's loader and for a plain DataLoader.

`DemoData` is the description; `schema` and `sources` turn it into the arguments of FreeScale's loader.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from freescale_tools.demo.model.features import HISTORY, TIME_BUCKETS, Feature, ModelSpec
from freescale_tools.write.synth.histories import ITEMS
from freescale_tools.write.synth.presets import DemoSet
from fsdata import AsOf, Join, ParquetSource, Schema, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class SideTable:
    """Fields that a source looks up in another file. `fields`: field -> its value for unknown keys."""

    path: Path
    on: str
    fields: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """A table of histories, one row per key.

    A row of the source sees the events of its key `on` whose `time` is before its own time `at`.
    """

    paths: tuple[Path, ...]
    on: str
    at: str
    time: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSource:
    """Files of one source.

    columns: field -> column, if their names differ; defaults: field -> value, if the source lacks it;
    histories: where the sequence comes from, if not from the rows.
    """

    paths: tuple[Path, ...]
    columns: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, int | float] = field(default_factory=dict)
    side: SideTable | None = None
    histories: Histories | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoData:
    """A data set, its fields as the model sees them, and the size of a step."""

    name: str
    tables: tuple[TableSource, ...]
    history: tuple[Feature, ...]
    context: tuple[Feature, ...] = ()
    dense: tuple[str, ...] = ()
    time: str | None = None
    max_length: int | None
    batch_size: int
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> ModelSpec:
        return ModelSpec(history=self.history, context=self.context, dense=len(self.dense))

    @property
    def fields(self) -> tuple[str, ...]:
        """The aligned fields of an event, the item first."""
        return tuple(feature.name for feature in self.history)

    @property
    def histories(self) -> Histories | None:
        """The table of histories, if all rows get theirs from one."""
        found = {table.histories for table in self.tables}
        return found.pop() if len(found) == 1 else None

    @property
    def rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for table in self.tables for path in table.paths)


def schema(data: DemoData, *, share: bool = False) -> Schema:
    """`share`: samples of one key share events, which needs `data.histories`."""
    key = data.histories.on if share and data.histories else None
    return Schema(
        sequences=(Sequence(HISTORY, fields=data.fields, max_length=data.max_length, share=key),),
        context=tuple(feature.name for feature in data.context),
        dense=data.dense,
        time=data.time,
    )


def sources(data: DemoData) -> list[ParquetSource]:
    return [
        ParquetSource(
            [str(path) for path in table.paths],
            columns=table.columns,
            defaults=table.defaults,
            join=[
                *([] if table.side is None else [_join(table.side)]),
                *([] if table.histories is None else [_as_of(table.histories, data.fields)]),
            ],
        )
        for table in data.tables
    ]


def _join(side: SideTable) -> Join:
    return Join(ParquetSource([str(side.path)], defaults=side.fields), on=side.on, fields=tuple(side.fields))


def _as_of(histories: Histories, fields: tuple[str, ...]) -> AsOf:
    table = ParquetSource([str(path) for path in histories.paths])
    return AsOf(table, on=histories.on, at=histories.at, time=histories.time, fields=fields)


def synthetic(files: DemoSet, *, batch_size: int, max_length: int | None = None) -> DemoData:
    """The set that `freescale synth demo` writes."""
    segment = SideTable(path=files.users, on="user_id", fields={"segment": 0})
    partner = {
        "user_id": "uid",
        "item_ids": "items",
        "actions": "events",
        "timestamps": "times",
        "age_days": "age",
        "request_ts": "when",
    }
    return DemoData(
        name="synthetic, two sources and a user table",
        tables=(
            TableSource(paths=files.site, side=segment),
            TableSource(paths=files.partner, columns=partner, defaults={"country": 0, "hour": 12.0}, side=segment),
        ),
        history=(
            Feature(name="item_ids", kind="item", rows=ITEMS),
            Feature(name="actions", kind="id", rows=8),
            Feature(name="timestamps", kind="time", rows=TIME_BUCKETS),
        ),
        context=(
            Feature(name="user_id", kind="id", rows=20_000),
            Feature(name="country", kind="id", rows=64),
            Feature(name="segment", kind="id", rows=16),
        ),
        dense=("age_days", "hour"),
        time="request_ts",
        max_length=max_length,
        batch_size=batch_size,
    )
