"""`Lookup`: values of a dimension table for every id of a field. The object checks its options and opens nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fsdata.errors import SchemaError
from fsdata.options import is_number, mapping_of, plain
from fsdata.schema import Schema, fields_of
from fsdata.sources.source import Joined, ParquetSource


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lookup(Joined):
    """Values of a dimension table for every id of a field, such as an item's artist and album.

    The fields are as long as the field of ids and belong to the same group: the sequence, the candidates or the
    context. Values are looked up when ids are copied into a batch, so rows do not store them. The table is in memory
    once per host: as an array indexed by id where ids are dense, else as a hash table.

    Args:
        source: the dimension table. Its keys must be distinct.
        on: the field whose ids are looked up, and the key column of the table, which `source.columns` may rename.
        fields: the schema's fields with the values, all numeric; their columns follow `source.columns`.
        default: the value for ids that are not in the table, or field -> its value.

    Raises:
        SchemaError: options that contradict each other.
    """

    default: float | Mapping[str, float] = 0

    kind = "lookup table"
    finds_values = True

    def __post_init__(self) -> None:
        self._check((self.on,), shared=True)
        if self.on in self.fields:
            raise SchemaError(f"Lookup(on={self.on!r}) has its own key among its fields: give the field another name")
        by_name = isinstance(self.default, Mapping)
        default = mapping_of("Lookup(default=...)", self.default) if by_name else plain(self.default)
        object.__setattr__(self, "default", default)
        given = default if isinstance(default, Mapping) else dict.fromkeys(self.fields, default)
        unknown = sorted(set(given) - set(self.fields))
        if unknown:
            raise SchemaError(f"Lookup(default=...) names {', '.join(unknown)}, not one of {', '.join(self.fields)}")
        for name, value in given.items():
            if not is_number(value) or not math.isfinite(value):
                raise SchemaError(f"Lookup(default=...) is a finite number, got {value!r} for {name!r}")

    def check(self, source: ParquetSource, schema: Schema, label: str) -> None:
        """The values must be in the group of the ids."""
        if self.on in fields_of_lookups(source):
            raise SchemaError(
                f"{label}: Lookup(on={self.on!r}) has a field of another Lookup as its key, and only ids that rows "
                "contain can be looked up: join both dimension tables into one"
            )
        by_name = {field.name: field for field in fields_of(schema)}
        fields = [by_name[name] for name in self.fields if name in by_name]
        if not fields:
            return
        ids = by_name.get(self.on)
        if ids is None or ids.kind not in ("context", "ids"):
            raise SchemaError(
                f"{label}: Lookup(on={self.on!r}) needs ids of the schema: a context field, or a field of a sequence "
                "or of the candidates"
            )
        for field in fields:
            if field.group != ids.group or field.kind not in ("context", "ids", "floats", "id_label", "event_label"):
                roles = "context" if ids.group is None else f"fields, floats or labels of the sequence {ids.group!r}"
                raise SchemaError(
                    f"{label}: the field {field.name!r} of a Lookup has to be in the group of {self.on!r}, in {roles}"
                )

    def default_of(self, name: str) -> float:
        return self.default.get(name, 0) if isinstance(self.default, Mapping) else self.default

    @property
    def form(self) -> str:
        """Its options, without its source; for fingerprints."""
        fields = " ".join(f"{name}:{self.default_of(name)!r}" for name in self.fields)
        return f"lookup {self.on} {fields}"


def fields_of_lookups(source: ParquetSource) -> set[str]:
    """The fields with values of the dimension tables of a source."""
    return {name for join in source.join if isinstance(join, Lookup) for name in join.fields}
