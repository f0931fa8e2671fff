"""What a training sample is, independent of any source.

A `Schema` names the fields of a sample and their roles; a `ParquetSource` says how one set of files becomes them.
Field names are the keys of `Batch.features`, so they are unique over the whole schema.

A `Field` says what one of them is: binding, decoding, layout, exchange and batch all ask it. What the files hold
decides the rest (is a label a list, is a passthrough text), so a decoded row has the fields of the schema with some of
them taken apart (`fsdata.decode.row_layout`).
"""

import difflib
import importlib
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fsdata.errors import SchemaError
from fsdata.options import integer, names, one_of, plain, text

SAMPLES = "samples"
"""What `global_mean` counts if nothing else is named."""
_LATER_ROLES = ("labels", "id_labels", "nested")
_LATER = (*_LATER_ROLES, "share", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A long sequence in parts: the last `recent` events, and before them segments of `segment` events, cut from the
    oldest on, each followed by `tokens` slots for what a model makes of it. See `fsdata.batch.jagged`.

    Raises:
        SchemaError: a number below 1, or `recent` below 0.
    """

    recent: int
    segment: int
    tokens: int

    def __post_init__(self) -> None:
        for name, least in (("recent", 0), ("segment", 1), ("tokens", 1)):
            value = integer(f"Split({name}=...)", getattr(self, name), least, error=SchemaError)
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, repr=False)
class Sequence:
    """A group of aligned list fields: in every sample all of them have the same length.

    Args:
        name: the group's name, under which cost models see its lengths (the candidates' group is `candidates`).
        fields: id lists, int64; keys of `Batch.features`.
        floats: value lists (prices, quantities), float32; entries of `Batch.jagged`.
        max_length: longer lists are truncated, counted in events; None keeps all.
        keep: which end survives truncation.
        labels: one number per event (watch time, a weight of the loss), float32; entries of `Batch.labels`.
        id_labels: one whole number per event (the next item, a class), int64; entries of `Batch.labels`.
        nested: any number of ids per event (the categories of an item), int64, from columns that are lists of lists;
            keys of `Batch.nested[name]`.
        share: the key of the histories that the sequence comes from, `AsOf(on=...)`: samples of a batch that see
            overlapping stretches of one history share them. Every field of the sequence then holds each merged stretch
            once, as the lists of the first samples; `Batch.shared[name]` says where each sample finds its own, and
            `fsdata.expand` makes them. Without such histories only the samples of one row share, see
            `Schema(explode=...)`. A merged stretch holds events that happened after some of its samples: only
            `expand` gives a model what it may see.
        split: stand in parts, which `Batch.split[name]` describes; the values are those without it.

    Raises:
        SchemaError: no field along which events can be counted, or an option out of range.
    """

    name: str
    fields: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    max_length: int | None = None
    keep: Literal["first", "last"] = "last"
    labels: tuple[str, ...] = ()
    id_labels: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    share: str | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        for role in ("fields", "floats", *_LATER_ROLES):
            object.__setattr__(self, role, names(f"Sequence({self.name!r}, {role}=...)", getattr(self, role)))
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a Sequence needs a name, got {self.name!r}")
        group = f"Sequence {plain(self.name)!r}"
        checked = {
            "name": plain(self.name),
            "max_length": integer(f"{group}: max_length", self.max_length, 1, optional=True, error=SchemaError),
            "share": text(f"{group}: share", self.share, what="key", optional=True),
            "keep": one_of(f"{group}: keep", self.keep, ("first", "last"), error=SchemaError),
        }
        for option, value in checked.items():
            object.__setattr__(self, option, value)
        if not self.fields and not self.floats:
            raise SchemaError(f"Sequence {self.name!r} has no fields: name at least one list column")
        if self.split is not None and not isinstance(self.split, Split):
            raise SchemaError(f"Sequence {self.name!r}: split is a Split, got {self.split!r}")

    @property
    def all_fields(self) -> tuple[str, ...]:
        return self.fields + self.nested + self.floats + self.id_labels + self.labels

    def __repr__(self) -> str:
        """Saved states hold it: roles that were added later stand in it only where they are used."""
        later = {role for role in _LATER if not getattr(self, role)}
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.name not in later]
        return f"Sequence({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schema:
    """The fields of a training sample and their roles.

    Args:
        sequences: groups of aligned lists, the user's history (UIH) first; or one.
        candidates: the group of items to score, if samples carry several.
        context: scalar ids, int64; keys of `Batch.features` with length 1.
        dense: scalar features, the columns of `Batch.dense`, float32 [B, D].
        labels: scalar per sample or list aligned with the candidates; the column's type decides. float32. Labels along
            a sequence are `Sequence(labels=...)`.
        passthrough: one integer or text per sample that no model reads (a request's id); entries of
            `Batch.passthrough`. The column's type decides: int64 [B], or a list of B strings.
        explode: "candidates": every candidate of a row becomes a sample of its own, with all that the row has; see
            docs/histories.md. Steps then still count rows: `batch_size` rows give as many samples as they have
            candidates, and rows without candidates give none.
        time: the int64 or timestamp column by which `mix="time"` merges sources; not part of the batch unless it is
            also in `context`.

    Raises:
        SchemaError: a name used twice, or no field at all.
    """

    sequences: tuple[Sequence, ...] = ()
    candidates: Sequence | None = None
    context: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    time: str | None = None
    explode: Literal["candidates"] | None = None
    passthrough: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.sequences, set | frozenset):
            raise SchemaError(f"sequences is a tuple, got a set, which has no order: {self.sequences!r}")
        single = isinstance(self.sequences, Sequence)
        object.__setattr__(self, "sequences", (self.sequences,) if single else tuple(self.sequences))
        object.__setattr__(self, "explode", one_of("explode", self.explode, ("candidates", None), error=SchemaError))
        object.__setattr__(self, "time", text("time", self.time, optional=True))
        if self.explode and (self.candidates is None or self.candidates.nested):
            raise SchemaError("explode='candidates' needs Schema(candidates=...), a group without nested fields")
        for role in ("context", "dense", "labels", "passthrough"):
            object.__setattr__(self, role, names(f"Schema({role}=...)", getattr(self, role)))
        for group in self.groups:
            if not isinstance(group, Sequence):
                raise SchemaError(f"sequences and candidates hold Sequence objects, got {group!r}")
        known = [group.name for group in self.groups]
        if len(set(known)) < len(known):
            raise SchemaError(f"two sequences share a name: {known}")
        if any(group.name == "candidates" for group in self.sequences):
            raise SchemaError("the name 'candidates' belongs to Schema(candidates=...)")
        if self.candidates is not None and self.candidates.name != "candidates":
            raise SchemaError(f"the candidates' Sequence is called 'candidates', got {self.candidates.name!r}")
        fields = self.field_names
        twice = sorted({name for name in fields if fields.count(name) > 1})
        if twice:
            raise SchemaError(
                f"field names are keys of Batch.features and must be unique; used twice: {', '.join(twice)}. "
                "Give one of them another name and map it with ParquetSource(columns={new: column})"
            )
        nested = {name for group in self.groups for name in group.nested}
        for what, own in (("nested", nested), ("passthrough", set(self.passthrough))):
            both = sorted(own & {*known, "candidates"})
            if both:
                raise SchemaError(
                    f"a {what} field and a sequence are both called {', '.join(both)}, and the lengths of both are "
                    f"known by name: give the {what} field another name and map it with "
                    "ParquetSource(columns={new: column})"
                )
        along = {name: group.name for group in self.groups for name in group.id_labels + group.labels}
        for name, group_name in along.items():
            if name in known and name != group_name:
                raise _clash(name, f"a label of the sequence {group_name!r}")
        if SAMPLES in {*known, *nested, *along}:
            raise SchemaError(
                f"global_mean(over={SAMPLES!r}) counts the samples of a batch, so no sequence, nested field or label "
                "of a sequence has this name: give it another one, and map a field with "
                "ParquetSource(columns={new: column})"
            )
        if not fields:
            raise SchemaError("a Schema needs at least one field")

    def check_list_labels(self, lists: Collection[str]) -> None:
        """lists: names of labels whose columns are lists, which only the files show.

        Raises SchemaError where `global_mean` would count one of them as something else.
        """
        sequences = {group.name for group in self.sequences}
        for name in self.labels:
            if name in lists and name in {*sequences, SAMPLES}:
                raise _clash(name, "a label whose column is a list along the candidates")

    def __repr__(self) -> str:
        """Saved states hold it: options that were added later stand in it only where they are used."""
        later = {name for name in ("explode", "passthrough") if not getattr(self, name)}
        shown = [each.name for each in fields(self) if each.name not in later]
        return f"Schema({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __str__(self) -> str:
        """Python code that makes it, on several lines; without what is not used."""
        groups = "".join(f"        {_code(group)},\n" for group in self.sequences)
        lines = [f"    sequences=(\n{groups}    ),\n"] if self.sequences else []
        for name in (each.name for each in fields(self) if each.name != "sequences" and getattr(self, each.name)):
            value = getattr(self, name)
            lines.append(f"    {name}={_code(value) if isinstance(value, Sequence) else repr(value)},\n")
        return f"Schema(\n{''.join(lines)})"

    @property
    def groups(self) -> tuple[Sequence, ...]:
        """The sequences, then the candidates."""
        return self.sequences if self.candidates is None else (*self.sequences, self.candidates)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of `Batch.features`: context, sequence fields, candidate fields, in schema order."""
        return self.context + tuple(field for group in self.groups for field in group.fields)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Every field of a sample, without `time`."""
        floats = tuple(field for group in self.groups for field in group.floats)
        along = tuple(field for group in self.groups for field in group.nested + group.id_labels + group.labels)
        return self.keys + floats + self.dense + self.labels + along + self.passthrough

    @classmethod
    def infer(cls, path: str | Path, *, filesystem: Any = None) -> "Schema":
        """A schema to begin with, of the columns of a file; `print` shows it as code, to be read and changed.

        Lists that have the same lengths in all rows that are looked at are one sequence, the longest are `uih`, and
        those whose names say so the candidates. Scalars: integers are `context`, floats `dense`, booleans and what is
        named like a click `labels`, text `passthrough`, the first time `time`. Only you know what else is a label.
        Columns without a place are logged. `freescale init` writes the same guesses into a schema file, with their
        reasons, and makes ids of texts. Blocks for reading the first rows of up to 8 files.

        path: a file, glob or folder, see `ParquetSource`.

        Raises:
            FileNotFoundError, PermissionError; SchemaError: no rows, files whose columns do not fit together, or no
            column that can be a field.
        """
        found: Schema = importlib.import_module("fsdata.setup.infer_schema").infer_schema(path, filesystem)
        return found

    @classmethod
    def from_toml(cls, path: str | Path) -> "Schema":
        """Read the schema from the `[schema]` table of a TOML file (see docs/schema.md)."""
        return schema_of(load_toml(path), path)


Number = Literal["id", "value", "time", "passthrough"]
Shape = Literal["scalar", "list", "nested", "either"]
FieldKind = Literal[
    "context",
    "ids",
    "nested",
    "floats",
    "id_label",
    "event_label",
    "dense",
    "label",
    "passthrough",
    # only of decoded rows
    "counts",
    "nested_ids",
    "reference",
    "label_list",
    "text",
    "mask",
    # only read, no fields of a sample
    "time",
    "join_key",
    "row_time",
    "event_times",
    "event_ids",
]
_SHAPES: dict[FieldKind, Shape] = {
    **dict.fromkeys(("ids", "floats", "id_label", "event_label", "event_times", "event_ids"), "list"),
    "nested": "nested",
}
_TABLES = ("schema", "sources")
_VALUES = ("floats", "event_label", "dense", "label", "label_list")
_TIMES = ("time", "row_time", "event_times")
_BYTES = ("text", "mask")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sample, a column that only reading needs, or a part of a decoded row.

    Attributes:
        name: of the schema, or one that says what part it is.
        kind: what it is for. Of decoded rows `dense` is one field of D elements, and a nested field is two: `counts`,
            how many ids every event has, which is as long as its sequence, and `nested_ids`, the ids of all events. A
            `reference` says where the history of the sequence that it is named after lies, a `mask` whether the row
            had a match in the side table of a field, and a `text` has bytes of UTF-8.
        group: the sequence whose lengths it has; of `nested_ids` and `text` the field of the schema; of a `label` that
            may be a list the candidates. None where every sample has `width` elements.
        max_length, keep_last: of longer lists one end is kept.
    """

    name: str
    kind: FieldKind
    group: str | None = None
    width: int = 1
    max_length: int | None = None
    keep_last: bool = False

    @classmethod
    def from_sequence(cls, name: str, kind: FieldKind, sequence: Sequence) -> "Field":
        return cls(name, kind, sequence.name, max_length=sequence.max_length, keep_last=sequence.keep == "last")

    @property
    def number(self) -> Number:
        """What its values become: `id` int64, and takes no floats; `value` float32; `time` int64, nanoseconds if the
        column is a timestamp or date; `passthrough` int64, or UTF-8 where the column is text."""
        if self.kind in _VALUES:
            return "value"
        if self.kind in _TIMES:
            return "time"
        return "passthrough" if self.kind == "passthrough" else "id"

    @property
    def shape(self) -> Shape:
        """`either`: a list where the column is one. `nested`: a list of lists."""
        if self.kind == "label":
            return "scalar" if self.group is None else "either"
        return _SHAPES.get(self.kind, "scalar")

    @property
    def dtype(self) -> type[np.int64] | type[np.float32] | type[np.uint8]:
        if self.kind in _BYTES:
            return np.uint8
        return np.float32 if self.kind in _VALUES else np.int64

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def is_list(self) -> bool:
        """Of a decoded row."""
        return self.group is not None

    @property
    def only_read(self) -> bool:
        """Whether it is a time or a key of a row: no field of a sample, and without a null policy."""
        return self.kind in ("time", "join_key", "row_time")

    @property
    def schema_field(self) -> str:
        return self.group if self.kind == "nested_ids" and self.group else self.name


def fields_of(schema: Schema) -> tuple[Field, ...]:
    """Every field of the schema once, without `time`."""
    found = [Field(name, "context") for name in schema.context]
    for group in schema.groups:
        found += [Field.from_sequence(name, "ids", group) for name in group.fields]
        found += [Field.from_sequence(name, "nested", group) for name in group.nested]
        found += [Field.from_sequence(name, "floats", group) for name in group.floats]
        found += [Field.from_sequence(name, "id_label", group) for name in group.id_labels]
        found += [Field.from_sequence(name, "event_label", group) for name in group.labels]
    found += [Field(name, "dense") for name in schema.dense]
    found += [
        Field(name, "label", None if schema.candidates is None else schema.candidates.name) for name in schema.labels
    ]
    found += [Field(name, "passthrough") for name in schema.passthrough]
    return tuple(found)


def schema_of(document: dict[str, Any], path: str | Path) -> Schema:
    """Build the schema that the `[schema]` table of a parsed TOML document describes."""
    if not isinstance(document.get("schema"), dict):
        raise SchemaError(f"{path}: no [schema] table")
    options = dict(table_of(document["schema"], f"{path}: schema", _keys_of(Schema)))
    entries = options.get("sequences", [])
    if not isinstance(entries, list):
        raise SchemaError(f"{path}: schema.sequences is a list of tables, got {entries!r}")
    options["sequences"] = tuple(
        _sequence(entry, f"{path}: schema.sequences[{number}]") for number, entry in enumerate(entries)
    )
    if "candidates" in options:
        options["candidates"] = _sequence(options["candidates"], f"{path}: schema.candidates", name="candidates")
    try:
        return Schema(**options)
    except SchemaError as error:
        raise SchemaError(f"{path}: schema: {error}") from error


def _sequence(entry: Any, where: str, **defaults: Any) -> Sequence:
    options = defaults | table_of(entry, where, _keys_of(Sequence))
    if "split" in options:
        try:
            options["split"] = Split(**table_of(options["split"], f"{where}.split", _keys_of(Split)))
        except (SchemaError, TypeError) as error:
            raise SchemaError(f"{where}.split needs recent, segment and tokens: {error}") from error
    if "name" not in options:
        raise SchemaError(f"{where} needs a name")
    try:
        return Sequence(**options)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def load_toml(path: str | Path) -> dict[str, Any]:
    """The document in a TOML file, which may have tables of others beside `schema` and `sources`.

    Raises:
        SchemaError: not TOML, or a table with a misspelt name, which would be ignored.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise SchemaError(f"{path}: not valid TOML: nested too deeply") from error
    for name in document.keys() - _TABLES:
        if close := difflib.get_close_matches(name, _TABLES, n=1):
            raise SchemaError(f"{path}: a table {name} would be ignored. Did you mean {close[0]}?")
    return document


def table_of(value: Any, where: str, keys: Collection[str]) -> dict[str, Any]:
    """`value`, once it is known to be a table of a TOML file with no other keys than these."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where} is a table, got {value!r}")
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise SchemaError(f"{where} has no option {', '.join(unknown)}; there are {', '.join(keys)}")
    return value


def _code(group: Sequence) -> str:
    """Python code that makes a sequence."""
    used = [each for each in fields(group) if each.name != "name" and getattr(group, each.name) != each.default]
    given = "".join(f", {each.name}={getattr(group, each.name)!r}" for each in used)
    return f"Sequence({group.name!r}{given})"


def _clash(name: str, what: str) -> SchemaError:
    other = "the samples of a batch" if name == SAMPLES else "a sequence"
    return SchemaError(
        f"{what} and {other} are both called {name!r}, and their elements are counted by name: "
        f"global_mean(over={name!r}) would divide by the wrong count. Give the label another name and map it with "
        "ParquetSource(columns={new: column})"
    )


def _keys_of(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]
