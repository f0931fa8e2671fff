"""Histories with labels and nested ids along them, and the samples in plain Python."""

from pathlib import Path
from typing import Any

import data_kit as kit
import numpy as np
import pyarrow as pa

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

UIH = Sequence(
    "uih",
    ("item",),
    floats=("price",),
    max_length=5,
    labels=("watched", "weight"),
    id_labels=("next_item",),
    nested=("categories", "tags"),
)
RECENT = Sequence("recent", ("seen",), max_length=3, keep="first", labels=("liked",), nested=("shops",))
SCHEMA = Schema(
    sequences=(UIH, RECENT),
    candidates=Sequence("candidates", ("candidate",), labels=("click",)),
    context=("row",),
    labels=("bought",),
)
ROWS = 45
LARGE = 2**53 + 1  # no float64, let alone float32, holds it


def values(row: int) -> dict[str, object]:
    """One sample as the files hold it; every value says where it belongs. Every fourth history is empty."""
    rng = np.random.default_rng(row)
    events, seen, candidates = (0 if row % 4 == 0 else int(rng.integers(1, 12))), row % 5, row % 3
    mark = 1000 * row
    return {
        "row": row,
        "item": [mark + i for i in range(events)],
        "price": [mark + i + 0.5 for i in range(events)],
        "watched": [mark + i + 0.25 for i in range(events)],
        "weight": [-i for i in range(events)],
        "next_item": [LARGE + mark + i for i in range(events)],
        "categories": [[mark + 16 * i + j for j in range((row + i) % 4)] for i in range(events)],
        "tags": [list(range(i % 3)) for i in range(events)],
        "seen": [mark + i for i in range(seen)],
        "shops": [[mark + 16 * i + j for j in range((row + 2 * i) % 3)] for i in range(seen)],
        "liked": [i % 2 == 1 for i in range(seen)],
        "candidate": [mark + i for i in range(candidates)],
        "click": [mark + i + 0.75 for i in range(candidates)],
        "bought": float(row % 2),
    }


TYPES = {
    "watched": pa.list_(pa.float64()),
    "weight": pa.large_list(pa.int16()),
    "next_item": pa.list_(pa.uint64()),
    "liked": pa.list_(pa.bool_()),
    "categories": pa.list_(pa.list_(pa.int64())),
    "tags": pa.large_list(pa.list_(pa.uint16())),
}


def table_of(rows: range, without: tuple[str, ...] = ()) -> pa.Table:
    samples = [values(row) for row in rows]
    names = [name for name in samples[0] if name not in without]
    return pa.table({name: pa.array([sample[name] for sample in samples], TYPES.get(name)) for name in names})


def write(folder: Path) -> str:
    """`ROWS` samples in two files of small row groups."""
    for file, rows in enumerate((range(25), range(25, ROWS))):
        kit.write(folder / f"part-{file}.parquet", table_of(rows), group=6)
    return str(folder)


def loader_on(folder: Path, schema: Schema = SCHEMA, **options: Any) -> FreeScaleDataLoader:
    source = options.pop("sources", None) or ParquetSource(str(folder))
    return kit.loader_on(source, schema, **{"batch_size": 4, **options})


def expected(row: int) -> dict[str, object]:
    """One sample as a batch holds it: cut as the schema says."""
    sample = values(row)
    for group in (UIH, RECENT):
        for name in group.all_fields:
            some = slice(group.max_length) if group.keep == "first" else slice(-group.max_length, None)
            sample[name] = sample[name][some]
    return sample
