"""Decoding the rows of a plan's pieces, in the plan's order."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fsdata.decode.block import SurvivingRows, concat
from fsdata.decode.files.row_group import RowGroupBytes
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.row_layout import Layout
from fsdata.order.mix import Keys, Unit, merge_order
from fsdata.order.stream import Piece

RowGroups = Sequence[RowGroupBytes | None]
"""What was read ahead for a piece: one for each row group that it is decoded from, or nothing."""


class ByNumber(Protocol):
    """Units by number."""

    def __getitem__(self, number: int, /) -> Unit: ...


def piece_reader(
    sources: Sequence[OpenSource], layout: Layout, units: ByNumber, keys: Keys | None
) -> Callable[[Piece, RowGroups], SurvivingRows]:
    """A function that decodes one piece; safe to call from several threads. `keys` order the rows of merged units."""

    def read(piece: Piece, fetched: RowGroups) -> SurvivingRows:
        unit = units[piece.unit]
        if len(unit.ranges) == 1:
            row_range = unit.ranges[0]
            source = sources[row_range.source]
            start = row_range.start + piece.start
            return source.read(source.groups[row_range.group], layout, start, start + piece.rows, *fetched)
        assert keys is not None
        return _read_merged(sources, layout, unit, keys, piece, fetched)

    return read


def fetch_planner(
    sources: Sequence[OpenSource], layout: Layout, units: ByNumber
) -> Callable[[Piece], list[RowGroupBytes | None]]:
    """A function that says which row groups a piece is decoded from."""

    def row_groups(piece: Piece) -> list[RowGroupBytes | None]:
        here = ((sources[each.source], each.group) for each in units[piece.unit].ranges)
        return [source.fetch(source.groups[group], layout) for source, group in here]

    return row_groups


def _read_merged(
    sources: Sequence[OpenSource], layout: Layout, unit: Unit, keys: Keys, piece: Piece, fetched: RowGroups
) -> SurvivingRows:
    range_keys = [
        keys(row_range.source, row_range.group)[row_range.start : row_range.stop] for row_range in unit.ranges
    ]
    order = merge_order(unit, range_keys)[piece.start : piece.stop]
    parts, kept, first = [], [], 0
    for number, row_range in enumerate(unit.ranges):
        source = sources[row_range.source]
        here = source.groups[row_range.group], layout, row_range.start, row_range.stop
        found = source.read(*here, *fetched[number : number + 1])
        parts.append(found.rows)
        kept.append(first + (np.arange(row_range.rows) if found.kept is None else found.kept))
        first += row_range.rows
    rows = concat(parts)
    if rows.num_rows == unit.rows:
        return SurvivingRows(rows.take(order), None)
    where = np.full(unit.rows, -1)
    where[np.concatenate(kept)] = np.arange(rows.num_rows)
    alive = np.flatnonzero(where[order] >= 0)
    return SurvivingRows(rows.take(where[order[alive]]), alive)
