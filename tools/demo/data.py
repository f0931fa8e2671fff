"""What the demo trains on, as FreeScale's loader and the model take it. `synthetic` describes the synthetic set."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow.parquet as pq

from freescale_tools.write.synth.presets import ITEMS, DemoSet
from fsdata import FreeScaleDataLoader, Join, ParquetSource, Schema, Sequence
from fsdata.order.mix import Mix

HISTORY = "history"  # name of the sequence in the schema
_MEASURED = 16_384  # samples that `some_lengths` reads
_READ = 256  # of these at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A field of the schema, and its embedding table: id `i` has the row `i // divide % rows`."""

    name: str
    rows: int
    divide: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoData:
    """A data set and the size of a step.

    Attributes:
        name: for people; picture: the stem of the picture's file, which no other data set has.
        history: fields of an event, the item first; context: one id per sample.
        key: of the histories, where samples of one key may share events; see `fsdata.Sequence(share=...)`.
        rows: samples of the set. batch_size: samples of a rank in a step.
        notes: what a user should know of how the data was found.
    """

    name: str
    picture: str
    sources: tuple[ParquetSource, ...]
    history: tuple[Feature, ...]
    context: tuple[Feature, ...] = ()
    dense: tuple[str, ...] = ()
    time: str | None = None
    key: str | None = None
    max_length: int
    rows: int
    batch_size: int
    notes: tuple[str, ...] = ()

    @property
    def mix(self) -> Mix:
        return "time" if self.time else "sequential"

    def schema(self, *, share: bool = False) -> Schema:
        """`share`: samples of one key share events; needs `key`."""
        fields = tuple(feature.name for feature in self.history)
        share_key = self.key if share else None
        return Schema(
            sequences=(Sequence(HISTORY, fields=fields, max_length=self.max_length, share=share_key),),
            context=tuple(feature.name for feature in self.context),
            dense=self.dense,
            time=self.time,
        )


def some_lengths(data: DemoData) -> np.ndarray:
    """Events of samples from all over the set: int64 [at most 16,384]."""
    item = data.history[0].name
    with FreeScaleDataLoader(
        data.sources, data.schema(), batch_size=_READ, shuffle=True, mix=data.mix, rank=0, world_size=1
    ) as loader:
        found = [batch.features[item].lengths().numpy() for batch in islice(loader, _MEASURED // _READ)]
    return np.concatenate([np.empty(0, np.int64), *found]).astype(np.int64)


def synthetic(files: DemoSet, *, batch_size: int, max_length: int) -> DemoData:
    """The set that `freescale synth demo` writes: two sources with columns of other names, and a table of users."""
    users = Join(ParquetSource(str(files.users), defaults={"segment": 0}), on="user_id", fields=("segment",))
    site = ParquetSource([str(path) for path in files.site], join=[users])
    partner = ParquetSource(
        [str(path) for path in files.partner],
        columns={
            "user_id": "uid",
            "item_ids": "items",
            "actions": "events",
            "timestamps": "times",
            "age_days": "age",
            "request_ts": "when",
        },
        defaults={"country": 0, "hour": 12.0},
        join=[users],
    )
    return DemoData(
        name="synthetic, two sources and a user table",
        picture="freescale-demo-synthetic",
        sources=(site, partner),
        history=(
            Feature(name="item_ids", rows=ITEMS),
            Feature(name="actions", rows=64),
            Feature(name="timestamps", rows=168, divide=3_600),
        ),
        context=(
            Feature(name="user_id", rows=20_000),
            Feature(name="country", rows=64),
            Feature(name="segment", rows=64),
        ),
        dense=("age_days", "hour"),
        time="request_ts",
        max_length=max_length,
        rows=sum(pq.read_metadata(path).num_rows for path in (*files.site, *files.partner)),
        batch_size=batch_size,
    )
