"""A log of events by user, a dimension table of its items, and the samples of it in plain Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from data_kit import as_python, write
from xxhash import xxh64_intdigest

from fsdata import AsOf, Lookup, ParquetSource, Schema, Sequence, cross

LISTEN = pl.col("type") == 0
POOLS = {
    "listen_plus": LISTEN & (pl.col("ratio") >= 50),
    "like": pl.col("type") == 1,
    "skip": LISTEN & (pl.col("ratio") < 50),
}
OVERLAPPING = POOLS | {"organic": pl.col("organic") == 1}
UIH = Sequence("uih", fields=("item", "artist", "ts", "pools"), floats=("price",), max_length=9)
SCHEMA = Schema(
    sequences=(UIH,),
    candidates=Sequence("candidates", fields=("candidate", "candidate_artist"), floats=("candidate_price",)),
    context=("uid", "position", "hour", "user_x_artist"),
    labels=("label",),
)
BUCKETS, SEED = 1000, 5


@dataclass(frozen=True, kw_only=True)
class Log:
    """Events: uid -> name -> one number for each, in order; times have ties. Items: id -> (artist, price)."""

    events: dict[int, dict[str, list[int]]]
    items: dict[int, tuple[int, float]]

    @classmethod
    def drawn(cls, seed: int, users: int = 12, longest: int = 40, sparse: bool = False) -> "Log":
        """Some users have no event, and some events an item that the table does not have. sparse: ids lie far apart."""
        random = np.random.default_rng(seed)
        far, ids = (10**12 + 7 if sparse else 1), random.permutation(40)[:30].tolist()
        events = {}
        for user in random.permutation(users).tolist():
            size = int(random.integers(0, longest)) if user % 5 != 3 else 0
            events[user * 3] = {
                "item": (random.integers(0, 40, size) * far - 5).tolist(),
                "ts": np.sort(random.integers(0, 200, size) * 5).tolist(),
                "type": random.choice([0, 0, 0, 1, 2], size).tolist(),
                "ratio": random.integers(0, 100, size).tolist(),
                "organic": random.integers(0, 2, size).tolist(),
            }
        items = {each * far - 5: (int(random.integers(1, 9)), float(np.float32(random.random()))) for each in ids}
        return cls(events=events, items=items)

    def write(self, folder: Path) -> None:
        kinds = {"item": pa.int64(), "ts": pa.int64(), "type": pa.int8(), "ratio": pa.int16(), "organic": pa.bool_()}
        lists = {
            name: pa.array([of[name] for of in self.events.values()], pa.list_(pa.int64())).cast(pa.list_(kind))
            for name, kind in kinds.items()
        }
        write(folder / "histories.parquet", {"uid": list(self.events), **lists}, group=3)
        columns = {
            "item_id": list(self.items),
            "artist_id": [artist for artist, _ in self.items.values()],
            "price": [price for _, price in self.items.values()],
        }
        write(folder / "items.parquet", columns, group=7)

    def anchors(self, min_history: int) -> list[tuple[int, int]]:
        """(uid, position) of every event that is a row, in the order of the users."""
        return [
            (uid, position)
            for uid, of in sorted(self.events.items())
            for position, kind in enumerate(of["type"])
            if kind == 0 and position >= min_history
        ]

    def in_pools(self, uid: int, position: int, overlapping: bool) -> list[bool]:
        kind, ratio, organic = (self.events[uid][name][position] for name in ("type", "ratio", "organic"))
        found = [kind == 0 and ratio >= 50, kind == 1, kind == 0 and ratio < 50]
        return [*found, organic == 1] if overlapping else found

    def history(
        self,
        uid: int,
        position: int,
        *,
        scan: int | None = None,
        cap: int | None = None,
        pools: bool = True,
        overlapping: bool = False,
        most: int | None = 9,
    ) -> list[dict[str, Any]]:
        """The events that a row sees, with every field."""
        of = self.events.get(uid, {"item": []})
        before = range(max(position - (scan or position), 0), position if uid in self.events else 0)
        masks = {place: self.in_pools(uid, place, overlapping) for place in before}
        seen = set(before)
        if pools:
            each = [[place for place in before if masks[place][pool]] for pool in range(4 if overlapping else 3)]
            seen = {place for places in each for place in (places[-cap:] if cap else places)}
        places = sorted(seen)
        return [
            {
                "item": of["item"][place],
                "artist": self.items.get(of["item"][place], (-1, 0.0))[0],
                "price": self.items.get(of["item"][place], (-1, 0.5))[1],
                "ts": of["ts"][place],
                "pools": sum(1 << pool for pool, inside in enumerate(masks[place]) if inside) if pools else 0,
            }
            for place in (places[-most:] if most else places)
        ]

    def sample(self, uid: int, position: int, **given: Any) -> dict[str, Any]:
        """What a loader gives of an anchor; `history` has the options."""
        item, ts, ratio = (self.events[uid][name][position] for name in ("item", "ts", "ratio"))
        artist, price = self.items.get(item, (-1, 0.5))
        crossed = np.array([uid, artist, ts // 100 % 24], "<i8").tobytes()
        return {
            "history": self.history(uid, position, **given),
            "candidate": item,
            "candidate_artist": artist,
            "candidate_price": price,
            "hour": ts // 100 % 24,
            "user_x_artist": xxh64_intdigest(crossed, SEED) % BUCKETS,
            "label": float(ratio >= 50),
        }


def as_of(folder: Path, on_error: str = "raise", **given: Any) -> AsOf:
    """The histories, as `Log.history` has them."""
    fields = ("item", "ts") if given.get("pools", True) else ("item", "ts", "pools")
    options = {"at": "position", "time": "ts", "pools": POOLS, **given}
    if options["pools"]:
        options["mask"] = "pools"
    defaults = {} if options["pools"] else {"pools": 0}
    source = ParquetSource(folder / "histories.parquet", defaults=defaults, on_error=on_error)
    return AsOf(source, on="uid", fields=fields, **options)


def lookup(folder: Path) -> Lookup:
    columns = {"item": "item_id", "artist": "artist_id"}
    items = ParquetSource(folder / "items.parquet", columns=columns)
    return Lookup(items, on="item", fields=("artist", "price"), default={"artist": -1, "price": 0.5})


def anchors(folder: Path, *, as_of_given: Mapping[str, Any] | None = None, **given: Any) -> ParquetSource:
    """The samples of `Log.sample`."""
    columns = {
        "candidate": "item",
        "candidate_artist": "artist",
        "candidate_price": "price",
        "label": pl.col("ratio") >= 50,
        "hour": pl.col("ts") // 100 % 24,
        "user_x_artist": cross("uid", "artist", pl.col("ts") // 100 % 24, buckets=BUCKETS, seed=SEED),
    }
    given = {"where": LISTEN, "join": lookup(folder), "columns": columns, **given}
    return as_of(folder, **(as_of_given or {})).anchors(**given)


def histories_of(batch: Any) -> list[list[dict[str, Any]]]:
    """Of every sample, the events as `Log.history` has them."""
    samples = as_python(batch)
    names = [name for name in ("item", "artist", "ts", "pools", "price") if samples and name in samples[0]]
    return [
        [dict(zip(names, event, strict=True)) for event in zip(*(sample[name] for name in names), strict=True)]
        for sample in samples
    ]


def samples_of(batch: Any) -> dict[tuple[int, int], dict[str, Any]]:
    """(uid, position) -> sample, as `Log.sample` has it."""
    found = {}
    for sample, history in zip(as_python(batch), histories_of(batch), strict=True):
        of = {name: sample[name] for name in ("hour", "user_x_artist", "label")}
        for name in ("candidate", "candidate_artist", "candidate_price"):
            of[name] = sample[name][0] if isinstance(sample[name], list) else sample[name]
        of["label"] = of["label"][0] if isinstance(of["label"], list) else of["label"]
        found[sample["uid"], sample["position"]] = {"history": history, **of}
    return found
