"""The same samples from FreeScale: a description of the log."""

from pathlib import Path
from typing import Any

import polars as pl
from eventlog.log import LIKE, LISTEN
from eventlog.per_sample import CROSSES, Rules

from fsdata import AsOf, Lookup, ParquetSource, Schema, Sequence, cross

_LISTEN, _HOUR = pl.col("type") == LISTEN, pl.col("ts") // 3600 % 24
_PLAYED = _LISTEN & (pl.col("ratio") >= 50)
POOLS = {"listen_plus": _PLAYED, "like": pl.col("type") == LIKE, "skip": _LISTEN & (pl.col("ratio") < 50)}
HISTORY = ("item", "artist", "album", "ts", "pools")
CANDIDATE = ("candidate", "candidate_artist", "candidate_album")


def source(folder: Path, rules: Rules, *, bucketed: int | None = None, **given: Any) -> ParquetSource:
    """Every sample of the log. `folder`: with histories/ (of `freescale histories`) and items.parquet."""
    histories = _histories(folder, rules, ("item", "ts"), bucketed=bucketed)
    columns = {"item": "item_id", "artist": "artist_id", "album": "album_id"}
    items = Lookup(ParquetSource(folder / "items.parquet", columns=columns), on="item", fields=("artist", "album"))
    hour = {"hour": _HOUR}
    crosses = {
        name: cross(*(hour.get(each, each) for each in values), buckets=buckets, seed=seed)
        for name, (values, buckets, seed) in CROSSES.items()
    }
    return histories.anchors(
        where=_LISTEN,
        min_history=rules.min_history,
        join=items,
        columns={
            "candidate": "item",
            "candidate_artist": "artist",
            "candidate_album": "album",
            "user": "uid",
            "label": _PLAYED,
            **crosses,
        },
        **given,
    )


def _histories(
    folder: Path, rules: Rules, fields: tuple[str, ...], *, mask: str | None = "pools", bucketed: int | None = None
) -> AsOf:
    return AsOf(
        ParquetSource(folder / "histories", columns={"item": "item_id"}),
        on="uid",
        at="position",
        time="ts",
        fields=fields,
        scan=rules.scan,
        pools=POOLS,
        cap=rules.cap,
        mask=mask,
        bucketed=bucketed,
    )


def schema(rules: Rules) -> Schema:
    return Schema(
        sequences=(Sequence("uih", fields=HISTORY, max_length=rules.most),),
        candidates=Sequence("candidates", fields=CANDIDATE),
        context=("user", *CROSSES),
        labels=("label",),
    )


def five_fields(folder: Path, rules: Rules, events: int, *, share: str | None = None) -> tuple[ParquetSource, Schema]:
    """Samples of as many fields, with histories of at most so many events that lie side by side: what copying takes."""
    fields = ("item", "item_2", "item_3", "ts", "ts_2")
    columns = dict(zip(fields, ("item_id", "item_id", "item_id", "ts", "ts"), strict=True))
    table = ParquetSource(folder / "histories", columns=columns)
    histories = AsOf(table, on="uid", at="position", fields=fields)
    anchors = histories.anchors(min_history=max(rules.min_history, events))
    return anchors, Schema(sequences=(Sequence("uih", fields=fields, max_length=events, share=share),))


def without_lookups(folder: Path, rules: Rules) -> tuple[ParquetSource, Schema]:
    """The merged pools alone: items, times and masks of the same samples."""
    fields = ("item", "ts", "pools")
    anchors = _histories(folder, rules, fields[:2]).anchors(where=_LISTEN, min_history=rules.min_history)
    return anchors, Schema(sequences=(Sequence("uih", fields=fields, max_length=rules.most),))


def items_alone(folder: Path, rules: Rules, **given: Any) -> tuple[ParquetSource, Schema]:
    """The items of the same samples."""
    anchors = _histories(folder, rules, ("item",), mask=None)
    source = anchors.anchors(where=_LISTEN, min_history=rules.min_history, **given)
    return source, Schema(sequences=(Sequence("uih", fields=("item",), max_length=rules.most),))
