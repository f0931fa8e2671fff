"""Requests and histories in files, and what a loader has to make of them, in plain Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from data_kit import as_python, load, write

from fsdata import AsOf, ParquetSource, Schema, Sequence

STORED = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool_")
UIH = Sequence("uih", ("item",), floats=("price",), max_length=4)
POOL = Sequence("pool", ("bought",), max_length=2, keep="first", labels=("stars",), id_labels=("next",))
SCHEMA = Schema(sequences=(UIH, POOL), context=("row", "user"))


@dataclass(frozen=True, kw_only=True)
class Data:
    """Requests: (row, user or None, at). Histories: user -> events, each a dict of numbers."""

    requests: list[tuple[int, int | None, int]]
    histories: dict[int, list[dict[str, Any]]]
    stored: str = "int32"

    @classmethod
    def drawn(cls, seed: int, requests: int = 40, users: int = 7, stored: str = "int32") -> "Data":
        """Times are few, so that many are equal; some users have no history, and some have an empty one."""
        random = np.random.default_rng(seed)
        histories = {}
        for user in random.permutation(users).tolist():
            if user % 5 == 3:
                continue
            times = np.sort(random.integers(0, 30, random.integers(0, 12)))
            histories[user * 3] = [
                {
                    "time": int(time),
                    "known": int(time + (random.integers(0, 9) if random.random() < 0.4 else 0)),
                    "item": bool(random.integers(2)) if stored == "bool_" else int(random.integers(100)),
                    "price": float(np.float32(random.random())),
                    "kind": int(random.integers(0, 3)),
                }
                for time in times
            ]
        rows = [
            (row, None if random.random() < 0.1 else int(random.integers(0, users)) * 3, int(random.integers(0, 35)))
            for row in range(requests)
        ]
        return cls(requests=rows, histories=histories, stored=stored)

    def write(self, folder: Path, files: int = 2, group: int = 5) -> None:
        rows, users = self.requests, list(self.histories)
        for file in range(files):
            some, of_users = rows[file::files], users[file::files]
            some.sort()
            requests = {
                "row": pa.array([row for row, _, _ in some], pa.int64()),
                "user": pa.array([user for _, user, _ in some], pa.int32()),
                "at": pa.array([at for _, _, at in some], pa.int64()),
            }
            write(folder / "requests" / f"{file}.parquet", requests, group=group)
            lists = {"item": getattr(pa, self.stored)(), "price": pa.float64(), "kind": pa.int8()}
            lists |= {"time": pa.int64(), "known": pa.int64()}
            columns = {
                name: pa.array([[event[name] for event in self.histories[user]] for user in of_users], pa.list_(kind))
                for name, kind in lists.items()
            }
            columns["user"] = pa.array(of_users, pa.int64())
            write(folder / "histories" / f"{file}.parquet", columns, group=2)

    def expected(self, *, known: bool = False, inclusive: bool = False) -> dict[int, dict[str, list[float]]]:
        """By row: the lists of every field; of the pool, events of kind 1 only."""
        found = {}
        for row, user, at in self.requests:
            limit = at + 1 if inclusive else at
            events = [
                event
                for event in self.histories.get(-1 if user is None else user, [])
                if event["time"] < limit and (not known or event["known"] < limit)
            ]
            pool = [event for event in events if event["kind"] == 1][:2]
            found[row] = {
                "item": [int(event["item"]) for event in events[-4:]],
                "price": [event["price"] for event in events[-4:]],
                "bought": [int(event["item"]) for event in pool],
                "stars": [float(np.float32(event["price"])) for event in pool],
                "next": [event["kind"] for event in pool],
            }
        return found


def source(
    folder: Path, *, known: bool = False, inclusive: bool = False, bucketed: int | None = None, **options: Any
) -> ParquetSource:
    paths = str(folder / "histories")
    given: dict[str, Any] = {"on": "user", "at": "at", "time": "time", "inclusive": inclusive, "bucketed": bucketed}
    given["known_at"] = "known" if known else None
    pool = ParquetSource(paths, columns={"bought": "item", "stars": "price", "next": "kind"})
    return ParquetSource(
        str(folder / "requests"),
        defaults={"user": -1},
        join=[
            AsOf(ParquetSource(paths), fields=("item", "price"), **given),
            AsOf(pool, fields=("bought", "stars", "next"), where=pl.col("next") == 1, **given),
        ],
        **options,
    )


FIELDS = ("item", "price", "bought", "stars", "next")


def samples(batch: Any) -> dict[int, dict[str, list[float]]]:
    """By row: the lists of every field, also of sequences that share them."""
    return {sample["row"]: {name: sample[name] for name in FIELDS} for sample in as_python(batch)}


def read(folder: Path, options: dict[str, Any] | None = None, **loading: Any) -> dict[int, dict[str, list[float]]]:
    """Everything that a loader gives, by row."""
    batches, _ = load(source(folder, **(options or {})), SCHEMA, **{"batch_size": 7, **loading})
    return {row: lists for batch in batches for row, lists in samples(batch).items()}
