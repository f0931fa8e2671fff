"""A usual loader: a PyTorch DataLoader over numpy rows, collated into the batch that the model takes.

Row groups are dealt to the ranks as FreeScale deals them, and a batch is the next rows of the rank. So a step
of this loader and a step of FreeScale's loader train on the same global batch. One worker process reads
ahead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchrec import KeyedJaggedTensor

from freescale_tools.demo.data import DemoData, SideTable, TableSource
from freescale_tools.demo.plain_histories import PlainHistories
from fsdata.batch.batch import Batch, StepStats
from fsdata.order.deal import epoch_streams
from fsdata.order.mix import merge_order, merged_units, sequential_units

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file."""

    table: TableSource
    path: str
    index: int
    rows: int


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded row group under the fields' names.

    lists: field -> (where the lists begin [rows], where they end [rows], values).
    """

    lists: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    scalars: dict[str, np.ndarray]

    def row(self, index: int) -> Row:
        sample = {name: values[starts[index] : ends[index]] for name, (starts, ends, values) in self.lists.items()}
        return sample | {name: values[index] for name, values in self.scalars.items()}


class Rows(IterableDataset):
    """The rows of one rank, each a dict: a list field is an array of events, a scalar field one value."""

    def __init__(self, data: DemoData, *, rank: int, world_size: int) -> None:
        self.data = data
        self.tables = [_row_groups(table) for table in data.tables]
        sizes = [np.array([group.rows for group in groups], np.int64) for groups in self.tables]
        self.units = merged_units(sizes, self._times) if data.time else sequential_units(sizes)
        streams = epoch_streams(
            self.units.row_counts, world_size=world_size, shuffle=False, shuffle_window=1, seed=0, epoch=0
        )
        self.pieces = [piece for window in streams[rank] for piece in window.pieces]

    def __iter__(self) -> Iterator[Row]:
        sides = [None if table.side is None else _side_table(table.side) for table in self.data.tables]
        tables = [
            None if table.histories is None else PlainHistories.read(table.histories, self.data.fields)
            for table in self.data.tables
        ]
        read = lru_cache(maxsize=2 * len(self.tables))(lambda source, group: self._read(source, group, tables[source]))
        for piece in self.pieces:
            parts = self.units[piece.unit].ranges
            order = np.arange(self.units[piece.unit].rows)
            if self.data.time:
                times = [self._times(part.source, part.group)[part.start : part.stop] for part in parts]
                order = merge_order(self.units[piece.unit], times)
            where = [(part, row) for part in parts for row in range(part.start, part.stop)]
            for index in order[piece.start : piece.stop]:
                part, row = where[index]
                sample = read(part.source, part.group).row(row)
                yield sample | _looked_up(self.data.tables[part.source].side, sides[part.source], sample)

    def _times(self, source: int, group: int) -> np.ndarray:
        assert self.data.time is not None
        of = self.tables[source][group]
        column = of.table.columns.get(self.data.time, self.data.time)
        with pq.ParquetFile(of.path) as file:
            return file.read_row_group(of.index, columns=[column], use_threads=False)[column].to_numpy()

    def _read(self, source: int, group: int, histories: PlainHistories | None) -> Columns:
        of = self.tables[source][group]
        joined = {} if of.table.side is None else of.table.side.fields
        context = [feature.name for feature in self.data.context if feature.name not in joined]
        scalars = [name for name in (*context, *self.data.dense) if name not in of.table.defaults]
        lists = self.data.fields if histories is None else (histories.join.on, histories.join.at)
        renamed = {name: of.table.columns.get(name, name) for name in (*lists, *scalars)}
        with pq.ParquetFile(of.path) as file:
            table = file.read_row_group(of.index, columns=list(renamed.values()), use_threads=False)
        single = {name: table[renamed[name]].to_numpy() for name in scalars}
        if histories is None:
            found = {name: _list_column(table[renamed[name]]) for name in self.data.fields}
        else:
            windows = histories.windows(pl.DataFrame(table))
            found = {name: (*windows, values) for name, values in histories.fields.items()}
        return Columns(
            lists=found,
            scalars=single | {name: np.full(of.rows, value) for name, value in of.table.defaults.items()},
        )


def _row_groups(table: TableSource) -> list[RowGroup]:
    found = []
    for path in table.paths:
        metadata = pq.read_metadata(path)
        rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        found += [RowGroup(table, str(path), index, count) for index, count in enumerate(rows)]
    return found


def _list_column(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(where lists begin, where they end, values) of a list column."""
    array = column.combine_chunks()
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    return ends - lengths, ends, array.flatten().to_numpy(zero_copy_only=False)


def _side_table(side: SideTable) -> dict[int, Row]:
    """Key -> fields of the side table."""
    table = pq.read_table(side.path, columns=[side.on, *side.fields], use_threads=False)
    columns = {name: table[name].to_numpy() for name in side.fields}
    keys = table[side.on].to_numpy().tolist()
    return {key: {name: values[row] for name, values in columns.items()} for row, key in enumerate(keys)}


def _looked_up(side: SideTable | None, found: dict[int, Row] | None, sample: Row) -> Row:
    if side is None or found is None:
        return {}
    return found.get(int(sample[side.on]), side.fields)


@dataclass(frozen=True, slots=True)
class Collate:
    """Rows -> (values, lengths, dense), the parts of a batch that go through the worker's queue."""

    fields: tuple[str, ...]
    context: tuple[str, ...]
    dense: tuple[str, ...]
    max_length: int | None

    def __call__(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """values int64, key after key; lengths int64 [keys * B]; dense float32 [B, D]."""
        values = [np.array([row[name] for row in rows], np.int64) for name in self.context]
        lengths = [np.ones(len(rows), np.int64) for _ in self.context]
        for name in self.fields:
            kept = [row[name] if self.max_length is None else row[name][-self.max_length :] for row in rows]
            values.append(np.concatenate(kept).astype(np.int64, copy=False))
            lengths.append(np.array([len(events) for events in kept], np.int64))
        dense = np.array([[row[name] for name in self.dense] for row in rows], np.float32)
        return (
            torch.from_numpy(np.concatenate(values)),
            torch.from_numpy(np.concatenate(lengths)),
            torch.from_numpy(dense.reshape(len(rows), len(self.dense))),
        )


class PlainLoader:
    """One epoch of batches of one rank. Incomplete batches at the end are left out."""

    def __init__(self, data: DemoData, *, rank: int, world_size: int, workers: int = 1) -> None:
        context = tuple(feature.name for feature in data.context)
        self.keys = [*context, *data.fields]
        self.world_size = world_size
        self.batch_size = data.batch_size
        self.loader: DataLoader[Any] = DataLoader(
            Rows(data, rank=rank, world_size=world_size),
            batch_size=data.batch_size,
            collate_fn=Collate(data.fields, context, data.dense, data.max_length),
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            drop_last=True,
        )
        self.rank = rank

    def __iter__(self) -> Iterator[Batch]:
        samples = self.batch_size
        row = torch.arange(samples)
        origin = torch.stack([torch.full_like(row, self.rank), row], dim=1)
        for step, (values, lengths, dense) in enumerate(self.loader):
            stats = StepStats(
                epoch=0,
                step=step,
                world_size=self.world_size,
                samples=samples,
                global_samples=samples * self.world_size,
            )
            features = KeyedJaggedTensor(keys=self.keys, values=values, lengths=lengths, stride=samples)
            yield Batch(features=features, dense=dense, labels={}, jagged={}, origin=origin, stats=stats)
