"""Features that touch the same lists, several at once, with lists below and above what is decoded at once, both
decoders, on two ranks: every sample once, as plain Python makes it, and counted. States of exploded rows."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from data_kit import as_python, loader_on, parts_of, write
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rank_loaders import read_and_go_on
from worlds import shared_world

from fsdata import AsOf, Balance, FreeScaleDataLoader, Join, ParquetSource, Schema, Sequence, StateError, global_mean

ROWS, USERS, DEFAULT = 26, 5, 7
LARGE = 2**53 + 1  # no float64 holds it
LENGTHS = {"short": [0, 1, 5, 9], "long": [0, 33, 40, 64, 90]}  # lists of 32 and more on average stay in their pages
EVENT = {"item": pa.int32(), "action": pa.int64(), "price": pa.float32(), "watched": pa.float64(), "next": pa.int64()}
ROW_LISTS = {**EVENT, "tags": pa.list_(pa.int64())}
ALONG = {"candidate": pa.int32(), "bid": pa.float32(), "kind": pa.int64(), "click": pa.float64()}
BALANCES = ("none", "tokens", "swap", "vbs", "cap")


def events_of(random: np.random.Generator, long: str, mark: int) -> list[dict[str, Any]]:
    count = int(random.choice(LENGTHS[long]))
    times = np.sort(random.integers(0, 60, count)).tolist()
    return [
        {
            "item": mark + n,
            "action": mark * n,
            "price": mark + n / 4,
            "watched": mark + n / 8,
            "next": LARGE + mark + n,
            "tags": list(range(n % 3)),
            "time": times[n],
        }
        for n in range(count)
    ]


def candidate_of(number: int) -> dict[str, float]:
    return {"candidate": number, "bid": number / 4, "kind": number % 9, "click": number / 2}


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
        columns["number"] = [10**15 + row for row in range(ROWS)]
        for name, kind in ALONG.items():
            lists = [[each[name] for each in map(candidate_of, row["candidate"])] for row in self.rows]
            columns[name] = pa.array(lists, pa.list_(kind))
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
                for name in (*EVENT, *(["tags"] if of["nested"] else []))
            }
            sample |= {"row": row["row"], "name": f"row {row['row']}", "number": 10**15 + row["row"]}
            if of["join"]:
                sample |= {"liked": self.likes.get(row["user"], []), "age": 9.0 if row["user"] in self.likes else 0.0}
            candidates = list(map(candidate_of, row["candidate"]))
            if of["explode"]:
                found += [sample | each for each in candidates]
            else:
                found.append(sample | {name: [each[name] for each in candidates] for name in ALONG})
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
        joins.append(AsOf(table, on="user", at="at", time="time", fields=tuple(EVENT)))
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
        labels=("watched",),
        id_labels=("next",),
        nested=("tags",) if of["nested"] else (),
        max_length=of["cut"],
        keep="last" if of["last"] else "first",
        share="user" if of["share"] else None,
    )
    schema = Schema(
        sequences=(uih, *([Sequence("likes", ("liked",))] if of["join"] else [])),
        candidates=Sequence("candidates", ("candidate",), floats=("bid",), id_labels=("kind",)),
        context=("row",),
        dense=("age",) if of["join"] else (),
        labels=("click",),
        passthrough=("name", "number"),
        explode="candidates" if of["explode"] else None,
    )
    options = {"balance": balance_of(of), "shuffle": of["shuffle"], "uneven": "empty"}
    options |= {"max_tokens": most_of(of)} if of["balance"] == "tokens" else {}
    return loader_on(source, schema, batch_size=5, num_threads=2, **options)


def said_of(batch: Any) -> dict[str, Any]:
    """What a batch holds and says of itself."""
    items, shared = parts_of(batch.features)["item"].values(), batch.shared.get("uih")
    return {
        "samples": as_python(batch),
        "total": batch.stats.global_samples,
        "items": batch.stats.global_items,
        "mean": float(global_mean(torch.ones(len(batch)), batch)),
        "events": len(items) + (shared.saved if shared else 0),
        "held": len(items),
    }


def check_counts(step: tuple[dict[str, Any], ...], of: dict[str, Any]) -> None:
    """Of the batches of all ranks in one step."""
    found = [sample for batch in step for sample in batch["samples"]]
    assert {batch["total"] for batch in step} == {len(found)}
    assert sum(batch["mean"] for batch in step) == pytest.approx(len(step) if found else 0)
    for batch in step:
        events = sum(len(sample["item"]) for sample in batch["samples"])
        of_rows = {sample["row"]: len(sample["item"]) for sample in batch["samples"]}
        assert batch["events"] == events
        if not of["as_of"]:
            assert batch["held"] == (sum(of_rows.values()) if of["share"] else events)
    if of["balance"] in ("swap", "vbs", "cap"):
        events = sum(len(sample["item"]) for sample in found)
        candidates = len(found) if of["explode"] else sum(len(sample["candidate"]) for sample in found)
        wanted = {"uih": events, "watched": events, "candidates": candidates, "kind": candidates}
        assert all(batch["items"] | wanted == batch["items"] for batch in step)


def read(rank: int, size: int, folder: Path, of: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for decoder in ("pyarrow", "pages"):
        with loader_of(folder, of, decoder) as loader:
            found[decoder] = [said_of(batch) for batch in loader]
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
@example(of=PLAIN | {"explode": True, "share": True, "as_of": True, "balance": "cap"}, long="short")
def test_every_sample_once_as_it_is(of: dict[str, Any], long: str) -> None:
    assume(not of["share"] or of["as_of"] or of["explode"])  # else nothing is stored once
    assume(not of["nested"] or not of["as_of"])
    data = Data(long, of["nulls"])
    with TemporaryDirectory() as name:
        data.write(Path(name))
        answers = shared_world(2).run(read, Path(name), of)
    for decoder in ("pyarrow", "pages"):
        steps = list(zip(*(of_rank[decoder] for of_rank in answers), strict=True))
        found = [sample for step in steps for batch in step for sample in batch["samples"]]
        assert in_order(found) == in_order(data.expected(of)), decoder
        for step in steps:
            check_counts(step, of)


def test_exploded_rows_fill_batches_and_a_state_goes_on_with_the_next_row(tmp_path: Path) -> None:
    of, data = PLAIN | {"explode": True}, Data("short", nulls=False)
    data.write(tmp_path)
    batches, states = read_and_go_on(lambda: loader_of(tmp_path, of, "pages"), every=2)
    found = [said_of(batch) for batch in batches]
    assert [sample for batch in found for sample in batch["samples"]] == data.expected(of)
    for batch in found:
        check_counts((batch,), of | {"balance": "swap"})  # a rank alone knows all counts
    rows = [len({sample["row"] for sample in batch["samples"]}) for batch in found]
    assert max(rows) <= 5
    assert sum(1 for row in data.rows if row["candidate"]) > 5 * (len(rows) - 1)
    with loader_of(tmp_path, PLAIN, "pages") as other, pytest.raises(StateError, match="schema"):
        other.load_state_dict(states[1])
