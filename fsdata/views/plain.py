"""A batch for models without TorchRec: plain tensors by field name, lists padded to one length if wanted.

`JaggedFeatures` stands in for the KeyedJaggedTensor where torchrec is not installed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fsdata.batch.jagged import Jagged, Shared, expand
from fsdata.errors import SchemaError
from fsdata.options import integer
from fsdata.schema import Schema, Sequence


class JaggedFeatures(Mapping[str, Any]):
    """Key -> a jagged tensor of torch [B, lengths], int64: `.values()` [T] and `.offsets()` [B + 1], as a JaggedTensor
    of torchrec has them. Keys of the same lengths share their offsets: torch computes with two such tensors only then.

    One tensor has the values of all keys, one the offsets, so a batch goes to a device in two copies. The tensor of a
    key is made when it is asked for, which takes torch a tenth of a millisecond.
    """

    def __init__(self, values: Tensor, offsets: Tensor, places: Mapping[str, tuple[slice, int]]) -> None:
        """values: [T of all keys]; offsets: int64 [D, B + 1], each only once; places: key -> (values, row of D)."""
        self._values, self._offsets, self._places = values, offsets, places
        self._rows = offsets.unbind()  # one object for all keys that share it: torch asks for that
        self._made: dict[str, Any] = {}

    @classmethod
    def of(cls, keys: tuple[str, ...], values: Tensor, lengths: Tensor, stride: int) -> "JaggedFeatures":
        """values: [sum of lengths], key after key; lengths: int64 [keys * stride], in host memory."""
        by_key = lengths.view(len(keys), stride)
        known: dict[bytes, int] = {}
        row_of = [known.setdefault(own.numpy().tobytes(), len(known)) for own in by_key]
        first = torch.tensor([row_of.index(row) for row in range(len(known))], dtype=torch.int64)
        offsets = torch.zeros(len(known), stride + 1, dtype=torch.int64)
        torch.cumsum(by_key[first], 1, out=offsets[:, 1:])
        ends = by_key.sum(1).cumsum(0).tolist()
        places = zip(map(slice, [0, *ends], ends), row_of, strict=False)
        return cls(values, offsets.to(values.device), dict(zip(keys, places, strict=True)))

    def flat(self) -> tuple[Tensor, Tensor]:
        """What `of` makes it of: (values, key after key; lengths int64 [keys, B])."""
        return self._values, self._offsets.diff()[[row for _, row in self._places.values()]]

    def jagged(self, key: str) -> Jagged:
        """The same as `self[key]`, as a `Jagged`."""
        part, row = self._places[key]
        return Jagged(self._values[part], self._rows[row])

    def __getitem__(self, key: str) -> Any:
        if key not in self._made:
            found = self.jagged(key)
            self._made[key] = torch.nested.nested_tensor_from_jagged(found.values, found.offsets)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self._values.record_stream(stream)
        self._offsets.record_stream(stream)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "JaggedFeatures":
        return JaggedFeatures(function(self._values), function(self._offsets), self._places)


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
