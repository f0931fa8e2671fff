"""A column may be several things at once: a field, the key of joins, the time of a row, what a filter reads."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pyarrow as pa
from data_kit import read as read_samples
from data_kit import write
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fsdata import AsOf, Join, ParquetSource, Schema, Sequence

ROWS, USERS = 16, 4
TIMES = range(0, 3 * ROWS, 5)  # of the events of every key
KINDS = {"int64": pa.int64(), "int32": pa.int32(), "date": pa.date32(), "timestamp": pa.timestamp("us")}
NUMBERS = ["int64", "int32", "folder"]  # folder: the column is the `key=value` folder of its files
FIELDS = [("context", kind) for kind in [*NUMBERS, "date", "timestamp"]]
FIELDS += [(field, kind) for field in ("dense", "labels", "passthrough", None) for kind in NUMBERS]
READERS = ("join", "history", "at", "time", "filter", "share", "expression", "twin", "map")
"""What reads a column besides the field of its name; `twin` is a second field of the column."""


def x_of(row: int) -> int:
    return 3 * row


def write_all(folder: Path, kind: str, null: int | None) -> None:
    """Rows in two sources, the even and the odd ones; a side table and histories for values of `x`, and for users."""
    stored = KINDS.get(kind, pa.int64())
    for source in range(2):
        rows = [row for row in range(ROWS) if row % 2 == source]
        parts = [[row] for row in rows] if kind == "folder" else [rows]
        for part in parts:
            columns = {
                "row": part,
                "user": [row % USERS for row in part],
                "stamp": pa.array([x_of(row) for row in part], stored),
                "x": pa.array([None if row == null else x_of(row) for row in part], stored),
            }
            where = folder / f"rows{source}"
            if kind == "folder":
                del columns["x"]
                where /= "x=__HIVE_DEFAULT_PARTITION__" if part[0] == null else f"x={x_of(part[0]):02d}"
            write(where / f"{part[0]:02d}.parquet", columns, group=3)
    for key, values in (("x", [x_of(row) for row in range(ROWS)]), ("user", list(range(USERS)))):
        keys = pa.array(values, stored if key == "x" else pa.int64())
        some = [at for at in range(len(values)) if at % 3]
        write(folder / "side" / f"{key}.parquet", {key: keys.take(pa.array(some)), "side": some})
        times = pa.array([list(TIMES)] * len(values), pa.list_(stored))
        events = [[100 * at + number for number in range(len(TIMES))] for at in range(len(values))]
        write(folder / "histories" / f"{key}.parquet", {key: keys, "when": times, "event": events}, group=2)


def expected(row: int, field: str | None, reads: set[str], null: int | None) -> dict[str, Any]:
    at, user = row if "join" in reads else row % USERS, row % USERS
    unknown = row == null
    seen = [number for number, time in enumerate(TIMES) if time < x_of(row)]
    key = row if "history" in reads else user
    found = {
        "row": row,
        "side": -1 if at % 3 == 0 or (unknown and "join" in reads) else at,
        "event": [] if unknown and "history" in reads else [100 * key + number for number in seen],
    }
    found |= {"x": 500 if unknown else x_of(row)} if field else {}
    found |= {"plus": 600 if unknown else x_of(row) + 1} if "expression" in reads else {}
    found |= {"twin": 700 if unknown else x_of(row)} if "twin" in reads else {}
    return found


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def read(folder: Path, decoder: str, field: str | None, reads: set[str], null: int | None) -> list[dict[str, Any]]:
    def key(reader: str, other: str) -> str:
        return "x" if reader in reads else other

    columns: dict[str, Any] = {"plus": pl.col("x").cast(pl.Int64) + 1} if "expression" in reads else {}
    columns |= {"twin": "x"} if "twin" in reads else {}
    defaults = {name: number for name, number in (("plus", 600), ("twin", 700)) if name in columns}
    on, of = key("join", "user"), key("history", "user")
    side = ParquetSource(folder / "side" / f"{on}.parquet", defaults={"side": -1}, decoder=decoder)
    histories = ParquetSource(folder / "histories" / f"{of}.parquet", decoder=decoder)
    sources = [
        ParquetSource(
            folder / f"rows{source}",
            columns=columns,
            defaults={} if null is None else defaults | ({"x": 500} if field else {}),
            join=[
                Join(side, on=on, fields=("side",)),
                AsOf(histories, on=of, at=key("at", "stamp"), time="when", fields=("event",)),
            ],
            filter=pl.col("x").cast(pl.Int64) >= 10 if "filter" in reads else None,
            map=same if "map" in reads else None,
            decoder=decoder,
        )
        for source in range(2)
    ]
    uih = Sequence("uih", ("event",), share=of if "share" in reads else None)
    roles: dict[str, tuple[str, ...]] = {"context": ("row", "side", *columns)}
    if field:
        roles[field] = (*roles.get(field, ()), "x")
    schema = Schema(sequences=(uih,), time=key("time", "stamp"), **roles)  # type: ignore[arg-type]
    mix = "time" if "time" in reads else "sequential"
    return read_samples(sources, schema, batch_size=ROWS, mix=mix)


@given(of=st.sampled_from(FIELDS), reads=st.sets(st.sampled_from(READERS)), null=st.none() | st.just(5))
@example(of=("labels", "int64"), reads={"join"}, null=None)
@example(of=("context", "timestamp"), reads=set(READERS), null=None)
@example(of=("labels", "int32"), reads=set(READERS), null=None)
@example(of=("dense", "int64"), reads=set(READERS) - {"at", "time", "map"}, null=5)
@example(of=("passthrough", "folder"), reads=set(READERS) - {"map"}, null=None)
@example(of=(None, "folder"), reads={"join", "history"}, null=5)
def test_a_column_is_all_that_it_is_named_for(of: tuple[str | None, str], reads: set[str], null: int | None) -> None:
    field, kind = of
    assume(null is None or not reads & {"at", "time"})  # those have no nulls
    kept = [row for row in range(ROWS) if "filter" not in reads or (x_of(row) >= 10 and row != null)]
    last = null if kind == "folder" else None  # in the order of the files
    order = kept if "time" in reads else sorted(kept, key=lambda row: (row % 2, row == last, row))
    with TemporaryDirectory() as name:
        write_all(Path(name), kind, null)
        for decoder in ("pyarrow", "pages"):
            found = read(Path(name), decoder, field, reads, null)
            assert found == [expected(row, field, reads, null) for row in order], decoder
