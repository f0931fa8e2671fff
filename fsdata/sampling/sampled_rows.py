"""The stage that shortens the lists of sampled sequences, after they are aligned and truncated.

All fields of a sequence keep the same events. `select="newest"` changes starts and lengths only. With
`select="uniform"`, the chosen values of shortened rows are copied to pooled memory, where they follow the values of the
column: rows that stay whole are not copied.

Letters: N rows, R shortened rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fsdata.decode.attached import Stage
from fsdata.decode.block import Block, Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.readers.row_groups import RowGroup
from fsdata.decode.readers.row_reader import RowReader
from fsdata.decode.reused_buffers import Pool
from fsdata.sampling.kernels import chosen as kernels
from fsdata.sampling.stochastic_length import drawn_lengths, row_keys
from fsdata.schema import Schema, StochasticLength
from fsdata.sources.source import ParquetSource


class SampledRows(Stage):
    """The sampled sequences of one source.

    Args:
        files: its reader. seed: the loader's. pool: memory for chosen values.
    """

    turn = 3  # behind histories, before look-ups: only the ids of chosen events are looked up

    def __init__(self, schema: Schema, source: ParquetSource, files: RowReader, *, seed: int, pool: Pool) -> None:
        self._samples = {group.name: group.sample for group in schema.sequences if group.sample is not None}
        lookups = (join for join in source.join if join.kind == "lookup table")
        self._looked_up = frozenset(name for join in lookups for name in join.fields)
        self._files, self._seed, self._pool = files, seed, pool

    def finish(self, decoded: DecodedRows) -> None:
        """Shorten the lists of the rows that draw it."""
        row_group, row = _numbers(decoded.groups, decoded.rows)
        file = self._files.catalog.digest(decoded.groups[0].file)
        for name, slots in decoded.layout.aligned:
            sample = self._samples.get(name)
            if sample is None:
                continue
            keys = row_keys(
                seed=self._seed, epoch=decoded.epoch, sequence=name, file=file, row_group=row_group, row=row
            )
            # Fields that are looked up follow from those of their ids.
            own = [slot for slot in slots if decoded.layout.fields[slot].name not in self._looked_up]
            self._shorten(decoded, name, own, sample, keys)

    def _shorten(
        self, decoded: DecodedRows, name: str, slots: Sequence[int], sample: StochasticLength, keys: np.ndarray
    ) -> None:
        """slots: of the fields of the sequence. keys: uint64 [N]."""
        columns, first = decoded.columns, decoded.layout.fields[slots[0]]
        assert first.max_length is not None
        whole = np.where(decoded.drop, 0, columns[slots[0]].lengths(len(decoded.rows)))
        length = drawn_lengths(sample, first.max_length, whole, keys)
        rows = np.flatnonzero(length < whole)
        if not len(rows):
            return
        every, nested = range(len(decoded.layout.fields)), decoded.layout.nested.get(name)
        pairs = [] if nested is None else list(zip(every[nested[0]], every[nested[1]], strict=True))
        if sample.select == "newest":
            skipped = whole - length if first.keep_last else np.zeros_like(whole)
            for of_counts, of_ids in pairs:
                columns[of_ids] = _cut_nested(columns[of_counts], columns[of_ids], skipped, length)
            for slot in slots:
                columns[slot] = _cut(columns[slot], skipped, length)
            return
        if any(columns[slot].resolver is not None for slot in slots):
            rows = np.arange(len(whole))  # their values are copied in any case: retain the chosen ones only
        positions = np.empty(int(length[rows].sum()), np.int32)
        kernels.choose(keys[rows], whole[rows], length[rows], positions)
        for of_counts, of_ids in pairs:
            columns[of_ids] = self._chosen_nested(columns[of_counts], columns[of_ids], rows, whole, length, positions)
        for slot in slots:
            dtype = decoded.layout.fields[slot].dtype
            columns[slot] = self._chosen(columns[slot], dtype, rows, length, positions)

    def _chosen(
        self, column: Column, dtype: Any, rows: np.ndarray, length: np.ndarray, positions: np.ndarray
    ) -> Column:
        """The column in which the lists of `rows`, int64 [R], have the values at `positions`.

        length: int64 [N], new lengths of all lists. positions: int64 [T], in the lists of `rows`, one after another.
        """
        if column.resolver is not None:
            column = _resolved(column, len(length), dtype)
        start, whole = column.bounds
        itemsize = np.dtype(dtype).itemsize
        values = self._pool.take(max(positions.size * itemsize, 1)).array(positions.size, np.dtype(dtype).str)
        block = Block.of([column], len(length))
        kernels.gather_chosen(
            block.columns[0], start[rows], whole[rows], length[rows], positions, itemsize, values.ctypes.data
        )
        ends = np.cumsum(length[rows])
        if len(rows) == len(length):  # nothing refers to the values before: release them
            return Column.of(values, start=ends - length, length=length)
        start = start.copy()
        start[rows] = column.size + ends - length[rows]
        return replace(column.plus(values), start=start, length=length)

    def _chosen_nested(
        self,
        counts: Column,
        ids: Column,
        rows: np.ndarray,
        whole: np.ndarray,
        length: np.ndarray,
        positions: np.ndarray,
    ) -> Column:
        """The ids of the chosen events. counts: number of ids of every event, before events are chosen."""
        numbers = counts.gathered(np.int64, rows)
        before = np.concatenate([[0], np.cumsum(numbers)])
        first_event = np.cumsum(whole[rows]) - whole[rows]
        events = positions + np.repeat(first_event, length[rows])
        each = numbers[events]
        first_id = before[events] - before[np.repeat(first_event, length[rows])]  # in the list of its row
        within = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        sums = np.concatenate([[0], np.cumsum(each)])
        ends = np.cumsum(length[rows])
        of_row = ids.lengths(len(length)).copy()
        of_row[rows] = sums[ends] - sums[ends - length[rows]]
        return self._chosen(ids, np.int64, rows, of_row, (np.repeat(first_id, each) + within).astype(np.int32))


def _numbers(groups: Sequence[RowGroup], rows: np.ndarray) -> tuple[np.ndarray | int, np.ndarray]:
    """(row group in the file, row in the row group) of decoded rows. rows: see `DecodedRows`."""
    if len(groups) == 1:
        return groups[0].index, rows
    ends = np.cumsum([group.rows for group in groups])
    number = np.searchsorted(ends, rows, side="right")
    index = np.array([group.index for group in groups])
    return index[number], rows - np.concatenate([[0], ends])[number]


def _cut(column: Column, skipped: np.ndarray, length: np.ndarray) -> Column:
    """The column without the first `skipped`, int64 [N], values of each list."""
    start, _ = column.bounds
    at_end = column.resolver is not None and column.resolver.from_end
    return replace(column, start=start if at_end else start + skipped, length=length)


def _cut_nested(counts: Column, ids: Column, skipped: np.ndarray, length: np.ndarray) -> Column:
    """The ids of the events that stay. counts: number of ids of every event, before events are skipped."""
    whole = counts.lengths(len(length))
    sums = np.concatenate([[0], np.cumsum(counts.gathered(np.int64, np.arange(len(length))))])
    first = np.cumsum(whole) - whole
    start, _ = ids.bounds
    dropped = sums[first + skipped] - sums[first]
    return replace(ids, start=start + dropped, length=sums[first + skipped + length] - sums[first + skipped])


def _resolved(column: Column, rows: int, dtype: Any) -> Column:
    """The column with a copy of the values that its resolver finds."""
    length = column.lengths(rows)
    values = column.gathered(dtype, np.arange(rows))
    return Column.of(values, start=np.cumsum(length) - length, length=length)
