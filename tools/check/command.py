"""The command `freescale check`: loads the schema that the user names, checks its sources, and shows what was found."""

import contextlib
import importlib.util
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from fsdata import ParquetSource, Schema
    from fsdata.errors import Fault


def check(
    schema: Annotated[
        str, typer.Option(help="A TOML file with a [schema] table (optional: [[sources]]), or module.py:name.")
    ],
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, globs, folders or URLs. Default: the sources of the schema file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every faulty row.")] = False,
) -> None:
    """Read files as a loader with this schema does, and list everything that the loader would stop at.

    Finds columns that are missing or of a wrong type, nulls, lists of unequal length, ids outside int64, keys
    without a match, and damaged files and row groups. Exit status: 0 if nothing is found, 1 if something is,
    2 for wrong usage.
    """
    with Terminal(json=json) as terminal, contextlib.ExitStack() as opened:
        from freescale_tools.check.report import check_blocks, document
        from freescale_tools.check.source_check import SourceCheck, check_forms
        from fsdata import AsOf

        fields, sources = load(schema, paths or [])
        try:
            checks = [
                opened.enter_context(contextlib.closing(SourceCheck(source, fields, index=index)))
                for index, source in enumerate(sources)
            ]
            found: list[tuple[Fault, str | None]] = [(fault, None) for fault in check_forms(checks, fields)]
            with terminal.progress("checking", rows=sum(one.rows for one in checks)) as progress:
                for one in checks:
                    found += [(fault, one.column(fault)) for fault in one.run(progress)]
        except OSError as error:
            raise CommandFailed(f"reading failed: {error}") from error
        times = {join.at for source in sources for join in source.join if isinstance(join, AsOf)}
        times |= {fields.time} if fields.time else set()
        rows = {one.label: None if one.opened is None else one.rows for one in checks}
        answer = document(found, rows=rows, schema=schema, times=times)
        terminal.show(check_blocks(answer))
        for label, count in rows.items():
            if count is None:
                terminal.say(
                    f"{label}: no row was read. Mend what is listed, then check again: rows may have faults, too"
                )
        if not found:
            terminal.say(f"{answer['rows']:,} rows of {len(answer['sources'])} source(s) fit the schema")
        for kind, count in answer["counts"].items():
            terminal.finding(f"{kind}: {count:,}")
        terminal.result(answer)


def load(given: str, paths: Sequence[str]) -> "tuple[Schema, list[ParquetSource]]":
    """(the schema of `given`, the sources of `paths` or of `given`).

    Args:
        given: a TOML file with a `[schema]` table and maybe `[[sources]]`; or `module.py:name`, where `name`
            is a Schema or a pair (Schema, sources). Loading a module runs it.
        paths: replace the paths of the one source that `given` describes; its other options stay.

    Raises UsageError if anything cannot be loaded, or if neither argument names files.
    """
    from fsdata import ParquetSource, Schema, sources_from_toml
    from fsdata.errors import SchemaError

    sources: list[ParquetSource] = []
    if given.endswith(".py"):
        raise UsageError(
            f"--schema {given}: say what of it, as in {given}:schema, a Schema or a pair (Schema, sources)"
        )
    try:
        if ".py:" in given:
            schema, sources = _from_module(given)
        else:
            schema = Schema.from_toml(given)
            if "sources" in tomllib.loads(Path(given).read_text()):
                sources = sources_from_toml(given)
    except (SchemaError, OSError) as error:
        raise UsageError(f"--schema {given}: {error}") from error
    if not paths:
        if not sources:
            raise UsageError(f"--schema {given} describes no sources: name the files to check")
        return schema, sources
    if len(sources) > 1:
        raise UsageError(f"--schema {given} describes {len(sources)} sources: leave PATHS out, they have their own")
    if sources and sources[0].events is not None:
        raise UsageError(f"--schema {given} describes rows that are events of histories: leave PATHS out")
    return schema, [replace(sources[0], paths=tuple(paths)) if sources else ParquetSource(list(paths))]


def _from_module(given: str) -> "tuple[Schema, list[ParquetSource]]":
    from fsdata import ParquetSource, Schema

    file, _, name = given.rpartition(":")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"--schema {path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise UsageError(f"--schema {path}: running it failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UsageError(f"--schema {given}: {file} has no {name!r}")
    found = getattr(module, name)
    schema, sources = found if isinstance(found, tuple) and len(found) == 2 else (found, [])
    given_sources = [sources] if isinstance(sources, ParquetSource) else list(sources)
    if not isinstance(schema, Schema) or not all(isinstance(one, ParquetSource) for one in given_sources):
        raise UsageError(f"--schema {given}: a Schema or a pair (Schema, sources) is needed, {name} is {found!r}")
    return schema, given_sources
