"""Writes the recommended settings as code to paste: a loader of the rows that were profiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from freescale_tools.console.options import StoredHistories
from freescale_tools.model.batches import Setting
from freescale_tools.scan.columns import bind, first_name, holds
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests
from fsdata.catalog.footers import Footer

_CODE = """\
{imports}

schema = Schema(sequences=({sequence},){candidates})
{histories}{comments}balance = Balance({balance})
# The figures are those of shuffled batches.
{several}with FreeScaleDataLoader({source}, schema, batch_size={batch_size}, shuffle=True, balance=balance) as loader:
    for batch in loader:
        ...  # your training step; loss = global_mean(per_sample_loss, batch)
"""
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ALIKE = ("histogram", "per_file", "longest")  # what aligned lists have in common
_HASH = ".list.eval(pl.element().hash(seed=1) % 2**20)"  # text has to become numbers; how many is the user's to say


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSchema:
    """Files that one `ParquetSource` reads.

    Attributes:
        paths: as the user named them; or single files, if there are others among them.
        expressions: column -> polars expression that extracts it, where a loader cannot take it as it is.
    """

    paths: tuple[str, ...]
    expressions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFiles:
    """How a loader reads the profiled files.

    Attributes:
        sources: the files, by what their columns need.
        column: the history.
        aligned: other sequences whose rows have its lengths: further fields of its events.
        candidates: the column of candidates, or None.
        floats: columns that are lists of floats.
        nulls: columns with null rows or elements.
        damaged: whether files or row groups cannot be read.
        histories: where the history is stored once; None if it is in the rows.
        share: whether samples of a batch share it.
    """

    sources: tuple[OneSchema, ...]
    column: str
    aligned: tuple[str, ...] = ()
    candidates: str | None = None
    floats: frozenset[str] = frozenset()
    nulls: frozenset[str] = frozenset()
    damaged: bool = False
    histories: StoredHistories | None = None
    share: bool = False


def loader_files(
    files: FileSet,
    document: Mapping[str, Any],
    *,
    paths: Sequence[str],
    requests: Requests | None = None,
    share: bool = False,
) -> LoaderFiles:
    """The files for the first sequence of a full profile, those aligned with it, and the candidates.

    `files` were found by `paths`. `requests`: the files, if their histories are stored once.
    """
    column, candidates = next(iter(document["sequences"])), next(iter(document["candidates"]), None)
    first = document["sequences"][column]
    aligned = [
        name
        for name, one in document["sequences"].items()
        if requests is None and name != column and all(one[key] == first[key] for key in _ALIKE)
    ]
    columns = [column, *aligned, *([candidates] if candidates else [])]
    in_rows = columns if requests is None else columns[1:]
    bound = bind(files, in_rows)
    usable = [footer for footer, leaves in zip(files.footers, bound.leaves, strict=True) if len(leaves) == len(in_rows)]
    all_of_them = len(usable) == len(files.footers)
    scheme = paths[0].partition("://")[0] + "://" if "://" in paths[0] else ""
    by_need: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for one in usable:
        needs = ((name, expression) for name in in_rows if (expression := _expression(one, name)))
        by_need.setdefault(tuple(needs), []).append(one.file.path if "://" in one.file.path else scheme + one.file.path)
    if all_of_them and len(by_need) == 1:
        by_need = {needs: list(paths) for needs in by_need}
    found = {**document["sequences"], **document["candidates"]}
    return LoaderFiles(
        sources=tuple(OneSchema(paths=tuple(named), expressions=dict(needs)) for needs, named in by_need.items()),
        column=column,
        aligned=tuple(aligned),
        candidates=candidates,
        floats=frozenset(name for name in in_rows if any(holds(one, name, pa.types.is_floating) for one in usable))
        | ({column} & requests.floats if requests else set()),
        nulls=frozenset(name for name in columns if found[name]["null"] or found[name]["null_elements"]),
        damaged=any(one["row_group"] is not None for one in document["skipped"])
        or (all_of_them and len(by_need) == 1 and bool(files.skipped)),
        histories=requests.stored if requests else None,
        share=share,
    )


def code(files: LoaderFiles, chosen: Setting, *, options: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """The code. It runs as it is; only the training step is missing. `options`: of Balance, but for the cost."""
    column, candidates = files.column, files.candidates
    fields = {wanted: _field(wanted) for wanted in (column, *files.aligned, candidates) if wanted}
    names = ["Balance", "FreeScaleDataLoader", "ParquetSource", "Schema", "Sequence", type(chosen.cost).__name__]
    names += ["AsOf"] if files.histories else []
    sources = [_source(files, one, fields) for one in files.sources]
    listed = ",\n    ".join(sources)
    given = {**options, "cost": chosen.cost}

    def role(*paths: str) -> str:
        of: dict[str, list[str]] = {"fields": [], "floats": []}
        for path in paths:
            of["floats" if path in files.floats else "fields"].append(fields[path])
        return ", ".join(f"{name}={tuple(found)!r}" for name, found in of.items() if found)

    events = role(column, *files.aligned)
    return _CODE.format(
        imports=("import polars as pl\n" if any(one.expressions for one in files.sources) else "")
        + f"from fsdata import {', '.join(sorted(names))}",
        sequence=f"Sequence({fields[column]!r}, {events}, max_length={chosen.max_length}{_share(files)})",
        histories=_histories(files.histories, column) if files.histories else "",
        candidates=f', candidates=Sequence("candidates", {role(candidates)})' if candidates else "",
        comments="".join(f"# {line}\n" for line in comments),
        balance=", ".join(f"{name}={value!r}" for name, value in given.items()),
        several=f"sources = [\n    {listed},\n]\n" if len(sources) > 1 else "",
        source="sources" if len(sources) > 1 else sources[0],
        batch_size=chosen.batch_size,
    )


def _source(files: LoaderFiles, one: OneSchema, fields: Mapping[str, str]) -> str:
    """The `ParquetSource` of files of one schema."""
    columns = ", ".join(f"{fields[path]!r}: {expression}" for path, expression in one.expressions.items())
    # NaN counts as null in float fields. Histories that are stored once have been read without nulls.
    in_rows = [path for path in fields if files.histories is None or path != files.column]
    defaults = ", ".join(f"{fields[path]!r}: 0" for path in in_rows if path in files.nulls | files.floats)
    given = [
        _paths(one.paths),
        *(["join=histories"] if files.histories else []),
        *([f"columns={{{columns}}}"] if columns else []),
        *([f"defaults={{{defaults}}}"] if defaults else []),
        *(['on_error="skip"'] if files.damaged else []),
    ]
    return f"ParquetSource({', '.join(given)})"


def _field(path: str) -> str:
    return path.replace(".", "_")


def _expression(footer: Footer, path: str) -> str | None:
    """What extracts a list column of this file; None if a loader takes the column of that name."""
    name, inside = first_name(footer.schema.names, path)
    parts = [f"pl.col({name!r})", *(f".struct.field({one!r})" for one in inside.split(".") if one)]
    if any(holds(footer, path, test) for test in _TEXT):
        parts.append(_HASH)
    return "".join(parts) if len(parts) > 1 or name != _field(path) else None


def _paths(paths: Sequence[str]) -> str:
    return repr(list(paths) if len(paths) > 1 else paths[0])


def _share(files: LoaderFiles) -> str:
    return f", share={files.histories.on!r}" if files.histories and files.share else ""


def _histories(stored: StoredHistories, column: str) -> str:
    """The line that joins the histories."""
    times = f"on={stored.on!r}, at={stored.time!r}, time={stored.event_time!r}"
    return f"histories = AsOf(ParquetSource({_paths(stored.paths)}), {times}, fields=({column!r},))\n"
