"""From paths, globs, folders and URLs to a list of files with their partition values.

Of a folder of this machine each file comes once, whichever paths lead to it.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from fsdata.catalog.listing.file_list import UNKNOWN, FileList, Version
from fsdata.catalog.retry import Retrying
from fsdata.errors import SchemaError

_Identity = tuple[int, int]  # device and inode


def files_below(folder: str, *, recursive: bool) -> list[str]:
    """All files, by name; names that begin with `.` or `_` are left out. Links are followed.

    Raises:
        SchemaError: a link to a folder above it, through which every file would be found again and again.
    """
    found: list[str] = []
    _walk(folder.rstrip("/") or "/", {}, found, recursive=recursive)
    return sorted(found)


def _walk(folder: str, above: dict[_Identity, str], found: list[str], *, recursive: bool) -> None:
    identity = _identity(folder)
    if identity in above:
        raise SchemaError(
            f"{folder} is the folder {above[identity]} above it, so its rows would be read many times. Remove the "
            "link, or name the folders or files to read"
        )
    inside = {**above, identity: folder}
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if entry.name[0] not in "._"]
    for entry in shown:
        if entry.is_file():
            found.append(f"{folder.rstrip('/')}/{entry.name}")
        elif recursive and entry.is_dir():
            _walk(f"{folder.rstrip('/')}/{entry.name}", inside, found, recursive=True)


def same_files(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of paths to one file: the same path twice, or through links or `..`. Hard links are files of their own."""
    alike: dict[_Identity, list[str]] = {}
    for path in paths:
        alike.setdefault(_identity(path), []).append(path)
    repeats = []
    for some in alike.values():
        first: dict[str, str] = {}
        for path in some if len(some) > 1 else ():
            real = os.path.realpath(path)
            if real in first:
                repeats.append((first[real], path))
            first.setdefault(real, path)
    return repeats


def _identity(path: str) -> _Identity:
    found = os.stat(path)
    return found.st_dev, found.st_ino


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
    files = FileList.of(_found(paths, filesystem))
    _check_repeats(files)
    return files


def found_now(files: FileList, *, threads: int, retry: Retrying) -> list[Version | None]:
    """What their folders say now of files that were listed before; None of those that are gone. Lists the folders.

    Raises:
        PermissionError, ConnectionError: a folder that cannot be listed.
    """
    numbers = sorted(set(files.folder.tolist()))
    some = {folder: number for number, folder in enumerate(files.folder.tolist())}

    def listed(number: int) -> dict[str, Version]:
        folder = files.folders[number]
        selector = pafs.FileSelector(folder.path.rstrip("/") or folder.path, allow_not_found=True)
        found = retry.call(lambda: folder.filesystem.get_file_info(selector), files[some[number]])
        return {info.base_name: _version(info) for info in found if info.type == pafs.FileType.File}

    with ThreadPoolExecutor(threads, thread_name_prefix="fsdata-listing") as pool:
        there = dict(zip(numbers, pool.map(listed, numbers), strict=True))
    names = (files.path(number).rpartition("/")[2] for number in range(len(files)))
    return [there[folder].get(name) for folder, name in zip(files.folder.tolist(), names, strict=True)]


def root_of(given: str, filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem, and the folder that all files of a folder or glob are in, with its slash."""
    system, path = resolve(given, filesystem)
    base, rest = _fixed_part(path)
    return system, (base if rest else path).rstrip("/") + "/"


def _found(paths: Sequence[str], filesystem: Any) -> Iterator[tuple[pafs.FileSystem, str, Version]]:
    for given in paths:
        system, path = resolve(given, filesystem)
        local = isinstance(system, pafs.LocalFileSystem)
        for file, version in _expand(system, path, given) if local else _expand_remote(system, path, given):
            _check_text(file)
            yield system, file, (local_version(file) if local else version)


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{path!r}: its name is not UTF-8, and Arrow cannot open it: rename it") from error


def local_version(path: str) -> Version:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _check_repeats(files: FileList) -> None:
    """Refuse two paths to one file. Of remote files only equal paths are known to be one file."""
    inodes = files.versions[:, 2]
    order = np.argsort(inodes, kind="stable")
    same = (inodes[order][1:] == inodes[order][:-1]) & (inodes[order][1:] != 0)
    maybe = {*order[1:][same].tolist(), *order[:-1][same].tolist()}
    twice = same_files([files[number].path for number in sorted(maybe)])
    unknown = np.flatnonzero(inodes == 0).tolist()
    remote = Counter(files[number].path for number in unknown) if unknown else Counter()
    twice += [(path, path) for path, times in remote.items() if times > 1]
    if twice:
        named = "; ".join(one if one == other else f"{one} and {other}" for one, other in twice[:_NAMED])
        more = f"; and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
        raise SchemaError(
            f"named twice in one source, so its rows would be read twice: {named}{more}. Name every file once, and "
            "remove links that lead to files already there"
        )


def resolve(given: str, filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a path or URL, and the path in it."""
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


def _expand(system: pafs.FileSystem, path: str, given: str) -> list[tuple[str, Version]]:
    info = system.get_file_info(path)
    if info.type == pafs.FileType.File:
        return [(info.path, _version(info))]
    if info.type == pafs.FileType.Directory:
        files = [each for each in _below(system, info.path, recursive=True) if each[0].endswith(SUFFIXES)]
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
    below = _below(system, base, recursive=rest.count("/") > 1 or "**" in rest)
    files = [each for each in below if pattern.fullmatch(each[0])]
    if not files:
        raise FileNotFoundError(f"{given}: no file matches")
    return files


def _expand_remote(system: pafs.FileSystem, path: str, given: str) -> list[tuple[str, Version]]:
    """`_expand`, with errors that name the path."""
    try:
        return _expand(system, path, given)
    except OSError as error:
        if type(error) is not OSError:
            raise
        if "ACCESS_DENIED" in str(error):
            raise PermissionError(
                f"{given}: no permission to list it: {error}. Ask for this permission, or name every file"
            ) from error
        raise ConnectionError(f"{given}: cannot be listed: {error}") from error


def _what_it_is(path: str) -> str:
    mode = os.stat(path).st_mode
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def _below(system: pafs.FileSystem, folder: str, *, recursive: bool) -> list[tuple[str, Version]]:
    if isinstance(system, pafs.LocalFileSystem):
        return [(file, UNKNOWN) for file in files_below(folder, recursive=recursive)]
    selector = pafs.FileSelector(folder, recursive=recursive)
    found = (info for info in system.get_file_info(selector) if info.type == pafs.FileType.File)
    skip = len(folder.rstrip("/"))
    shown = [info for info in found if not re.search(r"/[._]", "/" + info.path[skip:].lstrip("/"))]
    return sorted((info.path, _version(info)) for info in shown)


def _version(info: pafs.FileInfo) -> Version:
    return info.size or 0, info.mtime_ns or 0, 0


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
