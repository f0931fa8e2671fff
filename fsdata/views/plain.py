"""A batch for models without TorchRec: plain tensors by field name, lists padded to one length if wanted."""

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
    features = {name: _jagged_of(batch.features, name) for name in batch.features.keys()}  # noqa: SIM118
    found: dict[str, Any] = {name: features[name].values for name in schema.context}
    for group in schema.groups:
        if group.name == schema.explode:  # every sample has one
            found |= {name: features[name].values for name in group.fields}
            found |= {name: batch.jagged[name].values for name in group.floats}
            found |= {name: batch.labels[name] for name in (*group.id_labels, *group.labels)}
            continue
        shared = batch.shared.get(group.name)
        found |= {name: _jagged(features[name], shared) for name in group.fields}
        found |= {name: _jagged(batch.jagged[name], shared) for name in group.floats}
        found |= {name: _label(batch.labels[name], shared) for name in (*group.id_labels, *group.labels)}
    found |= {name: batch.dense[:, column] for column, name in enumerate(schema.dense)}
    return found | {name: batch.labels[name] for name in schema.labels} | dict(batch.passthrough)


def padded(batch: Any, max_length: int | Mapping[str, int] | None) -> dict[str, Any]:
    """See `Batch.padded`."""
    schema = _schema_of(batch)
    named = set(max_length) if isinstance(max_length, Mapping) else set()
    unknown = sorted(named - {group.name for group in schema.groups})
    if unknown:
        raise ValueError(f"max_length names {', '.join(unknown)}, not a sequence of the schema")
    found = to_dict(batch)
    for group in schema.groups:
        names = (*group.fields, *group.floats, *group.id_labels, *group.labels)
        if group.name == "candidates":
            names += tuple(name for name in schema.labels if isinstance(found[name], Jagged))
        lists = [name for name in names if isinstance(found[name], Jagged)]
        if not lists:
            continue
        wide = _width(group, max_length)
        mask = f"{group.name}_mask"
        if mask in found:
            raise SchemaError(f"a field is called {mask!r}, and so is the mask of {group.name!r}: rename the field")
        index, found[mask] = _places(found[lists[0]].offsets, wide, keep_last=group.keep == "last")
        for name in lists:
            found[name] = _filled(found[name].values, index, found[mask])
    return found


def _schema_of(batch: Any) -> Schema:
    if batch.schema is None:
        raise ValueError("this Batch knows no schema, because no FreeScaleDataLoader made it: give Batch(schema=...)")
    schema: Schema = batch.schema
    return schema


def _width(group: Sequence, max_length: int | Mapping[str, int] | None) -> int:
    given = max_length.get(group.name) if isinstance(max_length, Mapping) else max_length
    wide = group.max_length if given is None else given
    if wide is None:
        raise ValueError(
            f"padded() has no length for {group.name!r}: give max_length=N or {{{group.name!r}: N}}, or the Sequence a "
            "max_length"
        )
    length: int = integer(f"max_length of {group.name!r}", wide, 1)
    return length


def _places(offsets: Tensor, wide: int, *, keep_last: bool) -> tuple[Tensor, Tensor]:
    """(int64 [B, wide], where the values of each place stand; bool [B, wide], whether it has one). Does not
    synchronise."""
    place = torch.arange(wide, device=offsets.device)
    length = offsets.diff()
    start = offsets[1:] - length.clamp(max=wide) if keep_last else offsets[:-1]
    return start[:, None] + place, place < length[:, None]


def _filled(values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    if not len(values):
        return values.new_zeros(index.shape)
    return values[index.clamp(max=len(values) - 1)].masked_fill(~mask, 0)


def _jagged_of(features: Any, key: str) -> Jagged:
    if isinstance(features, JaggedFeatures):
        return features.jagged(key)
    found = features[key]
    return Jagged(found.values(), found.offsets())


def _label(value: Tensor | Jagged, shared: Shared | None) -> Tensor | Jagged:
    return _jagged(value, shared) if isinstance(value, Jagged) else value


def _jagged(value: Jagged, shared: Shared | None) -> Jagged:
    if shared is None:
        return value
    return Jagged.from_lengths(expand(value.values, shared), shared.length)
