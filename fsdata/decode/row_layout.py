"""In which order the fields of a sample stand in a `RowTable`, and which of them share lengths."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fsdata.schema import Schema

Kind = Literal["context", "ids", "floats", "dense", "label", "label_list"]


@dataclass(frozen=True, slots=True)
class Field:
    """One row of a `RowTable`.

    `dense` is a single field of D elements; every other kind is one schema field. `group` is the name of the sequence
    whose lengths the field has, or None where every sample has `width` elements.
    """

    name: str
    kind: Kind
    itemsize: int
    group: str | None
    width: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a sample: first the keys of `Batch.features` (int64), then everything float32."""

    fields: tuple[Field, ...]
    num_keys: int

    @property
    def itemsize(self) -> np.ndarray:
        return np.array([field.itemsize for field in self.fields], np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields[: self.num_keys])

    @property
    def groups(self) -> dict[str, int]:
        """Sequence name -> index of the first field that has its lengths."""
        first: dict[str, int] = {}
        for index, field in enumerate(self.fields):
            if field.group is not None:
                first.setdefault(field.group, index)
        return first


def layout_of(schema: Schema, list_labels: frozenset[str] = frozenset()) -> Layout:
    """The layout of a schema whose labels named in `list_labels` are lists aligned with the candidates."""
    keys = [Field(name, "context", 8, None) for name in schema.context]
    keys += [Field(name, "ids", 8, group.name) for group in schema.groups for name in group.fields]
    rest = [Field(name, "floats", 4, group.name) for group in schema.groups for name in group.floats]
    if schema.dense:
        rest.append(Field("dense", "dense", 4, None, len(schema.dense)))
    for name in schema.labels:
        if name in list_labels:
            rest.append(Field(name, "label_list", 4, "candidates"))
        else:
            rest.append(Field(name, "label", 4, None))
    return Layout((*keys, *rest), len(keys))
