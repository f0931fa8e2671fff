"""The command `freescale check`: loads the schema that the user names, checks its sources, and shows what was found."""

import importlib.util
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from fsdata import ParquetSource, Schema


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
    with Terminal(json=json) as terminal:
        _run(terminal, schema, paths or [])


def _run(terminal: Terminal, given: str, paths: list[str]) -> None:
    from freescale_tools.check.findings import document
    from freescale_tools.check.report import check_blocks
    from freescale_tools.check.source_check import SourceCheck, check_forms
    from fsdata import AsOf

    schema, sources = load(given, paths)
    checks: list[SourceCheck] = []
    try:
        for index, source in enumerate(sources):
            checks.append(SourceCheck(source, schema, index=index))
        found = check_forms(checks, schema)
        columns: list[str | None] = [None] * len(found)
        with terminal.progress("checking", rows=sum(check.rows for check in checks)) as progress:
            for check in checks:
                more = check.run(progress)
                found += more
                columns += map(check.column, more)
    except OSError as error:
        raise CommandFailed(f"reading failed: {error}") from error
    finally:
        for check in checks:
            check.close()
    times = {join.at for source in sources for join in source.join if isinstance(join, AsOf)}
    times |= {schema.time} if schema.time else set()
    rows = {check.label: None if check.opened is None else check.rows for check in checks}
    answer = document(found, columns, rows=rows, schema=given, times=times)
    terminal.show(check_blocks(answer))
    for label, count in rows.items():
        if count is None:
            terminal.say(f"{label}: no row was read. Mend what is listed, then check again: rows may have faults, too")
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
    from fsdata import ParquetSource
    from fsdata.errors import SchemaError

    if given.endswith(".py"):
        raise UsageError(
            f"--schema {given}: say what of it, as in {given}:schema, a Schema or a pair (Schema, sources)"
        )
    try:
        schema, sources = _from_module(given) if ".py:" in given else _from_toml(given)
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


def _from_toml(given: str) -> "tuple[Schema, list[ParquetSource]]":
    from fsdata import Schema, sources_from_toml

    schema = Schema.from_toml(given)
    has_sources = "sources" in tomllib.loads(Path(given).read_text())
    return schema, sources_from_toml(given) if has_sources else []


def _from_module(given: str) -> "tuple[Schema, list[ParquetSource]]":
    from fsdata import ParquetSource, Schema

    file, _, name = given.rpartition(":")
    module = _module(Path(file))
    if not hasattr(module, name):
        raise UsageError(f"--schema {given}: {file} has no {name!r}")
    found = getattr(module, name)
    schema, sources = found if isinstance(found, tuple) and len(found) == 2 else (found, [])
    given_sources = [sources] if isinstance(sources, ParquetSource) else list(sources)
    if not isinstance(schema, Schema) or not all(isinstance(one, ParquetSource) for one in given_sources):
        raise UsageError(f"--schema {given}: a Schema or a pair (Schema, sources) is needed, {name} is {found!r}")
    return schema, given_sources


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"--schema {path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise UsageError(f"--schema {path}: running it failed: {type(error).__name__}: {error}") from error
    return module
