"""Loads the schema that a user names on the command line, and the sources if it describes them."""

import importlib.util
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from freescale_tools.console.errors import UsageError
from fsdata import ParquetSource, Schema, sources_from_toml
from fsdata.errors import SchemaError


def load(given: str, paths: Sequence[str]) -> tuple[Schema, list[ParquetSource]]:
    """(the schema of `given`, the sources of `paths` or of `given`).

    Args:
        given: a TOML file with a `[schema]` table and maybe `[[sources]]`; or `module.py:name`, where `name`
            is a Schema or a pair (Schema, sources). Loading a module runs it.
        paths: replace the paths of the one source that `given` describes; its other options stay.

    Raises UsageError if anything cannot be loaded, or if neither argument names files.
    """
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
    return schema, [replace(sources[0], paths=tuple(paths)) if sources else ParquetSource(list(paths))]


def _from_toml(given: str) -> tuple[Schema, list[ParquetSource]]:
    schema = Schema.from_toml(given)
    has_sources = "sources" in tomllib.loads(Path(given).read_text())
    return schema, sources_from_toml(given) if has_sources else []


def _from_module(given: str) -> tuple[Schema, list[ParquetSource]]:
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
