"""A small set of two sources that disagree on names and types, and what a batch of it holds, sample by sample."""

from pathlib import Path

import data_kit as kit
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata import ParquetSource, Schema, Sequence

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item", "action"), floats=("price",), max_length=9),),
    candidates=Sequence("candidates", ("candidate",)),
    context=("row", "country"),
    dense=("age", "hour"),
    labels=("click", "bought"),
    time="row",
)


def write(folder: Path, rows: int, *, first: int = 0, group: int = 7, partner: bool = False, files: int = 1) -> None:
    """`rows` samples numbered from `first`; every third has an empty history."""
    rng = np.random.default_rng(first + 1)
    for file, numbers in enumerate(np.array_split(np.arange(first, first + rows), files)):
        lengths = [0 if n % 3 == 0 else int(rng.integers(1, 13)) for n in numbers]
        candidates = [int(rng.integers(0, 4)) for _ in numbers]

        def lists(of, kind, rng=rng):
            return pa.array([rng.integers(0, 1000, size=n).tolist() for n in of], kind)

        columns = {
            "row": pa.array(numbers),
            "item": lists(lengths, pa.list_(pa.int64())),
            "action": lists(lengths, pa.list_(pa.int32())),
            "price": lists(lengths, pa.list_(pa.float32())),
            "candidate": lists(candidates, pa.list_(pa.int64())),
            "click": lists(candidates, pa.list_(pa.float32())),
            "bought": pa.array(rng.integers(0, 2, len(numbers)).astype(np.float32)),
            "age": pa.array(rng.random(len(numbers))),
            "hour": pa.array(rng.integers(0, 24, len(numbers))),
            "country": pa.array(rng.integers(0, 9, len(numbers)), pa.int32()),
        }
        if partner:
            columns["items"] = columns.pop("item").cast(pa.large_list(pa.int64()))
            del columns["country"]
        kit.write(folder / f"part-{file}.parquet", columns, group=group)


def two_sources(folder: Path) -> list[ParquetSource]:
    """40 rows in 2 files, 23 rows of a partner."""
    write(folder / "own", 40, files=2)
    write(folder / "partner", 23, first=100, group=10, partner=True)
    return [
        ParquetSource(str(folder / "own")),
        ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}, weight=2.0),
    ]


def expected(folder: Path) -> dict[int, dict]:
    """Every sample as pyarrow reads it, by row number, truncated as the schema says."""
    samples = {}
    for name in ("own", "partner"):
        for path in sorted((folder / name).glob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                row.setdefault("country", 77)
                if "items" in row:
                    row["item"] = row.pop("items")
                for field in ("item", "action", "price"):
                    row[field] = row[field][-9:]
                for field in ("age", "hour"):
                    row[field] = float(np.float32(row[field]))
                samples[row["row"]] = row
    return samples
