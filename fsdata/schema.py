"""The definition of a training sample, independent of any source.

A `Schema` has the fields of a sample and their roles; a `ParquetSource` maps one set of files to them. Field names are
the keys of `Batch.features`, so they are unique over the whole schema.

A `Field` is one of them, as binding, decoding, layout, exchange and batches need it. Some properties depend on the
files (whether a label is a list, whether a passthrough is text). A decoded row therefore has the fields of the schema
with some of them split in two (`fsdata.decode.row_layout`).
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
from fsdata.options import integer, is_number, names, one_of, plain, text

SAMPLES = "samples"
"""The name under which `global_mean` counts samples, its default."""
_LATER_ROLES = ("labels", "id_labels", "nested")
_LATER = (*_LATER_ROLES, "share", "split", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divides a long sequence: the last `recent` events, and before them segments of `segment` events, counted from the
    oldest event, each followed by `tokens` slots for a model's summary of it. See `fsdata.batch.jagged`.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticLength:
    """Stochastic length (HSTU, arXiv 2402.17152, "Stochastic Length"): each epoch draws whether a long history stays
    whole. With N = `max_length`, a history of n events, after truncation to N, has

        n events                    if n <= N^(alpha/2), and otherwise
        n events                    with probability N^alpha / n^2,
        floor(N^(alpha/2)) events   with the remaining probability,

    so the expected number of pairs of events is at most 2 N^alpha in place of N^2. In the paper N is the length of the
    longest history. A draw depends on the loader's `seed`, the epoch, the name of the sequence, and the row (file, row
    group, row) alone.

    Args:
        alpha: above 1 and at most 2; smaller values keep fewer events, 2 keeps all.
        select: which events of a shortened history stay, in their order. "uniform": any of them with the same
            probability, without replacement. "newest": those at the end that `keep` keeps.

    Raises:
        SchemaError: an option out of range.
    """

    alpha: float
    select: Literal["uniform", "newest"] = "uniform"

    def __post_init__(self) -> None:
        if not is_number(self.alpha) or not 1 < self.alpha <= 2:
            raise SchemaError(f"StochasticLength(alpha=...) must be a number above 1 and at most 2, got {self.alpha!r}")
        object.__setattr__(self, "alpha", float(self.alpha))
        select = one_of("StochasticLength(select=...)", self.select, ("uniform", "newest"), error=SchemaError)
        object.__setattr__(self, "select", select)


@dataclass(frozen=True, slots=True, repr=False)
class Sequence:
    """A group of aligned list fields: in every sample all of them have the same length.

    Args:
        name: the group's name; cost models get its lengths under it (the candidates' group is `candidates`).
        fields: id lists, int64; keys of `Batch.features`.
        floats: value lists (prices, quantities), float32; entries of `Batch.jagged`.
        max_length: maximum number of events; longer lists are truncated. None for no maximum.
        keep: the end of a list that truncation keeps.
        labels: one number per event (watch time, a weight of the loss), float32; entries of `Batch.labels`.
        id_labels: one whole number per event (the next item, a class), int64; entries of `Batch.labels`.
        nested: any number of ids per event (the categories of an item), int64, from columns that are lists of lists;
            keys of `Batch.nested[name]`.
        share: the key of the histories of the sequence, `AsOf(on=...)`: samples of a batch whose windows of one history
            overlap share the merged window. Every field of the sequence then has each merged window once, as the list
            of its first sample; `Batch.shared[name]` has the position of each sample's events in them, and
            `fsdata.expand` returns the lists of the samples. Without `AsOf` only the samples of one row share, see
            `Schema(explode=...)`. A merged window has events that happened after some of its samples: give a model the
            result of `expand`, and not the merged windows.
        split: divides the sequence, as `Batch.split[name]` describes; the values are the same as without it.
        sample: shortens long histories at random, anew in every epoch; needs `max_length`, and cannot be combined with
            `share`. All fields of the sequence keep the same events.

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
    sample: StochasticLength | None = None

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
        if self.sample is not None:
            self._check_sample()

    def _check_sample(self) -> None:
        if not isinstance(self.sample, StochasticLength):
            raise SchemaError(f"Sequence {self.name!r}: sample is a StochasticLength, got {self.sample!r}")
        if self.max_length is None:
            raise SchemaError(
                f"Sequence {self.name!r}: sample=... needs max_length=..., the length N from which the lengths that it "
                "draws are computed"
            )
        if self.share is not None:
            raise SchemaError(
                f"Sequence {self.name!r}: share=... stores events once for samples with overlapping windows, and "
                "sample=... draws other events for every row: remove one of both"
            )

    @property
    def all_fields(self) -> tuple[str, ...]:
        return self.fields + self.nested + self.floats + self.id_labels + self.labels

    def __repr__(self) -> str:
        """Saved states contain it, so options of later releases appear only if they are used."""
        unused = {option for option in _LATER if not getattr(self, option)}
        shown = [option.name for option in fields(self) if option.name not in unused]
        return f"Sequence({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schema:
    """The fields of a training sample and their roles.

    Args:
        sequences: groups of aligned lists, the user's history (UIH) first; or one.
        candidates: the group of items to score, if samples carry several.
        context: scalar ids, int64; keys of `Batch.features` with length 1.
        dense: scalar features, the columns of `Batch.dense`, float32 [B, D].
        labels: scalars per sample, or lists aligned with the candidates, by the type of the column; float32. Labels
            along a sequence are `Sequence(labels=...)`.
        passthrough: one integer or text per sample that no model reads (a request's id); entries of
            `Batch.passthrough`: int64 [B] or a list of B strings, by the type of the column.
        explode: "candidates": every candidate of a row becomes a sample of its own, with all fields of the row; see
            docs/histories.md. Steps still count rows: `batch_size` rows give as many samples as they have candidates,
            and rows without candidates give none.
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
        group_names = [group.name for group in self.groups]
        if len(set(group_names)) < len(group_names):
            raise SchemaError(f"two sequences share a name: {group_names}")
        if any(group.name == "candidates" for group in self.sequences):
            raise SchemaError("the name 'candidates' belongs to Schema(candidates=...)")
        if self.candidates is not None and self.candidates.name != "candidates":
            raise SchemaError(f"the candidates' Sequence is called 'candidates', got {self.candidates.name!r}")
        if self.candidates is not None and self.candidates.sample is not None:
            raise SchemaError(
                "Schema(candidates=...) cannot have sample=...: stochastic length shortens histories, and every "
                "candidate of a row is scored"
            )
        fields = self.field_names
        twice = sorted({name for name in fields if fields.count(name) > 1})
        if twice:
            raise SchemaError(
                f"field names are keys of Batch.features and must be unique; used twice: {', '.join(twice)}. "
                "Give one of them another name and map it with ParquetSource(columns={new: column})"
            )
        nested = {name for group in self.groups for name in group.nested}
        for what, own in (("nested", nested), ("passthrough", set(self.passthrough))):
            both = sorted(own & {*group_names, "candidates"})
            if both:
                raise SchemaError(
                    f"a {what} field and a sequence are both called {', '.join(both)}, and the lengths of both are "
                    f"known by name: give the {what} field another name and map it with "
                    "ParquetSource(columns={new: column})"
                )
        # `global_mean(over=name)` finds a count by name: of samples, a sequence, a nested field or a label along one.
        along = {name: group.name for group in self.groups for name in group.id_labels + group.labels}
        for name, group_name in along.items():
            if name in group_names and name != group_name:
                raise _clash(name, f"a label of the sequence {group_name!r}")
        if SAMPLES in {*group_names, *nested, *along}:
            raise SchemaError(
                f"global_mean(over={SAMPLES!r}) counts the samples of a batch, so no sequence, nested field or label "
                "of a sequence has this name: give it another one, and map a field with "
                "ParquetSource(columns={new: column})"
            )
        if not fields:
            raise SchemaError("a Schema needs at least one field")

    def check_list_labels(self, lists: Collection[str]) -> None:
        """Raise SchemaError if `global_mean` would confuse a label whose column is a list with another count.

        lists: names of labels whose columns are lists in the files.
        """
        sequences = {group.name for group in self.sequences}
        for name in self.labels:
            if name in lists and name in {*sequences, SAMPLES}:
                raise _clash(name, "a label whose column is a list along the candidates")

    def __repr__(self) -> str:
        """Saved states contain it, so options of later releases appear only if they are used."""
        unused = {name for name in ("explode", "passthrough") if not getattr(self, name)}
        shown = [option.name for option in fields(self) if option.name not in unused]
        return f"Schema({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __str__(self) -> str:
        """Python code of the schema, on several lines, without unused options."""
        groups = "".join(f"        {_code(group)},\n" for group in self.sequences)
        lines = [f"    sequences=(\n{groups}    ),\n"] if self.sequences else []
        for name in (option.name for option in fields(self) if option.name != "sequences"):
            if value := getattr(self, name):
                lines.append(f"    {name}={_code(value) if isinstance(value, Sequence) else repr(value)},\n")
        return f"Schema(\n{''.join(lines)})"

    @property
    def groups(self) -> tuple[Sequence, ...]:
        """The sequences, then the candidates."""
        return self.sequences if self.candidates is None else (*self.sequences, self.candidates)

    @property
    def is_sampled(self) -> bool:
        """Whether some sequence has `sample`."""
        return any(group.sample is not None for group in self.sequences)

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
        """A first schema, guessed from the columns of files; `print` shows it as code, to be read and changed.

        Lists with the same lengths in all sampled rows are one sequence: the longest are `uih`, and those with names
        such as `candidates` the candidates. Scalars: integers are `context`, floats `dense`, booleans and columns with
        names such as `click` `labels`, text `passthrough`, the first time `time`. Other labels cannot be guessed.
        Columns without a role are logged. `freescale init` writes the same guesses into a schema file, with their
        reasons, and hashes texts to ids. Blocks for reading the first rows of up to 8 files.

        path: a file, glob or folder, see `ParquetSource`.

        Raises:
            FileNotFoundError, PermissionError; SchemaError: no rows, files with different columns, or no column that
            can be a field.
        """
        # By name: the core has no import of an extension.
        schema: Schema = importlib.import_module("fsdata.setup.infer_schema").infer_schema(path, filesystem)
        return schema

    @classmethod
    def from_toml(cls, path: str | Path) -> "Schema":
        """The schema in the `[schema]` table of a TOML file (see docs/schema.md)."""
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
    # only in decoded rows
    "counts",
    "nested_ids",
    "reference",
    "label_list",
    "text",
    "mask",
    # only for reading, not in samples
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
        name: its name in the schema, or a name derived from it.
        kind: its role. In decoded rows `dense` is one field of D elements, and a nested field is two: `counts`, the
            number of ids of every event, as long as its sequence, and `nested_ids`, the ids of all events. A
            `reference` is the position of a history in its table, and has the name of its sequence; a `mask` is whether
            the row has a match in the side table of a field; a `text` has UTF-8 bytes.
        group: the sequence whose lengths it has; for `nested_ids` and `text` the field of the schema; for a `label`
            that may be a list the candidates. None if every sample has `width` elements.
        max_length, keep_last: the maximum length of lists, and the end that truncation keeps.
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
        """The conversion of its values: `id` to int64, from integers only; `value` to float32; `time` to int64,
        nanoseconds if the column is a timestamp or date; `passthrough` to int64, or UTF-8 if the column is text."""
        if self.kind in _VALUES:
            return "value"
        if self.kind in _TIMES:
            return "time"
        return "passthrough" if self.kind == "passthrough" else "id"

    @property
    def shape(self) -> Shape:
        """`either`: a list if the column is one. `nested`: a list of lists."""
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
        """Whether it is a list in a decoded row."""
        return self.group is not None

    @property
    def only_read(self) -> bool:
        """Whether it is a time or a key of a row, which is not in samples and has no null policy."""
        return self.kind in ("time", "join_key", "row_time")

    @property
    def schema_field(self) -> str:
        return self.group if self.kind == "nested_ids" and self.group else self.name


def fields_of(schema: Schema) -> tuple[Field, ...]:
    """Every field of the schema once, without `time`."""
    result = [Field(name, "context") for name in schema.context]
    for group in schema.groups:
        result += [Field.from_sequence(name, "ids", group) for name in group.fields]
        result += [Field.from_sequence(name, "nested", group) for name in group.nested]
        result += [Field.from_sequence(name, "floats", group) for name in group.floats]
        result += [Field.from_sequence(name, "id_label", group) for name in group.id_labels]
        result += [Field.from_sequence(name, "event_label", group) for name in group.labels]
    result += [Field(name, "dense") for name in schema.dense]
    result += [
        Field(name, "label", None if schema.candidates is None else schema.candidates.name) for name in schema.labels
    ]
    result += [Field(name, "passthrough") for name in schema.passthrough]
    return tuple(result)


def schema_of(document: dict[str, Any], path: str | Path) -> Schema:
    """The schema in the `[schema]` table of a parsed TOML document."""
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
    if "sample" in options:
        try:
            options["sample"] = StochasticLength(
                **table_of(options["sample"], f"{where}.sample", _keys_of(StochasticLength))
            )
        except (SchemaError, TypeError) as error:
            raise SchemaError(f"{where}.sample needs alpha, and may have select: {error}") from error
    if "name" not in options:
        raise SchemaError(f"{where} needs a name")
    try:
        return Sequence(**options)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def load_toml(path: str | Path) -> dict[str, Any]:
    """The document in a TOML file. Tables of other programs beside `schema` and `sources` are ignored.

    Raises:
        SchemaError: not TOML, or a table whose name is a misspelt `schema` or `sources`.
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
    """`value`, checked: a table of a TOML file with no other keys than these."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where} is a table, got {value!r}")
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise SchemaError(f"{where} has no option {', '.join(unknown)}; there are {', '.join(keys)}")
    return value


def _code(group: Sequence) -> str:
    """Python code of a sequence."""
    used = [
        option for option in fields(group) if option.name != "name" and getattr(group, option.name) != option.default
    ]
    arguments = "".join(f", {option.name}={getattr(group, option.name)!r}" for option in used)
    return f"Sequence({group.name!r}{arguments})"


def _clash(name: str, what: str) -> SchemaError:
    other = "the samples of a batch" if name == SAMPLES else "a sequence"
    return SchemaError(
        f"{what} and {other} are both called {name!r}, and their elements are counted by name: "
        f"global_mean(over={name!r}) would divide by the wrong count. Give the label another name and map it with "
        "ParquetSource(columns={new: column})"
    )


def _keys_of(kind: type) -> list[str]:
    return [option.name for option in fields(kind)]
