"""A small set of two sources that disagree on names and types, and what a batch of it holds, sample by sample."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec import JaggedTensor, KeyedJaggedTensor

from fsdata import Jagged, ParquetSource, Schema, Sequence

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
    folder.mkdir(parents=True, exist_ok=True)
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
        pq.write_table(pa.table(columns), folder / f"part-{file}.parquet", row_group_size=group)


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


def parts_of(features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
    """`features.to_dict()`; also of no samples, where that of torchrec 1.7 and before fails."""
    if features.stride():
        return features.to_dict()
    return {key: JaggedTensor(values=features.values(), lengths=features.lengths()) for key in list(features.keys())}


def samples_of(batch) -> list[dict]:
    """A batch taken apart into plain rows."""
    features = parts_of(batch.features)
    rows = []
    for i in range(len(batch)):
        row = {key: _row(feature, i) for key, feature in features.items()}
        for name in SCHEMA.context:
            (row[name],) = row[name]
        for name, column in zip(SCHEMA.dense, batch.dense[i].tolist(), strict=True):
            row[name] = column
        for name, value in {**batch.labels, **batch.jagged}.items():
            row[name] = value[i].tolist() if isinstance(value, Jagged) else value[i].item()
        rows.append(row)
    return rows


def _row(feature, i: int) -> list[int]:
    offsets = feature.offsets()
    return feature.values()[offsets[i] : offsets[i + 1]].tolist()


def same(one, two) -> bool:
    """Whether two batches are equal bit for bit."""
    pairs = [
        (one.features.values(), two.features.values()),
        (one.features.lengths(), two.features.lengths()),
        (one.dense, two.dense),
        (one.origin, two.origin),
    ]
    for name in one.labels:
        a, b = one.labels[name], two.labels[name]
        pairs += [(a.values, b.values), (a.offsets, b.offsets)] if isinstance(a, Jagged) else [(a, b)]
    for name in one.nested:
        pairs += [
            (one.nested[name].values(), two.nested[name].values()),
            (one.nested[name].lengths(), two.nested[name].lengths()),
        ]
    for name in one.jagged:
        pairs += [
            (one.jagged[name].values, two.jagged[name].values),
            (one.jagged[name].offsets, two.jagged[name].offsets),
        ]
    for name, value in one.passthrough.items():
        if isinstance(value, list):
            pairs.append((torch.tensor(value == two.passthrough[name]), torch.tensor(True)))
        else:
            pairs.append((value, two.passthrough[name]))
    return (
        one.features.keys() == two.features.keys()
        and one.stats == two.stats
        and all(torch.equal(a, b) for a, b in pairs)
    )
