"""Another file format in FreeScale: Arrow IPC files (Feather V2) as a `RowSource`, and how fast they are.

    python examples/arrow_ipc.py

A unit is a record batch of a file. Files are mapped into memory, so reading uncompressed numbers copies nothing before
the batch. What a `RowSource` has to say is its schema, how many rows each unit has, and a text that changes when the
rows do; `FreeScaleDataLoader` does all else as with Parquet files: columns, expressions, filters, null policies, joins,
shuffling, balancing, resume.
"""

import glob
import os
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

import fsdata


class ArrowIpc(fsdata.RowSource):
    """All record batches of the files that a glob matches, in the order of their names.

    Making it reads the footers; a file has to stay as it is as long as a loader reads it.
    """

    def __init__(self, paths: str, most_open: int = 64) -> None:
        self._pattern = paths
        self._files = [Path(path) for path in sorted(glob.glob(paths))]
        if not self._files:
            raise FileNotFoundError(f"no file matches {paths!r}")
        self._open = lru_cache(most_open)(_opened)  # its reader may serve several threads: it only slices a mapping
        counts, rows = [], []
        for file in self._files:
            reader = self._open(file)
            if reader.schema.remove_metadata() != self.schema:
                raise fsdata.SchemaError(f"{file} has other columns than {self._files[0]}: {reader.schema}")
            counts.append(reader.num_record_batches)
            rows += [reader.get_batch(number).num_rows for number in range(counts[-1])]
        self._rows = rows
        self._first = [0, *accumulate(counts)]  # unit -> the first one of each file

    @property
    def label(self) -> str:
        return self._pattern

    @property
    def identity(self) -> str:
        """Names and sizes, and how their rows are divided: no paths and no times, which differ between hosts."""
        return repr(([(file.name, file.stat().st_size) for file in self._files], self._rows, str(self.schema)))

    @cached_property
    def schema(self) -> pa.Schema:
        return self._open(self._files[0]).schema.remove_metadata()

    @property
    def rows(self) -> Sequence[int]:
        return self._rows

    def read(self, unit: int, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        file = next(number for number, end in enumerate(self._first[1:]) if unit < end)
        batch = self._open(self._files[file]).get_batch(unit - self._first[file])
        return batch.select(list(names)).slice(start, stop - start)


def _opened(path: Path) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))


def write_samples(folder: Path, rows: int = 20_000, batch_rows: int = 2_000) -> pa.Table:
    """Two files of users with histories of skewed lengths."""
    draw = np.random.default_rng(0)
    lengths = np.minimum(draw.zipf(1.5, rows), 500)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    items = draw.integers(0, 10_000, offsets[-1])
    table = pa.table(
        {
            "user": np.arange(rows),
            "item": pa.ListArray.from_arrays(offsets, items),
            "click": draw.integers(0, 2, rows).astype(np.float32),
        }
    )
    half = rows // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as writer:
            writer.write_table(part, max_chunksize=batch_rows)
    return table


def main() -> None:
    schema = fsdata.Schema(
        context=("user",), sequences=(fsdata.Sequence("uih", fields=("item",), max_length=200),), labels=("click",)
    )
    with tempfile.TemporaryDirectory() as folder:
        table = write_samples(Path(folder))
        source = fsdata.ParquetSource(rows=ArrowIpc(os.path.join(folder, "*.arrow")))
        with fsdata.FreeScaleDataLoader(source, schema, batch_size=256, shuffle=True, rank=0, world_size=1) as loader:
            for _ in range(2):  # the first epoch also imports what batches are made of
                begin = time.perf_counter()
                users = [user for batch in loader for user in batch.features["user"].values().tolist()]
                took = time.perf_counter() - begin
    assert sorted(users) == table["user"].to_pylist()
    print(f"{len(users):,} samples, {len(users) / took:,.0f} a second")


if __name__ == "__main__":
    main()
