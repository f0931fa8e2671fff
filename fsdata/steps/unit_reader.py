"""Decoding the rows of a plan's pieces, in the plan's order."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fsdata.decode.opened_source import OpenSource
from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import SurvivingRows, concat
from fsdata.order.mix import Keys, Unit, merge_order
from fsdata.order.stream import Piece


class ByNumber(Protocol):
    """Units by number."""

    def __getitem__(self, number: int, /) -> Unit: ...


def piece_reader(
    sources: Sequence[OpenSource], layout: Layout, units: ByNumber, keys: Keys | None
) -> Callable[[Piece], SurvivingRows]:
    """A function that decodes one piece; safe to call from several threads. `keys` order the rows of merged units."""

    def read(piece: Piece) -> SurvivingRows:
        unit = units[piece.unit]
        if len(unit.ranges) == 1:
            row_range = unit.ranges[0]
            source = sources[row_range.source]
            start = row_range.start + piece.start
            return source.read(source.groups[row_range.group], layout, start, start + piece.rows)
        assert keys is not None
        return _read_merged(sources, layout, unit, keys, piece)

    return read


def _read_merged(sources: Sequence[OpenSource], layout: Layout, unit: Unit, keys: Keys, piece: Piece) -> SurvivingRows:
    range_keys = [
        keys(row_range.source, row_range.group)[row_range.start : row_range.stop] for row_range in unit.ranges
    ]
    order = merge_order(unit, range_keys)[piece.start : piece.stop]
    tables, kept, first = [], [], 0
    for row_range in unit.ranges:
        source = sources[row_range.source]
        rows = source.read(source.groups[row_range.group], layout, row_range.start, row_range.stop)
        tables.append(rows.table)
        kept.append(first + (np.arange(row_range.rows) if rows.kept is None else rows.kept))
        first += row_range.rows
    table = concat(tables)
    if table.num_rows == unit.rows:
        return SurvivingRows(table.take(order), None)
    where = np.full(unit.rows, -1)
    where[np.concatenate(kept)] = np.arange(table.num_rows)
    alive = np.flatnonzero(where[order] >= 0)
    return SurvivingRows(table.take(where[order[alive]]), alive)
