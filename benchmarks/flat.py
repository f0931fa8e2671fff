"""What loading costs where rows are flat, wide, short or many: each shape against pyarrow and twenty lines of it.

    python benchmarks/flat.py [--rounds 5] [--only TEXT]

One process, one decoding thread. A first epoch of every way is not counted; then all ways of a shape take turns, in
alternating order, and the least processor time of each counts. Raw: `read_row_group` of the columns that are read,
in order, results dropped. Twenty lines: the same tables, cut into batches of tensors (`twenty_lines`).
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from common.reference import COLUMNS, flat_table, reference_schema
from common.table import argument_parser, emit
from torchrec import KeyedJaggedTensor
from ways.common import concatenated

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

Way = Callable[[], int]
"""One epoch -> its rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A file of equal row groups, what of it is read, and which ratios are asked for.

    Attributes:
        table: makes one row group of so many rows. groups: of the file.
        in_order, shuffled: over raw; peer: in order, over twenty lines.
    """

    name: str
    table: Callable[[int], pa.Table]
    schema: Schema
    rows: int
    groups: int
    batch: int = 512
    compression: str = "zstd"
    in_order: float | None = None
    shuffled: float | None = None
    peer: float | None = None


def lists(rows: int, columns: int, low: int, high: int) -> pa.Table:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(low, high + 1, rows) for _ in range(columns)]
    starts = [np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths]
    return pa.table(
        {f"l{n}": pa.ListArray.from_arrays(s, pa.array(rng.integers(0, 10**6, s[-1]))) for n, s in enumerate(starts)}
    )


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"i{n}" for n in range(count))


def sequences(count: int) -> tuple[Sequence, ...]:
    return tuple(Sequence(f"s{n}", fields=(f"l{n}",)) for n in range(count))


CTR = reference_schema(COLUMNS["flat"])
TWENTY, TEN, MANY = Schema(context=ids(20)), Schema(context=ids(10)), Schema(context=ids(500))
SHAPES = (
    *(
        Shape(
            name=f"40 of 200 columns, {compression}, row groups of {rows:,}",
            table=lambda rows: flat_table(rows, 26, 13, 160),
            schema=CTR,
            rows=rows,
            groups=groups,
            batch=4096,
            compression=compression,
            in_order=in_order,
            shuffled=shuffled,
        )
        for compression, in_order, shuffled in (("zstd", 1.3, 1.6), ("none", 1.5, 2.0))
        for rows, groups in ((6_144, 60), (100_000, 8))
    ),
    *(
        Shape(
            name=f"500 id columns, row groups of {rows:,}",
            table=lambda rows: flat_table(rows, 500),
            schema=MANY,
            rows=rows,
            groups=groups,
            in_order=1.5,
        )
        for rows, groups in ((2_000, 10), (20_000, 5))
    ),
    Shape(
        name="20 flat ints", table=lambda rows: flat_table(rows, 20), schema=TWENTY, rows=10_000, groups=10, peer=1.0
    ),
    Shape(
        name="4 lists of 1 to 10",
        table=lambda rows: lists(rows, 4, 1, 10),
        schema=Schema(sequences=sequences(4)),
        rows=10_000,
        groups=30,
        peer=1.0,
    ),
    Shape(
        name="10 of 300 columns",
        table=lambda rows: flat_table(rows, 10, 0, 289),
        schema=TEN,
        rows=10_000,
        groups=30,
        peer=1.0,
    ),
    Shape(
        name="4 columns, row groups of 100",
        table=lambda rows: flat_table(rows, 4),
        schema=Schema(context=ids(4)),
        rows=100,
        groups=1000,
        peer=1.0,
    ),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="shapes whose name contains this; not for the record")
    arguments = parser.parse_args()
    rows = [_row(shape, arguments.rounds) for shape in SHAPES if arguments.only in shape.name]
    emit(
        "flat" if not arguments.only else "flat-partial",
        "CPU of an epoch by the shape of rows",
        [
            "shape", "raw, M rows/CPU s", "in order, M rows/CPU s", "in order / raw", "asked", "shuffled / raw",
            "asked shuffled", "twenty lines / raw", "in order / twenty lines", "asked of it",
        ],
        rows,
        notes=["Raw: pyarrow, read_row_group(use_threads=False) of the columns that are read; dropped."],
        results=arguments.results,
        data="random numbers",
    )  # fmt: skip


def _row(shape: Shape, rounds: int) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        table = shape.table(shape.rows)
        with pq.ParquetWriter(path, table.schema, compression=shape.compression) as writer:
            for _ in range(shape.groups):
                writer.write_table(table, row_group_size=shape.rows)
        read = list(shape.schema.field_names)
        ways = {
            "raw": lambda: sum(each.num_rows for each in _row_groups(path, read)),
            "twenty": lambda: sum(each.stride() for each, *_ in twenty_lines(path, shape.schema, shape.batch)),
            "in order": lambda: loaded(path, shape),
            "shuffled": lambda: loaded(path, shape, shuffle=True),
        }
        cpu = measured(ways, rounds)
    raw, twenty, ours = cpu["raw"], cpu["twenty"], cpu["in order"]
    speed = table.num_rows * shape.groups / 1e6
    return [
        shape.name, speed / raw, speed / ours, ours / raw, shape.in_order, cpu["shuffled"] / raw, shape.shuffled,
        twenty / raw, ours / twenty, shape.peer,
    ]  # fmt: skip


def measured(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """The least CPU seconds of each way, which take turns in alternating order."""
    rows = {name: way() for name, way in ways.items()}
    assert len(set(rows.values())) == 1, rows
    found = dict.fromkeys(ways, float("inf"))
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            start = time.process_time()
            ways[name]()
            found[name] = min(found[name], time.process_time() - start)
    return found


def _row_groups(path: Path, read: list[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=read, use_threads=False)


def loaded(path: Path, shape: Shape, *, shuffle: bool = False) -> int:
    source = ParquetSource(path)
    with FreeScaleDataLoader(source, shape.schema, batch_size=shape.batch, shuffle=shuffle, num_threads=1) as loader:
        return sum(len(batch) for batch in loader)


def twenty_lines(
    path: Path, schema: Schema, size: int
) -> Iterator[tuple[KeyedJaggedTensor, torch.Tensor | None, torch.Tensor | None]]:
    """Batches of a KeyedJaggedTensor, dense features and a label, that end with their row group's rows or before."""
    keys = [*schema.context, *(name for group in schema.sequences for name in group.fields)]
    rest: pa.Table | None = None
    for table in _row_groups(path, list(schema.field_names)):
        table = table if rest is None else pa.concat_tables([rest, table])
        whole = table.num_rows // size * size
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        for start in range(0, whole, size):
            yield _batch({name: column.slice(start, size) for name, column in columns.items()}, keys, schema, size)
        rest = table.slice(whole) if whole < table.num_rows else None
    if rest is not None:
        columns = {name: rest.column(name).combine_chunks() for name in rest.column_names}
        yield _batch(columns, keys, schema, rest.num_rows)


def _batch(
    columns: dict[str, pa.Array], keys: list[str], schema: Schema, rows: int
) -> tuple[KeyedJaggedTensor, torch.Tensor | None, torch.Tensor | None]:
    values, lengths = concatenated(columns, keys)
    features = KeyedJaggedTensor(
        keys, torch.from_numpy(values), lengths=torch.from_numpy(lengths.reshape(-1)), stride=rows
    )
    dense = [columns[name].to_numpy() for name in schema.dense]
    label = [torch.from_numpy(columns[name].to_numpy().copy()) for name in schema.labels]
    return features, torch.from_numpy(np.stack(dense, axis=1)) if dense else None, label[0] if label else None


if __name__ == "__main__":
    main()
