"""Writes the recommended settings as code to paste: a loader of the rows that were profiled."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from freescale_tools.model.batches import Setting, balance_options
from freescale_tools.profile.recommend import cut_sentences
from freescale_tools.scan.columns import bind, holds, inside_structs
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.footers import Footer
from freescale_tools.scan.histories import Requests

_CODE = """\
{imports}

schema = Schema(sequences=({sequence},){candidates})
{histories}{comments}balance = Balance({balance})
{several}with FreeScaleDataLoader({source}, schema, batch_size={batch_size}, shuffle=True, balance=balance) as loader:
    for batch in loader:
        ...  # your training step; loss = global_mean(per_sample_loss, batch)
"""
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ALIKE = ("histogram", "per_file", "longest")  # what aligned lists have in common
_BUCKETS = "2**20"  # text has to become numbers; how many is for the user to say


def loader_parts(
    files: FileSet, document: Mapping[str, Any], *, requests: Requests | None = None, share: bool
) -> dict[str, Any]:
    """What the code says of the files, whatever the settings: the `loader` of a full profile.

    It reads the first sequence, the sequences whose rows have the same lengths as further fields of its events, and
    the candidates, if a file has them beside its events. `requests`: the files, if their histories are stored once;
    with `share`, samples of a batch share them.
    """
    stored = requests.stored if requests else None
    lists = {**document["sequences"], **document["candidates"]}
    column, candidates = next(iter(document["sequences"])), next(iter(document["candidates"]), None)
    events = [column] + [
        name
        for name, one in document["sequences"].items()
        if requests is None and name != column and all(one[key] == lists[column][key] for key in _ALIKE)
    ]
    columns = [*events, *([candidates] if candidates else [])]
    fields = {name: name.replace(".", "_") for name in columns}
    in_rows = columns if requests is None else columns[1:]
    bound = bind(files, in_rows)
    usable = [footer for footer, leaves in zip(files.footers, bound.leaves, strict=True) if len(leaves) == len(in_rows)]
    if not usable:  # no file has both events and candidates: a loader can read the events alone
        return loader_parts(files, {**document, "candidates": {}}, requests=requests, share=share)
    floats = {name for name in in_rows if any(holds(one, name, pa.types.is_floating) for one in usable)}
    floats |= {column} & requests.floats if requests else set()

    def role(names: Sequence[str]) -> str:
        """The fields of a sequence: of ids, and of floats."""
        of = {
            "fields": tuple(fields[name] for name in names if name not in floats),
            "floats": tuple(fields[name] for name in names if name in floats),
        }
        return ", ".join(f"{kind}={found!r}" for kind, found in of.items() if found)

    sources = _sources(files, usable, document, {name: fields[name] for name in in_rows}, floats, join=bool(stored))
    histories = ""
    if stored:
        times = f"on={stored.on!r}, at={stored.time!r}, time={stored.event_time!r}"
        histories = f"histories = AsOf(ParquetSource({_paths(stored.paths)}), {times}, fields=({column!r},))\n"
    return {
        "name": fields[column],
        "role": role(events),
        "shared": f", share={stored.on!r}" if stored and share else "",
        "candidates": f', candidates=Sequence("candidates", {role([candidates])})' if candidates else "",
        "histories": histories,
        "sources": sources,
    }


def loader_code(loader: Mapping[str, Any], advice: Mapping[str, Any], chosen: Setting) -> str:
    """Code that trains with the recommended settings; only the training step is missing.

    `loader`: of `loader_parts`. `advice`: what is `recommended`, for the settings `chosen`.
    """
    sources, cost = loader["sources"], chosen.cost
    names = ["Balance", "FreeScaleDataLoader", "ParquetSource", "Schema", "Sequence", type(cost).__name__]
    names += ["AsOf"] if loader["histories"] else []
    names += ["text_key"] if any("text_key(" in one for one in sources) else []
    options = {**balance_options(advice["method"], chosen, advice["max_tokens"]), "cost": cost}
    listed = ",\n    ".join(sources)
    return _CODE.format(
        imports=f"from fsdata import {', '.join(sorted(names))}",
        sequence=f"Sequence({loader['name']!r}, {loader['role']}, max_length={advice['max_length']}{loader['shared']})",
        histories=loader["histories"],
        candidates=loader["candidates"],
        comments="".join(f"# {line}\n" for line in cut_sentences(advice)),
        balance=", ".join(f"{name}={value!r}" for name, value in options.items()),
        several=f"sources = [\n    {listed},\n]\n" if len(sources) > 1 else "",
        source="sources" if len(sources) > 1 else sources[0],
        batch_size=chosen.batch_size,
    )


def _sources(
    files: FileSet,
    usable: Sequence[Footer],
    document: Mapping[str, Any],
    fields: Mapping[str, str],
    floats: set[str],
    *,
    join: bool,
) -> list[str]:
    """A `ParquetSource` for all files, or one for those that need the same expressions to extract their columns."""
    paths: list[str] = document["paths"]
    scheme = paths[0].partition("://")[0] + "://" if "://" in paths[0] else ""
    by_need: dict[tuple[str, ...], list[str]] = {}
    for one in usable:
        needs = tuple(f"{of!r}: {found}" for name, of in fields.items() if (found := _expression(one, name, of)))
        by_need.setdefault(needs, []).append(one.file.path if "://" in one.file.path else scheme + one.file.path)
    as_named = len(usable) == len(files.footers) and len(by_need) == 1
    if as_named:
        by_need = dict.fromkeys(by_need, paths)
    damaged = any(one["row_group"] is not None for one in document["skipped"]) or (as_named and bool(files.skipped))
    lists = {**document["sequences"], **document["candidates"]}
    # NaN counts as null in float fields. Histories that are stored once have been read without nulls.
    nulls = {name for name in fields if name in floats or lists[name]["null"] or lists[name]["null_elements"]}
    defaults = ", ".join(f"{field!r}: 0" for name, field in fields.items() if name in nulls)
    sources = []
    for needs, named in by_need.items():
        given = [
            _paths(named),
            *(["join=histories"] if join else []),
            *([f"columns={{{', '.join(needs)}}}"] if needs else []),
            *([f"defaults={{{defaults}}}"] if defaults else []),
            *(['on_error="skip"'] if damaged else []),
        ]
        sources.append(f"ParquetSource({', '.join(given)})")
    return sources


def _expression(footer: Footer, path: str, field: str) -> str | None:
    """What extracts a list column of this file; None if a loader takes the column of that name."""
    column = ".".join(inside_structs(footer.schema, path)[0])
    if any(holds(footer, path, test) for test in _TEXT):
        return f"text_key({column!r}, buckets={_BUCKETS})"
    return repr(column) if column != field else None


def _paths(paths: Sequence[str]) -> str:
    return repr(list(paths) if len(paths) > 1 else paths[0])
