"""What the tensors of a batch are made of: all that follows from the layout, found once (pure planning)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from fsdata.decode.row_layout import Layout
from fsdata.schema import Field, FieldKind

_DTYPES = {8: torch.int64, 4: torch.float32, 1: torch.uint8}
_NO_TENSOR = ("counts", "nested_ids", "reference", "mask")  # of no tensor of their own, or named elsewhere


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPlan:
    """Where the fields of a layout go.

    Attributes:
        tensors: (first, stop, dtype, width) of those that values are copied into; the values of the fields first, ...,
            stop - 1 lie one after another. width: of the rows of the dense block, None of other tensors.
        itemsize: int64 [F], bytes.
        listed: [L], the first field of every sequence whose offsets some `Jagged` has.
        dense: the row of the dense block, if there is one.
        labels, jagged: (field, row, place in `listed` of the sequence whose offsets it has, None if it is no list) of
            `Batch.labels` and `Batch.jagged`.
        texts, numbers: (passthrough field, row). masks: (field, row).
        nested: sequence -> (keys, counts, ids), see `Layout.nested`.
    """

    tensors: tuple[tuple[int, int, torch.dtype, int | None], ...]
    itemsize: np.ndarray
    listed: tuple[int, ...]
    dense: int | None
    labels: tuple[tuple[str, int, int | None], ...]
    jagged: tuple[tuple[str, int, int | None], ...]
    texts: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[str, int], ...]
    masks: tuple[tuple[str, int], ...]
    nested: Mapping[str, tuple[tuple[str, ...], slice, slice]]

    @classmethod
    def of(cls, layout: Layout) -> Self:
        rest = [(row, layout.fields[row]) for row in range(layout.num_keys, len(layout.fields))]
        rest = [(row, field) for row, field in rest if field.kind not in _NO_TENSOR]
        first: dict[str | None, int] = {}
        for row, field in rest:
            if _is_jagged(field, layout):
                first.setdefault(field.group, row)
        number = {group: at for at, group in enumerate(first)}

        def named(*kinds: FieldKind) -> tuple[tuple[str, int, int | None], ...]:
            return tuple(
                (field.name, row, number[field.group] if _is_jagged(field, layout) else None)
                for row, field in rest
                if field.kind in kinds
            )

        return cls(
            tensors=tuple(_tensors(layout)),
            itemsize=layout.itemsize,
            listed=tuple(first.values()),
            dense=next((row for row, field in rest if field.kind == "dense"), None),
            labels=named("id_label", "label", "label_list", "event_label"),
            jagged=named("floats"),
            texts=tuple((field.name, row) for row, field in rest if field.kind == "text"),
            numbers=tuple((field.name, row) for row, field in rest if field.kind == "passthrough"),
            masks=tuple(layout.masks.items()),
            nested={
                name: (tuple(field.name for field in layout.fields[counts]), counts, ids)
                for name, (counts, ids) in layout.nested.items()
            },
        )


def _is_jagged(field: Field, layout: Layout) -> bool:
    if field.kind == "floats":
        return True
    return field.kind in ("id_label", "label_list", "event_label") and field.group != layout.exploded


def _tensors(layout: Layout) -> Iterator[tuple[int, int, torch.dtype, int | None]]:
    """In the order of the fields. References are on the way between ranks only."""
    together = {0: layout.num_keys}
    together |= {some.start: some.stop for pair in layout.nested.values() for some in pair}
    references = set(layout.references.values())
    row = 0
    while row < len(layout.fields):
        stop = together[row] if together.get(row) else row + 1
        if row not in references:
            field = layout.fields[row]
            yield row, stop, _DTYPES[field.itemsize], field.width if field.kind == "dense" else None
        row = stop
