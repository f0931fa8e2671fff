"""The order of the fields of a sample, and which fields share lengths (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fsdata.schema import Field, Schema, Split

REFERENCE = 4  # integers by which a row refers to events of a joined table, see `Stage.references`


@dataclass(frozen=True)  # no slots: what follows from the fields is computed once, and asked for by every batch
class Layout:
    """The fields of a decoded row: first the keys of `Batch.features`, then other int64 fields, float32, texts and
    masks. The index of a field is its *slot*.

    `dense` names the fields of the dense block, `shared` the sequences whose events samples share, `split` those that
    a batch has in parts. exploded: the group whose elements become samples, if any, see `fsdata.nodes.explode`.
    schema: the schema it was made from. Properties return shared objects, which must not be changed.
    """

    fields: tuple[Field, ...]
    num_keys: int
    dense: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    split: tuple[tuple[str, Split], ...] = ()
    exploded: str | None = None
    schema: Schema | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: every row group looks up its plan by the layout."""
        return hash((self.fields, self.num_keys, self.dense))

    @cached_property
    def itemsize(self) -> np.ndarray:
        return np.array([field.itemsize for field in self.fields], np.int64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields[: self.num_keys])

    @cached_property
    def groups(self) -> Mapping[str, int]:
        """Sequence or nested field -> index of the first field that has its lengths. Lengths of texts are not among
        them: they say nothing of a sample's work."""
        first: dict[str, int] = {}
        for index, field in enumerate(self.fields):
            if field.group is not None and field.kind != "text":
                first.setdefault(field.group, index)
        return first

    @cached_property
    def aligned(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Sequence, and the slots of the fields that must have one length in every row."""
        slots: dict[str, list[int]] = {}
        for slot, field in enumerate(self.fields):
            if field.group is not None and field.kind not in ("text", "nested_ids"):
                slots.setdefault(field.group, []).append(slot)
        return tuple((name, tuple(of)) for name, of in slots.items())

    @cached_property
    def texts(self) -> Mapping[str, int]:
        """Passthrough field that is text -> its slot."""
        return {field.name: index for index, field in enumerate(self.fields) if field.kind == "text"}

    @cached_property
    def masks(self) -> Mapping[str, int]:
        """Field of a side table -> the slot of its mask of matches."""
        return {field.name[len(_MASK) :]: slot for slot, field in enumerate(self.fields) if field.kind == "mask"}

    @cached_property
    def references(self) -> Mapping[str, int]:
        """Sequence whose events stay in a joined table -> the slot of its references."""
        return {field.name[len(_AS_OF) :]: slot for slot, field in enumerate(self.fields) if field.kind == "reference"}

    @cached_property
    def event_labels(self) -> Mapping[str, str]:
        """Label of events -> its sequence."""
        along = (field for field in self.fields if field.kind in ("id_label", "event_label"))
        return {field.name: field.group for field in along if field.group}

    @cached_property
    def nested(self) -> Mapping[str, tuple[slice, slice]]:
        """Sequence -> (slots of the counts of its nested fields, slots of their ids), in the same order."""
        slices: dict[str, tuple[slice, slice]] = {}
        rows = range(len(self.fields))
        for sequence in dict.fromkeys(field.group for field in self.fields if field.kind == "counts"):
            counts = [row for row in rows if self.fields[row].kind == "counts" and self.fields[row].group == sequence]
            size = len(counts)
            slices[str(sequence)] = slice(counts[0], counts[0] + size), slice(counts[0] + size, counts[0] + 2 * size)
        return slices

    @cached_property
    def slots(self) -> Mapping[str, int]:
        """Schema field -> its slot. Dense fields have none."""
        return {field.name: row for row, field in enumerate(self.fields) if field.kind != "dense"}

    def only(self, names: Collection[str]) -> "Layout":
        """The layout of some schema fields. Its dense fields have no slot."""
        fields = [field for field in self.fields if field.kind != "dense" and field.schema_field in names]
        num_keys = sum(field.name in names for field in self.fields[: self.num_keys])
        return Layout(tuple(fields), num_keys, tuple(name for name in self.dense if name in names))


def layout_of(
    schema: Schema,
    list_labels: frozenset[str] = frozenset(),
    as_of: Collection[str] = frozenset(),
    texts: Collection[str] = frozenset(),
    masks: Collection[str] = frozenset(),
) -> Layout:
    """The layout of a schema whose labels named in `list_labels` are lists aligned with the candidates.

    as_of: sequences whose events stay in a joined table, in every source. texts: passthrough fields that are text.
    masks: fields of side tables with a mask.

    Raises: see `Schema.check_list_labels`.
    """
    schema.check_list_labels(list_labels)
    keys = [Field(name, "context") for name in schema.context]
    keys += [Field.from_sequence(name, "ids", group) for group in schema.groups for name in group.fields]
    rest = []
    for group in schema.groups:
        rest += [Field.from_sequence(name, "counts", group) for name in group.nested]
        rest += [Field(ids_of(name), "nested_ids", name) for name in group.nested]
    rest += [Field(_AS_OF + group.name, "reference", width=REFERENCE) for group in schema.groups if group.name in as_of]
    rest += [Field.from_sequence(name, "id_label", group) for group in schema.groups for name in group.id_labels]
    rest += [Field(name, "passthrough") for name in schema.passthrough if name not in texts]
    rest += [Field.from_sequence(name, "floats", group) for group in schema.groups for name in group.floats]
    if schema.dense:
        rest.append(Field("dense", "dense", width=len(schema.dense)))
    for name in schema.labels:
        if name in list_labels:
            assert schema.candidates is not None
            rest.append(Field.from_sequence(name, "label_list", schema.candidates))
        else:
            rest.append(Field(name, "label"))
    rest += [Field.from_sequence(name, "event_label", group) for group in schema.groups for name in group.labels]
    rest += [Field(name, "text", name) for name in schema.passthrough if name in texts]
    rest += [Field(_MASK + name, "mask") for name in schema.field_names if name in masks]
    shared = tuple(group.name for group in schema.groups if group.share is not None)
    split = tuple((group.name, group.split) for group in schema.groups if group.split is not None)
    return Layout((*keys, *rest), len(keys), schema.dense, shared, split, schema.explode, schema)


_AS_OF = "as of "
_MASK = "mask of "


def ids_of(nested: str) -> str:
    """The name of the `nested_ids` of a nested field."""
    return f"ids of {nested}"
