"""From paths, globs, folders and URLs to a list of files with their partition values."""

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from fsdata.catalog.file_list import FileList
from fsdata.catalog.walk import files_below, same_files
from fsdata.errors import SchemaError

SUFFIXES = (".parquet", ".parq")
_NATIVE_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_NAMED = 5
_OPTIONS = re.compile(r"\?[a-z_]+=[^?&]*(&[a-z_]+=[^?&]*)*$")


def discover(paths: Sequence[str], filesystem: Any) -> FileList:
    """The files that `paths` stand for, in order: paths as given, the files of one glob or folder by name.

    Raises:
        FileNotFoundError: a path, glob or folder without a Parquet file.
        SchemaError: a file that is found twice, a folder inside itself, an unknown kind of filesystem.
    """
    found: list[tuple[pafs.FileSystem, str]] = []
    for given in paths:
        system, path = _resolve(given, filesystem)
        found += [(system, file) for file in _expand(system, path, given)]
    _check_repeats(found)
    return FileList.of(found)


def _check_repeats(found: list[tuple[pafs.FileSystem, str]]) -> None:
    """Refuse two paths to one file. Of remote files only equal paths are known to be one file."""
    local = [path for system, path in found if isinstance(system, pafs.LocalFileSystem)]
    remote = Counter(path for system, path in found if not isinstance(system, pafs.LocalFileSystem))
    twice = same_files(local) + [(path, path) for path, times in remote.items() if times > 1]
    if twice:
        named = "; ".join(one if one == other else f"{one} and {other}" for one, other in twice[:_NAMED])
        more = f"; and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
        raise SchemaError(
            f"named twice in one source, so its rows would be read twice: {named}{more}. Name every file once, and "
            "remove links that lead to files already there"
        )


def _resolve(given: str, filesystem: Any) -> tuple[pafs.FileSystem, str]:
    if filesystem is not None:
        return _as_arrow(filesystem), given
    scheme = given.split("://", 1)[0] if "://" in given else ""
    if not scheme:
        try:
            return pafs.LocalFileSystem(), str(Path(given).expanduser().absolute())
        except RuntimeError as error:
            raise SchemaError(f"{given}: there is no such user, or no home folder. Give the folder itself") from error
    if scheme == "file":
        return pafs.LocalFileSystem(), str(Path(given.split("://", 1)[1]).absolute())
    if scheme in _NATIVE_SCHEMES:
        path, options = _options(given)
        fixed, rest = _fixed_part(path)
        try:
            system, path = pafs.FileSystem.from_uri(fixed + options)
        except pa.ArrowInvalid as error:
            raise SchemaError(f"{given}: not a URL: {error}") from error
        return system, path.rstrip("/") + rest
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(given)
    except (ValueError, TypeError, ImportError) as error:
        raise SchemaError(f"{given}: {error}") from error
    return _as_arrow(system), path


def _as_arrow(filesystem: Any) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    import fsspec

    if not isinstance(filesystem, fsspec.AbstractFileSystem):
        raise SchemaError(f"filesystem must be a pyarrow or fsspec filesystem, got {filesystem!r}")
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _options(url: str) -> tuple[str, str]:
    """(the path, the options with their question mark). Any question mark not before `key=value` is a wildcard."""
    found = _OPTIONS.search(url)
    return (url[: found.start()], found[0]) if found else (url, "")


def _fixed_part(path: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the rest."""
    wild = re.search(r"[*?\[]", path)
    if wild is None:
        return path, ""
    cut = path.rfind("/", 0, wild.start())
    return path[: max(cut, 0)], path[max(cut, 0) :]


def _expand(system: pafs.FileSystem, path: str, given: str) -> list[str]:
    info = system.get_file_info(path)
    if info.type == pafs.FileType.File:
        return [info.path]
    if info.type == pafs.FileType.Directory:
        files = [file for file in _below(system, info.path, recursive=True) if file.endswith(SUFFIXES)]
        if not files:
            raise FileNotFoundError(f"{given}: no {' or '.join(SUFFIXES)} file in this folder or below it")
        return files
    if info.type == pafs.FileType.Unknown:
        raise SchemaError(
            f"{given}: {_what_it_is(path)}, where a file or folder is needed: copy what it gives to a file"
        )
    base, rest = _fixed_part(path)
    if not rest:
        raise FileNotFoundError(f"{given}: no such file or folder")
    base = base or path[: path.startswith("/")]
    if system.get_file_info(base).type == pafs.FileType.NotFound:
        raise FileNotFoundError(f"{given}: no file matches; there is no folder {base}")
    pattern = _pattern(path)
    files = [
        file for file in _below(system, base, recursive=rest.count("/") > 1 or "**" in rest) if pattern.fullmatch(file)
    ]
    if not files:
        raise FileNotFoundError(f"{given}: no file matches")
    return files


def _what_it_is(path: str) -> str:
    mode = os.stat(path).st_mode
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def _below(system: pafs.FileSystem, folder: str, *, recursive: bool) -> list[str]:
    if isinstance(system, pafs.LocalFileSystem):
        return files_below(folder, recursive=recursive)
    selector = pafs.FileSelector(folder, recursive=recursive)
    files = [info.path for info in system.get_file_info(selector) if info.type == pafs.FileType.File]
    skip = len(folder.rstrip("/"))
    return sorted(file for file in files if not re.search(r"/[._]", "/" + file[skip:].lstrip("/")))


def _pattern(glob: str) -> re.Pattern[str]:
    """A regular expression for a glob in which `*` stays inside a folder and `**` does not."""
    parts = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", glob)
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = ""
    for part in parts:
        if len(part) > 1 and part[0] == "[":
            text += "[" + ("^" + part[2:] if part[1] == "!" else part[1:])
        else:
            text += translated.get(part, re.escape(part))
    return re.compile(text)
