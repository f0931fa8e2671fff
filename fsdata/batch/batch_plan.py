"""Maps the fields of a layout to the tensors of a batch: computed once per loader (pure planning)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from fsdata.decode.row_layout import Layout
from fsdata.schema import Field, FieldKind

_DTYPES = {8: torch.int64, 4: torch.float32, 1: torch.uint8}
# Kinds of fields that are not listed in `labels` to `numbers`: nested fields and masks have tables of their own, and
# references exist only between ranks.
_NOT_LISTED = ("counts", "nested_ids", "reference", "mask")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPlan:
    """Maps the fields of a layout to tensors. A *row* is the position of a field in the layout.

    Attributes:
        tensors: (first, stop, dtype, width) of each tensor: it has the values of the rows first, ..., stop - 1, one row
            after another. width: columns of the dense block, None for other tensors.
        itemsize: int64 [F], bytes of a value.
        listed: [L], the first row of every sequence that has fields in a `Jagged`: its lengths give the offsets.
        dense: the row of the dense block, if there is one.
        labels, jagged: (field name, row, index into `listed` of its sequence or None if the field is not a list), for
            `Batch.labels` and `Batch.jagged`.
        texts, numbers: (name of a passthrough field, row). masks: (field name, row).
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
    def from_layout(cls, layout: Layout) -> Self:
        # The first `num_keys` rows are those of the KeyedJaggedTensor.
        rest = [(row, layout.fields[row]) for row in range(layout.num_keys, len(layout.fields))]
        rest = [(row, field) for row, field in rest if field.kind not in _NOT_LISTED]
        first: dict[str | None, int] = {}
        for row, field in rest:
            if _is_jagged(field, layout):
                first.setdefault(field.group, row)
        list_index = {group: index for index, group in enumerate(first)}

        def fields_of_kind(*kinds: FieldKind) -> tuple[tuple[str, int, int | None], ...]:
            return tuple(
                (field.name, row, list_index[field.group] if _is_jagged(field, layout) else None)
                for row, field in rest
                if field.kind in kinds
            )

        return cls(
            tensors=tuple(_tensors(layout)),
            itemsize=layout.itemsize,
            listed=tuple(first.values()),
            dense=next((row for row, field in rest if field.kind == "dense"), None),
            labels=fields_of_kind("id_label", "label", "label_list", "event_label"),
            jagged=fields_of_kind("floats"),
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
    """`BatchPlan.tensors`, in the order of the rows. References have no tensor: they exist only between ranks."""
    # Rows that share a tensor, first row -> stop: those of a KeyedJaggedTensor, which stores key after key.
    together = {0: layout.num_keys}
    together |= {rows.start: rows.stop for counts_and_ids in layout.nested.values() for rows in counts_and_ids}
    references = set(layout.references.values())
    row = 0
    while row < len(layout.fields):
        stop = together[row] if together.get(row) else row + 1
        if row not in references:
            field = layout.fields[row]
            yield row, stop, _DTYPES[field.itemsize], field.width if field.kind == "dense" else None
        row = stop
