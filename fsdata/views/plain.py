"""`Batch.to_dict` and `Batch.padded`: tensors by field name for models without TorchRec."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fsdata.batch.jagged import Jagged, Shared, expand
from fsdata.batch.jagged_features import JaggedFeatures
from fsdata.errors import SchemaError
from fsdata.options import integer
from fsdata.schema import Schema, Sequence


def to_dict(batch: Any) -> dict[str, Any]:
    """See `Batch.to_dict`."""
    schema = _schema_of(batch)
    features = {name: _jagged_feature(batch.features, name) for name in batch.features.keys()}  # noqa: SIM118
    tensors: dict[str, Any] = {name: features[name].values for name in schema.context}
    for group in schema.groups:
        lists = {name: features[name] for name in group.fields}
        lists |= {name: batch.jagged[name] for name in group.floats}
        lists |= {name: batch.labels[name] for name in (*group.id_labels, *group.labels)}
        for name, value in lists.items():
            if not isinstance(value, Jagged):
                tensors[name] = value
            elif group.name == schema.explode:  # every sample has one element: a list adds nothing
                tensors[name] = value.values
            else:
                tensors[name] = _expanded(value, batch.shared.get(group.name))
    tensors |= {name: batch.dense[:, column] for column, name in enumerate(schema.dense)}
    return tensors | {name: batch.labels[name] for name in schema.labels} | dict(batch.passthrough)


def padded(batch: Any, max_length: int | Mapping[str, int] | None) -> dict[str, Any]:
    """See `Batch.padded`."""
    schema = _schema_of(batch)
    names = set(max_length) if isinstance(max_length, Mapping) else set()
    unknown = sorted(names - {group.name for group in schema.groups})
    if unknown:
        raise ValueError(f"max_length names {', '.join(unknown)}, not a sequence of the schema")
    tensors = to_dict(batch)
    for group in schema.groups:
        fields = (*group.fields, *group.floats, *group.id_labels, *group.labels)
        if group.name == "candidates":  # labels of the schema may be aligned with the candidates
            fields += schema.labels
        lists = [name for name in fields if isinstance(tensors[name], Jagged)]
        if not lists:
            continue
        width = _width(group, max_length)
        mask = f"{group.name}_mask"
        if mask in tensors:
            raise SchemaError(f"{mask!r} is a field and the name of the mask of {group.name!r}: rename the field")
        index, tensors[mask] = _padding(tensors[lists[0]].offsets, width, keep_last=group.keep == "last")
        for name in lists:
            tensors[name] = _pad(tensors[name].values, index, tensors[mask])
    return tensors


def _schema_of(batch: Any) -> Schema:
    if batch.schema is None:
        raise ValueError(
            "this Batch has no schema, because it does not come from a FreeScaleDataLoader: pass Batch(schema=...)"
        )
    schema: Schema = batch.schema
    return schema


def _width(group: Sequence, max_length: int | Mapping[str, int] | None) -> int:
    given = max_length.get(group.name) if isinstance(max_length, Mapping) else max_length
    width = group.max_length if given is None else given
    if width is None:
        raise ValueError(
            f"padded() has no length for {group.name!r}: pass max_length=N or {{{group.name!r}: N}}, or set "
            "Sequence(max_length=...)"
        )
    length: int = integer(f"max_length of {group.name!r}", width, 1)
    return length


def _padding(offsets: Tensor, width: int, *, keep_last: bool) -> tuple[Tensor, Tensor]:
    """(int64 [B, width], index into the values; bool [B, width], whether there is a value). Does not synchronise."""
    place = torch.arange(width, device=offsets.device)
    length = offsets.diff()
    start = offsets[1:] - length.clamp(max=width) if keep_last else offsets[:-1]
    return start[:, None] + place, place < length[:, None]


def _pad(values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    if not len(values):
        return values.new_zeros(index.shape)
    # Padding after the last list of the batch has indices beyond the values.
    return values[index.clamp(max=len(values) - 1)].masked_fill(~mask, 0)


def _jagged_feature(features: Any, key: str) -> Jagged:
    if isinstance(features, JaggedFeatures):
        return features.jagged(key)
    tensor = features[key]
    return Jagged(tensor.values(), tensor.offsets())


def _expanded(value: Jagged, shared: Shared | None) -> Jagged:
    if shared is None:
        return value
    return Jagged.from_lengths(expand(value.values, shared), shared.length)
