"""The Parquet files of the golden tests and how loaders read them.

The files lie in `files/`, because a saved state knows the bytes of their footers, and those differ between releases of
pyarrow. `write_files` is how they were made: 44 rows of our own in three files, 19 of a partner below folders that give
a column, and a table of users.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata import Join, ParquetSource, Schema, Sequence

HERE = Path(__file__).parent
FILES = HERE / "files"

SCHEMA = Schema(
    sequences=(
        Sequence("uih", ("item", "action"), floats=("price",), max_length=7),
        Sequence("recent", ("seen",), max_length=3, keep="first"),
    ),
    candidates=Sequence("candidates", ("candidate",)),
    context=("row", "user_id", "country", "segment"),
    dense=("age", "hour"),
    labels=("click", "bought"),
    time="at",
)

JOB = """[schema]
context = ["row", "user_id", "country"]
dense = ["age"]
labels = ["bought"]

[[schema.sequences]]
name = "uih"
fields = ["item"]
max_length = 5
keep = "first"

[[sources]]
paths = "own/*.parquet"
filter = "row % 5 <> 2 AND user_id IN (0, 1, 2, 4, 5, 7)"
defaults = { age = -1 }
nulls = { bought = "drop" }

[sources.columns]
country = { sql = "CASE WHEN country_code > 20 THEN country_code % 20 ELSE 3 * country_code END" }
"""


def number(*key: object, below: int) -> int:
    """An integer from 0 to `below` - 1 that follows from `key` alone, on every machine and release."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % below


def sources(folder: Path, *, dropping: bool = False) -> list[ParquetSource]:
    """Both sources below `folder`; with `dropping` rows leave through a filter and through nulls."""
    users = ParquetSource(
        str(folder / "users.parquet"), columns={"user_id": "uid", "segment": "seg"}, defaults={"segment": -1}
    )
    code = pl.col("country_code")
    own = ParquetSource(
        str(folder / "own" / "*.parquet"),
        columns={"country": pl.when(code > 20).then(code * 3 % 11).otherwise(code + 100), "action": "kind"},
        defaults={"price": 0.5, "age": 30, "hour": 12, "bought": 0.25},
        nulls={"bought": "drop" if dropping else "default", "age": "default"},
        join=[Join(users, on="user_id", fields=("segment",))],
        filter=(pl.col("row") % 7 != 3) & (code != 4) if dropping else None,
    )
    partner = ParquetSource(
        str(folder / "partner"),
        columns={"item": "items", "hour": "day"},
        defaults={"country": 77, "segment": 5, "price": 1.5, "action": 9},
        weight=2.0,
    )
    return [own, partner]


def write_files(folder: Path) -> None:
    """Make the files anew. With another release of pyarrow their footers may come out different."""
    for file, (first, rows) in enumerate([(0, 17), (17, 16), (33, 11)]):
        _write(folder / "own" / f"part-{file}.parquet", _own(range(first, first + rows)), 5)
    _write(folder / "partner" / "day=3" / "a.parquet", _partner(range(100, 111)), 4)
    _write(folder / "partner" / "day=14" / "b.parquet", _partner(range(111, 119)), 8)
    _write(folder / "users.parquet", {"uid": pa.array(range(7)), "seg": pa.array([n * n for n in range(7)])}, 4)
    (folder / "job.toml").write_text(JOB, encoding="utf-8")


def _write(path: Path, columns: dict[str, pa.Array], group: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = {"use_dictionary": ["row", "seen"], "write_statistics": ["row", "at"], "compression": "zstd"}
    pq.write_table(pa.table(columns), path, row_group_size=group, write_page_checksum=True, **small)


def _own(rows: range) -> dict[str, pa.Array]:
    history = [0 if row % 4 == 0 else 1 + number("own", row, below=11) for row in rows]
    shared = _shared(rows)
    return {
        **shared,
        "at": pa.array([row * 10 + number("at", row, below=5) for row in rows]),
        "country_code": pa.array([number("country", row, below=40) for row in rows], pa.int16()),
        "item": _lists("item", rows, history, pa.list_(pa.int64())),
        "kind": _lists("kind", rows, history, pa.list_(pa.int32())),
        "price": _prices(rows, history),
        "age": pa.array([_age(row) for row in rows], pa.float64()),
        "hour": pa.array([None if row % 11 == 5 else row % 24 for row in rows], pa.int8()),
        "bought": pa.array([None if row % 13 == 6 else float(row % 2) for row in rows], pa.float32()),
    }


def _partner(rows: range) -> dict[str, pa.Array]:
    history = [number("partner", row, below=10) for row in rows]
    return {
        **_shared(rows),
        "at": pa.array([(row - 100) * 23 + number("at", row, below=20) for row in rows]),
        "items": _lists("item", rows, history, pa.large_list(pa.int32())),
        "age": pa.array([20 + row / 8 for row in rows], pa.float32()),
        "bought": pa.array([float(row % 3 == 0) for row in rows], pa.float64()),
    }


def _shared(rows: range) -> dict[str, pa.Array]:
    """What both sources have: candidates with a label each, and a second sequence."""
    candidates = [number("candidates", row, below=4) for row in rows]
    seen = [number("seen", row, below=6) for row in rows]
    clicks = [
        [float(number("click", row, i, below=2)) for i in range(n)] for row, n in zip(rows, candidates, strict=True)
    ]
    return {
        "row": pa.array(rows),
        "user_id": pa.array([number("user", row, below=9) for row in rows], pa.int32()),
        "candidate": _lists("candidate", rows, candidates, pa.list_(pa.int64())),
        "click": pa.array(clicks, pa.list_(pa.float32())),
        "seen": _lists("seen", rows, seen, pa.list_(pa.int64())),
    }


def _lists(name: str, rows: range, lengths: list[int], kind: pa.DataType) -> pa.Array:
    counted = zip(rows, lengths, strict=True)
    return pa.array([[number(name, row, i, below=1000) for i in range(count)] for row, count in counted], kind)


def _prices(rows: range, lengths: list[int]) -> pa.Array:
    """Eighths; some elements are null."""
    counted = zip(rows, lengths, strict=True)
    values: list[list[Any]] = [[number("price", row, i, below=99) / 8 for i in range(n)] for row, n in counted]
    return pa.array([[None if one > 11 else one for one in each] for each in values], pa.list_(pa.float64()))


def _age(row: int) -> float | None:
    return None if row % 9 == 2 else float("nan") if row % 9 == 7 else 18 + row / 3
