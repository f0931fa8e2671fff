"""The Parquet files of the golden tests and how loaders read them.

The files lie in `files/`, because a saved state knows the bytes of their footers, and those differ between releases of
pyarrow: 44 rows of our own in three files, 19 of a partner below folders that give a column, a table of users, and the
job file `job.py`.
"""

from hashlib import blake2b
from pathlib import Path

import polars as pl

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
