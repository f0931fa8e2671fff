"""Writes the recommended settings as code to paste: a loader of the rows that were profiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freescale_tools.console.options import StoredHistories
from freescale_tools.profile.stragglers import Setting
from freescale_tools.scan.columns import bind_lists, holds
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests

_CODE = """\
{imports}

schema = Schema(sequences=({sequence},){candidates})
{histories}balance = Balance({method!r}, cost={cost}, max_tokens={max_tokens})
with FreeScaleDataLoader(ParquetSource({source}), schema, batch_size={batch_size}, balance=balance) as loader:
    for batch in loader:
        ...  # your training step; loss = global_mean(per_sample_loss, batch)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFiles:
    """How a loader reads the profiled files.

    Attributes:
        paths: as the user named them; or single files, if some files lack a column.
        column: the history.
        candidates: the column of candidates, or None.
        floats: columns that are lists of floats.
        nulls: columns with null rows or elements.
        damaged: whether files or row groups cannot be read.
        histories: where the history is stored once; None if it is in the rows.
        share: whether samples of a batch share it.
    """

    paths: tuple[str, ...]
    column: str
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
    """The files for the first sequence and the candidates of a full profile.

    `files` were found by `paths`. `requests`: the files, if their histories are stored once.
    """
    column, candidates = next(iter(document["sequences"])), next(iter(document["candidates"]), None)
    columns = [column, *([candidates] if candidates else [])]
    in_rows = columns if requests is None else columns[1:]
    bound = bind_lists(files, in_rows)
    usable = [footer for footer, leaves in zip(files.footers, bound.leaves, strict=True) if len(leaves) == len(in_rows)]
    all_of_them = len(usable) == len(files.footers)
    scheme = paths[0].partition("://")[0] + "://" if "://" in paths[0] else ""
    one_by_one = [one.file.path if "://" in one.file.path else scheme + one.file.path for one in usable]
    found = {**document["sequences"], **document["candidates"]}
    return LoaderFiles(
        paths=tuple(paths if all_of_them else one_by_one),
        column=column,
        candidates=candidates,
        floats=frozenset(name for name in in_rows if any(holds(one, name, pa.types.is_floating) for one in usable))
        | ({column} & requests.floats if requests else set()),
        nulls=frozenset(name for name in columns if found[name]["null"] or found[name]["null_elements"]),
        damaged=any(one["row_group"] is not None for one in document["skipped"])
        or (all_of_them and bool(files.skipped)),
        histories=requests.stored if requests else None,
        share=share,
    )


def code(files: LoaderFiles, chosen: Setting, *, method: str, max_tokens: int) -> str:
    """The code. It runs as it is; only the training step is missing."""
    column, candidates = files.column, files.candidates
    fields = {wanted: wanted.replace(".", "_") for wanted in (column, candidates) if wanted}
    # A field of a struct is not a column of the file. A polars expression extracts it.
    inside = ", ".join(f"{fields[path]!r}: {_expression(path)}" for path in fields if "." in path)
    # NaN counts as null in float fields.
    # The histories have been read without them.
    in_rows = [path for path in fields if files.histories is None or path != column]
    defaults = ", ".join(f"{fields[path]!r}: 0" for path in in_rows if path in files.nulls | files.floats)
    names = ["Balance", "FreeScaleDataLoader", "ParquetSource", "Schema", "Sequence", type(chosen.cost).__name__]
    names += ["AsOf"] if files.histories else []
    source = [
        _paths(files.paths),
        *(["join=histories"] if files.histories else []),
        *([f"columns={{{inside}}}"] if inside else []),
        *([f"defaults={{{defaults}}}"] if defaults else []),
        *(['on_error="skip"'] if files.damaged else []),
    ]

    def role(path: str) -> str:
        return f"{'floats' if path in files.floats else 'fields'}=({fields[path]!r},)"

    return _CODE.format(
        imports=("import polars as pl\n" if inside else "") + f"from fsdata import {', '.join(sorted(names))}",
        sequence=f"Sequence({fields[column]!r}, {role(column)}, max_length={chosen.max_length}{_share(files)})",
        histories=_histories(files.histories, column) if files.histories else "",
        candidates=f', candidates=Sequence("candidates", {role(candidates)})' if candidates else "",
        method=method,
        cost=repr(chosen.cost),
        max_tokens=max_tokens,
        source=", ".join(source),
        batch_size=chosen.batch_size,
    )


def _expression(path: str) -> str:
    first, *rest = path.split(".")
    return f"pl.col({first!r})" + "".join(f".struct.field({name!r})" for name in rest)


def _paths(paths: Sequence[str]) -> str:
    return repr(list(paths) if len(paths) > 1 else paths[0])


def _share(files: LoaderFiles) -> str:
    return f", share={files.histories.on!r}" if files.histories and files.share else ""


def _histories(stored: StoredHistories, column: str) -> str:
    """The line that joins the histories."""
    times = f"on={stored.on!r}, at={stored.time!r}, time={stored.event_time!r}"
    return f"histories = AsOf(ParquetSource({_paths(stored.paths)}), {times}, fields=({column!r},))\n"
