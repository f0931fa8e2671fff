"""What the demo trains on, as FreeScale's loader and the model take it.

`synthetic` describes the synthetic set, whose histories differ in length. `colliding` writes sets whose steps share a
stated part of their ids, and `lighter` makes steps of any set so short that a slow link is felt.
"""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.write.synth.collisions import colliding as colliding_ids
from freescale_tools.write.synth.presets import ITEMS, DemoSet
from fsdata import FreeScaleDataLoader, Join, ParquetSource, Schema, Sequence
from fsdata.order.mix import Mix

HISTORY = "history"  # name of the sequence in the schema
_MEASURED = 16_384  # samples that `some_lengths` reads
_READ = 256  # of these at once
BATCH = 64  # samples of a rank in a step of the synthetic set
LINK_EVENTS = 300  # of a history on the slow link
LINK_BATCH = 16  # samples of a rank in a step there
_LINK_STEP_EVENTS = LINK_BATCH * LINK_EVENTS  # of a rank: as long to compute as to exchange at 100 Mbit/s
_LINK_ROWS = 1 << 16  # of the table, at least


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


def colliding(folder: Path, rate: float, *, ranks: int, batch_size: int, steps: int, seed: int) -> DemoData:
    """Write samples of which each global batch shares `rate` of its ids with the one before; all are equally long.

    Raises OSError if the folder cannot be written.
    """
    events = ranks * batch_size * LINK_EVENTS
    rows = max(_LINK_ROWS, 2 * events)
    ids = np.concatenate(list(islice(colliding_ids(rows=rows, ids=events, rate=rate, seed=seed), steps)))
    starts = pa.array(np.arange(0, len(ids) + 1, LINK_EVENTS), pa.int32())
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"collisions-{100 * rate:g}.parquet"
    # Row groups are dealt to ranks in turn: so the next ones of all ranks are the next global batch.
    pq.write_table(pa.table({"item_ids": pa.ListArray.from_arrays(starts, ids)}), file, row_group_size=batch_size)
    return DemoData(
        name=f"synthetic, {rate:.0%} of ids collide",
        picture=file.stem,
        sources=(ParquetSource(str(file)),),
        history=(Feature(name="item_ids", rows=rows),),
        max_length=LINK_EVENTS,
        rows=len(ids) // LINK_EVENTS,
        batch_size=batch_size,
    )


def lighter(data: DemoData, *, at_least: int) -> DemoData:
    """The same samples with shorter histories, and fewer in a step, but `at_least` so many."""
    short = replace(data, max_length=min(data.max_length, LINK_EVENTS))
    lengths = some_lengths(short)
    mean = max(float(lengths.mean()) if len(lengths) else 1.0, 1.0)
    fitting = 1 << max(int(_LINK_STEP_EVENTS / mean), 1).bit_length() - 1
    return replace(short, batch_size=min(max(fitting, at_least), data.batch_size))
