"""Features that touch the same lists, several at once, with lists below and above what is decoded at once, both
decoders, on two ranks: every sample once, as plain Python makes it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from data_kit import write
from hypothesis import assume, example, given
from hypothesis import strategies as st
from patience import PATIENCE_S
from sets import parts_of
from worlds import shared_world

from fsdata import AsOf, Balance, FreeScaleDataLoader, Join, ParquetSource, Schema, Sequence

ROWS, USERS, DEFAULT = 26, 5, 7
LENGTHS = {"short": [0, 1, 5, 9], "long": [0, 33, 40, 64, 90]}  # lists of 32 and more on average stay in their pages
ROW_LISTS = {"item": pa.int32(), "action": pa.int64(), "price": pa.float32(), "tags": pa.list_(pa.int64())}
BALANCES = ("none", "tokens", "swap", "vbs", "cap")


def events_of(random: np.random.Generator, long: str, mark: int) -> list[dict[str, Any]]:
    count = int(random.choice(LENGTHS[long]))
    times = np.sort(random.integers(0, 60, count)).tolist()
    return [
        {"item": mark + n, "action": mark * n, "price": mark + n / 4, "tags": list(range(n % 3)), "time": times[n]}
        for n in range(count)
    ]


class Data:
    """Rows with histories and candidates, histories by user, and a side table that lacks one user."""

    def __init__(self, long: str, nulls: bool) -> None:
        random = np.random.default_rng(len(long) + nulls)
        self.users = [events_of(random, long, 100 * user) for user in range(USERS)]
        self.likes = {user: random.integers(0, 99, random.choice(LENGTHS[long])).tolist() for user in range(1, USERS)}
        self.rows = [
            {
                "row": row,
                "user": int(random.integers(USERS)),
                "at": int(random.integers(0, 70)),
                "history": events_of(random, long, 1000 * row),
                "null": ("item", "action", None)[random.integers(3)] if nulls else None,
                "candidate": random.integers(0, 99, random.choice([0, 1, 3, 40])).tolist(),
            }
            for row in range(ROWS)
        ]

    def write(self, folder: Path) -> None:
        columns: dict[str, Any] = {name: [row[name] for row in self.rows] for name in ("row", "user", "at")}
        columns["name"] = [f"row {row}" for row in range(ROWS)]
        columns["candidate"] = pa.array([row["candidate"] for row in self.rows], pa.list_(pa.int32()))
        columns["click"] = pa.array([[n / 2 for n in row["candidate"]] for row in self.rows], pa.list_(pa.float64()))
        for name, kind in ROW_LISTS.items():
            lists = [None if row["null"] == name else [each[name] for each in row["history"]] for row in self.rows]
            columns[name] = pa.array(lists, pa.list_(kind))
        write(folder / "rows.parquet", columns, group=8)
        stored = {**ROW_LISTS, "time": pa.int64()}
        table = {
            name: pa.array([[e[name] for e in of] for of in self.users], pa.list_(stored[name])) for name in stored
        }
        write(folder / "histories.parquet", {"user": list(range(USERS)), **table}, group=2)
        liked = pa.array(list(self.likes.values()), pa.list_(pa.int64()))
        write(folder / "side.parquet", {"user": list(self.likes), "liked": liked, "age": [9] * len(self.likes)})

    def expected(self, of: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for row in self.rows:
            if of["filter"] and row["row"] % 4 == 1:
                continue
            events = self.users[row["user"]] if of["as_of"] else row["history"]
            events = [event for event in events if not of["as_of"] or event["time"] < row["at"]]
            events = events[-of["cut"] :] if of["last"] and of["cut"] else events[: of["cut"]]
            null = None if of["as_of"] else row["null"]
            sample = {
                name: [DEFAULT if name == null else event[name] for event in events]
                for name in ("item", "action", "price", *(["tags"] if of["nested"] else []))
            }
            sample |= {"row": row["row"], "name": f"row {row['row']}"}
            if of["join"]:
                sample |= {"liked": self.likes.get(row["user"], []), "age": 9.0 if row["user"] in self.likes else 0.0}
            if of["explode"]:
                found += [sample | {"candidate": [each], "click": [each / 2]} for each in row["candidate"]]
            else:
                found.append(sample | {"candidate": row["candidate"], "click": [n / 2 for n in row["candidate"]]})
        return found


def most_of(of: dict[str, Any]) -> int:
    """Elements of a batch; the longest row has 10,840, or 310."""
    return 12_000 if of["explode"] else 600


def balance_of(of: dict[str, Any]) -> Balance | None:
    if of["balance"] == "cap":
        return Balance("vbs", max_tokens=most_of(of))
    return {"swap": Balance(), "vbs": Balance("vbs")}.get(of["balance"])


def loader_of(folder: Path, of: dict[str, Any], decoder: str) -> FreeScaleDataLoader:
    joins: list[Join | AsOf] = []
    defaults = {"item": DEFAULT, "action": DEFAULT}
    if of["join"]:
        side = ParquetSource(folder / "side.parquet", defaults={"liked": 0, "age": 0})
        joins.append(Join(side, on="user", fields=("liked", "age")))
    if of["as_of"]:
        table = ParquetSource(folder / "histories.parquet")
        joins.append(AsOf(table, on="user", at="at", time="time", fields=("item", "action", "price")))
    source = ParquetSource(
        folder / "rows.parquet",
        join=joins,
        defaults={} if of["as_of"] else defaults,
        filter=pl.col("row") % 4 != 1 if of["filter"] else None,
        decoder=decoder,
    )
    uih = Sequence(
        "uih",
        ("item", "action"),
        floats=("price",),
        nested=("tags",) if of["nested"] else (),
        max_length=of["cut"],
        keep="last" if of["last"] else "first",
        share="user" if of["share"] else None,
    )
    schema = Schema(
        sequences=(uih, *([Sequence("likes", ("liked",))] if of["join"] else [])),
        candidates=Sequence("candidates", ("candidate",)),
        context=("row",),
        dense=("age",) if of["join"] else (),
        labels=("click",),
        passthrough=("name",),
        explode="candidates" if of["explode"] else None,
    )
    options = {"balance": balance_of(of), "shuffle": of["shuffle"], "uneven": "empty"}
    options |= {"max_tokens": most_of(of)} if of["balance"] == "tokens" else {}
    return FreeScaleDataLoader(source, schema, batch_size=5, num_threads=2, timeout_s=PATIENCE_S, **options)


def samples(batch: Any) -> list[dict[str, Any]]:
    lists = {name: (part.values().tolist(), part.lengths()) for name, part in parts_of(batch.features).items()}
    lists |= {name: (part.values.tolist(), part.lengths) for name, part in batch.jagged.items()}
    for part in batch.nested.values():
        for name, ids in parts_of(part).items():
            lists[name] = [each.tolist() for each in ids.values().split(ids.lengths().tolist())], lists["item"][1]
    click = batch.labels["click"]
    lists["click"] = (
        (click.values.tolist(), click.lengths) if hasattr(click, "lengths") else (click.tolist(), 1 + 0 * click.long())
    )
    found: list[dict[str, Any]] = [{"name": name} for name in batch.passthrough["name"]]
    for name, (values, lengths) in lists.items():
        starts = lengths.cumsum(0) - lengths
        if name in ("item", "action", "price", "tags") and batch.shared:
            starts, lengths = batch.shared["uih"].offset, batch.shared["uih"].length
        for sample, start, count in zip(found, starts.tolist(), lengths.tolist(), strict=True):
            sample[name] = values[start : start + count]
    for sample, age in zip(found, batch.dense.tolist(), strict=True):
        sample["row"] = sample["row"][0]
        sample |= {"age": age[0]} if age else {}
    return found


def read(rank: int, size: int, folder: Path, of: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for decoder in ("pyarrow", "pages"):
        with loader_of(folder, of, decoder) as loader:
            found[decoder] = [sample for batch in loader for sample in samples(batch)]
    return found


def in_order(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: (sample["row"], sample["candidate"]))


PLAIN = dict.fromkeys(("shuffle", "explode", "share", "as_of", "join", "filter", "nested", "last", "nulls"), False)
PLAIN |= {"cut": None, "balance": "none"}


@given(
    of=st.fixed_dictionaries(
        {name: st.booleans() for name, value in PLAIN.items() if value is False}
        | {"cut": st.sampled_from([None, 4, 35]), "balance": st.sampled_from(BALANCES)}
    ),
    long=st.sampled_from(list(LENGTHS)),
)
@example(of=PLAIN | {"explode": True, "share": True}, long="long")
@example(of=PLAIN | {"filter": True, "nested": True, "shuffle": True, "balance": "tokens"}, long="long")
@example(of=PLAIN | {"explode": True, "share": True, "nulls": True, "balance": "swap"}, long="long")
@example(of=PLAIN | {"explode": True, "share": True, "nested": True, "cut": 35, "last": True}, long="long")
@example(of=PLAIN | {"share": True, "as_of": True, "shuffle": True, "balance": "vbs", "cut": 35}, long="long")
def test_every_sample_once_as_it_is(of: dict[str, Any], long: str) -> None:
    assume(not of["share"] or of["as_of"] or of["explode"])  # else nothing is stored once
    assume(not of["nested"] or not of["as_of"])
    data = Data(long, of["nulls"])
    with TemporaryDirectory() as name:
        data.write(Path(name))
        answers = shared_world(2).run(read, Path(name), of)
    for decoder in ("pyarrow", "pages"):
        found = [sample for of_rank in answers for sample in of_rank[decoder]]
        assert in_order(found) == in_order(data.expected(of)), decoder
