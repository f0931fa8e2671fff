"""`Lookup`: values of a dimension table for every id of a field. Nothing is opened here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fsdata.errors import SchemaError
from fsdata.options import is_number, mapping_of, plain
from fsdata.schema import Schema, fields_of
from fsdata.sources.source import Joined, ParquetSource


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lookup(Joined):
    """Values of a dimension table for every id of a field: an item's artist and album.

    The fields are as long as the one that is looked up: those of a sequence stand beside its events, those of the
    candidates beside these, those of a context id are context. Values are found where ids are copied into a batch, so
    nothing of them is stored with the rows. The table is held once per host: as an array by id where ids lie close
    together, else as a hash table.

    Args:
        source: the dimension table. Its rows must have different keys.
        on: the field whose ids are looked up, and the key column of the table, which `source.columns` may rename.
        fields: the schema's fields that are found; their columns follow `source.columns`. Of numbers.
        default: the value of ids that the table does not have, or field -> its value.

    Raises:
        SchemaError: options that contradict each other.
    """

    default: float | Mapping[str, float] = 0

    kind = "lookup table"
    finds_values = True

    def __post_init__(self) -> None:
        self._check((self.on,), shared=True)
        if self.on in self.fields:
            raise SchemaError(f"Lookup(on={self.on!r}) looks up its own field: name what is found otherwise")
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
        """What is found stands beside the ids that are looked up."""
        if self.on in found_by_lookups(source):
            raise SchemaError(
                f"{label}: Lookup(on={self.on!r}) looks up what another Lookup finds, and only ids that rows hold can "
                "be looked up: join both dimension tables into one"
            )
        of = {field.name: field for field in fields_of(schema)}
        found = [of[name] for name in self.fields if name in of]
        if not found:
            return
        ids = of.get(self.on)
        if ids is None or ids.kind not in ("context", "ids"):
            raise SchemaError(
                f"{label}: Lookup(on={self.on!r}) looks up ids of the schema: one of its context, or a field of a "
                "sequence or of the candidates"
            )
        for field in found:
            if field.group != ids.group or field.kind not in ("context", "ids", "floats", "id_label", "event_label"):
                where = "context" if ids.group is None else f"fields, floats or labels of the sequence {ids.group!r}"
                raise SchemaError(
                    f"{label}: Lookup brings {field.name!r}, which has to stand beside {self.on!r}, in {where}"
                )

    def default_of(self, name: str) -> float:
        return self.default.get(name, 0) if isinstance(self.default, Mapping) else self.default

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        found = " ".join(f"{name}:{self.default_of(name)!r}" for name in self.fields)
        return f"lookup {self.on} {found}"


def found_by_lookups(source: ParquetSource) -> set[str]:
    """The fields that lookups of a source find."""
    return {name for each in source.join if isinstance(each, Lookup) for name in each.fields}
