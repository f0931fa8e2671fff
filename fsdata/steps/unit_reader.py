"""Decoding the rows of a plan's pieces, in the plan's order."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import SurvivingRows, concat
from fsdata.order.deal import Piece
from fsdata.order.mix import Keys, Unit, merge_order


class Source(Protocol):
    """An opened source."""

    @property
    def groups(self) -> Sequence[Any]: ...
    def read(self, group: Any, layout: Layout, start: int, stop: int) -> SurvivingRows: ...


def piece_reader(
    sources: Sequence[Source], layout: Layout, units: Sequence[Unit], keys: Keys | None
) -> Callable[[Piece], SurvivingRows]:
    """A function that decodes one piece; safe to call from several threads. `keys` order the rows of merged units."""

    def read(piece: Piece) -> SurvivingRows:
        unit = units[piece.unit]
        if len(unit.parts) == 1:
            part = unit.parts[0]
            source = sources[part.source]
            start = part.start + piece.start
            return source.read(source.groups[part.group], layout, start, start + piece.rows)
        assert keys is not None
        return _read_merged(sources, layout, unit, keys, piece)

    return read


def _read_merged(sources: Sequence[Source], layout: Layout, unit: Unit, keys: Keys, piece: Piece) -> SurvivingRows:
    part_keys = [keys(part.source, part.group)[part.start : part.stop] for part in unit.parts]
    order = merge_order(unit, part_keys)[piece.start : piece.stop]
    tables, kept, first = [], [], 0
    for part in unit.parts:
        source = sources[part.source]
        rows = source.read(source.groups[part.group], layout, part.start, part.stop)
        tables.append(rows.table)
        kept.append(first + (np.arange(part.rows) if rows.kept is None else rows.kept))
        first += part.rows
    table = concat(tables)
    if table.num_rows == unit.rows:
        return SurvivingRows(table.take(order), None)
    where = np.full(unit.rows, -1)
    where[np.concatenate(kept)] = np.arange(table.num_rows)
    alive = np.flatnonzero(where[order] >= 0)
    return SurvivingRows(table.take(where[order[alive]]), alive)
