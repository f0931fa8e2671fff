"""The data kit: small Parquet files, loaders on them, and what their batches hold in plain Python.

Everything goes through public names, so tests that use it say what a loader gives, whatever decodes it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from patience import PATIENCE_S
from torchrec import JaggedTensor, KeyedJaggedTensor

from fsdata import Batch, FreeScaleDataLoader, Jagged, ParquetSource, Schema, expand
from fsdata.batch.jagged_features import JaggedFeatures
from fsdata.compose import installed

DECODERS = ("pages", "pyarrow") if installed("pages") else ("pyarrow",)
"""For tests of the core, which also run where the page decoder is deleted: see `tests/without.py`."""

USERS = Schema(context=("user",))
"""Of files of one column, for tests in which only the way to a file matters; see `users` and `found`."""


def write(path: Path, columns: dict[str, Any] | pa.Table, *, group: int | None = None, **options: Any) -> Path:
    """A file of `columns` (arrays or Python lists) in row groups of `group` rows, in a folder that is made if needed.

    Pages have checksums; options: of `pq.write_table`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    rows = group or max(table.num_rows, 1)
    pq.write_table(table, path, **{"row_group_size": rows, "write_page_checksum": True, **options})
    return path


def lists(kind: pa.DataType, *rows: Any) -> pa.Array:
    """A column of lists of `kind`, of one row after another."""
    return pa.array(list(rows), pa.list_(kind))


def loader_on(sources: Any, schema: Schema, **options: Any) -> FreeScaleDataLoader:
    """sources: one or more, or the path of files. One thread decodes, and nothing real is waited for."""
    sources = ParquetSource(sources) if isinstance(sources, str | Path) else sources
    return FreeScaleDataLoader(
        sources, schema, **{"batch_size": 16, "num_threads": 1, "timeout_s": PATIENCE_S} | options
    )


def load(sources: Any, schema: Schema, **options: Any) -> tuple[list[Batch], FreeScaleDataLoader]:
    """All batches, and the loader, which is closed and says what it has read: `describe()`, `skipped`, `stats()`."""
    with loader_on(sources, schema, **options) as loader:
        return list(loader), loader


def read(sources: Any, schema: Schema, **options: Any) -> list[dict[str, Any]]:
    """All samples, see `as_python`."""
    return [sample for batch in load(sources, schema, **options)[0] for sample in as_python(batch)]


def fingerprint(sources: Any, schema: Schema, **options: Any) -> dict[str, Any]:
    """What a saved state compares with the sources that it meets; no row is read."""
    with loader_on(sources, schema, **options) as loader:
        said: dict[str, Any] = loader.state_dict()["fingerprint"]
        return said


def as_python(batch: Batch) -> list[dict[str, Any]]:
    """The samples, field by field: a number, a text, a list, of nested fields a list of lists.

    Sequences with `share` are expanded. A join with `missing="mask"` adds "mask of FIELD".
    """
    fields = {
        name: rows_in(value)
        if isinstance(value, Jagged)
        else list(value if isinstance(value, list) else value.tolist())
        for name, value in _values_of(batch).items()
    }
    for group in batch.schema.groups:
        if group.nested:
            fields |= _nested(batch, group)
    fields |= {f"mask of {name}": mask.tolist() for name, mask in batch.mask.items()}
    assert {name: len(rows) for name, rows in fields.items()} == dict.fromkeys(fields, len(batch))
    return [{name: rows[number] for name, rows in fields.items()} for number in range(len(batch))]


def _values_of(batch: Batch) -> dict[str, Any]:
    """The values of every field but nested ones. `Batch.to_dict` gives the same, but belongs to an extension."""
    schema = batch.schema
    ids = {name: Jagged(part.values(), part.offsets()) for name, part in parts_of(batch.features).items()}
    found: dict[str, Any] = ids | dict(batch.jagged) | dict(batch.labels) | dict(batch.passthrough)
    found |= {name: batch.dense[:, number] for number, name in enumerate(schema.dense)}
    single = set(schema.context)
    for group in schema.groups:
        names = (*group.fields, *group.floats, *group.labels, *group.id_labels)
        if group.name == schema.explode:
            single |= set(names)
        elif group.name in batch.shared:
            where = batch.shared[group.name]
            found |= {name: Jagged.from_lengths(expand(found[name].values, where), where.length) for name in names}
    return {
        name: value.values if name in single and isinstance(value, Jagged) else value for name, value in found.items()
    }


def rows_in(value: Jagged) -> list[list[Any]]:
    """The rows, which have all values."""
    offsets = value.offsets.tolist()
    assert (offsets[0], offsets[-1]) == (0, len(value.values))
    return [row.tolist() for row in value]


def _nested(batch: Batch, group: Any) -> dict[str, list[Any]]:
    """The lists of ids of the events of every sample."""
    along = batch.features[group.fields[0]] if group.fields else batch.jagged[group.floats[0]]
    lengths = (along.offsets() if group.fields else along.offsets).diff().tolist()
    found = {}
    for name, part in parts_of(batch.nested[group.name]).items():
        events = iter(rows_in(Jagged(part.values(), part.offsets().long())))
        rows = [[next(events) for _ in range(length)] for length in lengths]
        assert next(events, None) is None
        if group.name in batch.shared:
            where = batch.shared[group.name]
            spans = zip(where.row.tolist(), where.start.tolist(), where.length.tolist(), strict=True)
            rows = [rows[row][start : start + length] for row, start, length in spans]
        found[name] = rows
    return found


def column(samples: list[dict[str, Any]], name: str) -> list[Any]:
    return [sample[name] for sample in samples]


def rows_of(batches: Batch | Iterable[Batch], name: str = "row") -> list[int]:
    """The numbers of the rows, in order: what a context field has in all samples of one or more batches."""
    some = [batches] if isinstance(batches, Batch) else batches
    return [row for batch in some for row in batch.features[name].values().tolist()]


def parts_of(features: KeyedJaggedTensor | JaggedFeatures) -> dict[str, JaggedTensor]:
    """`features.to_dict()`; also of no samples, where that of torchrec 1.7 and before fails."""
    if isinstance(features, JaggedFeatures):
        return dict(features)
    if features.stride():
        return features.to_dict()
    return {key: JaggedTensor(values=features.values(), lengths=features.lengths()) for key in list(features.keys())}


def tensors(batch: Batch) -> dict[str, Any]:
    """Everything that a batch holds but its statistics: tensors, and lists of texts, by names of their own."""
    found: dict[str, Any] = {"dense": batch.dense, "origin": batch.origin}
    for name, own in {"features": batch.features, **batch.nested}.items():
        values, lengths = own.flat() if isinstance(own, JaggedFeatures) else (own.values(), own.lengths())
        found |= {f"{name} values": values, f"{name} lengths": lengths}
    for kind in ("labels", "jagged", "passthrough", "mask"):
        for name, value in getattr(batch, kind).items():
            parts = {"values": value.values, "offsets": value.offsets} if isinstance(value, Jagged) else {"": value}
            found |= {f"{kind} {name} {part}": each for part, each in parts.items()}
    for name, where in batch.shared.items():
        found |= {f"shared {name} {part}": getattr(where, part) for part in ("row", "start", "length", "offset")}
    return found | {f"split {name}": split.events for name, split in batch.split.items()}


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches are bitwise identical, and their statistics equal."""
    mine, theirs = tensors(one), tensors(other)
    return (
        one.features.keys() == other.features.keys()
        and one.stats == other.stats
        and mine.keys() == theirs.keys()
        and all(_equal(value, theirs[name]) for name, value in mine.items())
    )


def assert_same(ours: Iterable[Batch], theirs: Iterable[Batch]) -> None:
    """Bit for bit; names the first batch that differs, and in what."""
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        wanted = tensors(other)
        differ = [name for name, value in tensors(one).items() if not _equal(value, wanted[name])]
        assert same(one, other), f"step {step}: {differ or (one, other, one.stats, other.stats)}"


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def users(folder: Path, name: str, *numbers: int, **options: Any) -> Path:
    """A file with these numbers in its column `user`."""
    return write(folder / name, {"user": pa.array(numbers, pa.int64())}, **options)


def found(*args: Any, **kwargs: Any) -> list[int]:
    """The users in a source of these arguments."""
    return column(read(ParquetSource(*args, **kwargs), USERS), "user")
