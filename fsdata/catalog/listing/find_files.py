"""Resolves paths, globs, folders and URLs to a list of files with their partition values.

A file of this machine must not come twice, whichever paths lead to it.
"""

import errno
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from fsdata.catalog.listing.file_list import UNKNOWN, FileList, Version
from fsdata.catalog.retry import Retrying
from fsdata.errors import SchemaError

_LOG = logging.getLogger("fsdata")
_Identity = tuple[int, int]  # device and inode
_FOLDER = "a folder"


class Entry(NamedTuple):
    """An entry of a folder: a file if `what` is empty, otherwise `what` is its description."""

    path: str
    version: Version
    what: str


def entries_below(folder: str, *, recursive: bool) -> list[Entry]:
    """All entries of a folder of this machine, by name, without names that begin with `.` or `_`. Follows links.

    Raises:
        SchemaError: a link to a parent folder, through which every file would be found again and again.
    """
    entries: list[Entry] = []
    _walk(folder.rstrip("/") or "/", {}, entries, recursive=recursive)
    return sorted(entries)


def _walk(folder: str, above: dict[_Identity, str], result: list[Entry], *, recursive: bool) -> None:
    """Add the entries of a folder to `result`. above: its parent folders, by identity."""
    # Only folders above are compared: the same folder may be reached twice side by side (`_check_repeats` reports it).
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
        path, what = f"{folder.rstrip('/')}/{entry.name}", _what(entry)
        result.append(Entry(path, UNKNOWN, what))
        if recursive and what == _FOLDER:
            _walk(path, inside, result, recursive=True)


def _what(entry: "os.DirEntry[str]") -> str:
    """See `Entry.what`. Calls `stat` only for links, if the filesystem lists entries with their types."""
    try:
        if entry.is_file():
            return ""
        return _FOLDER if entry.is_dir() else _what_it_is(entry.path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a link to itself"


def same_files(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of paths to one file: equal paths, or paths through links or `..`. Hard links are separate files."""
    by_identity: dict[_Identity, list[str]] = {}
    for path in paths:
        by_identity.setdefault(_identity(path), []).append(path)
    repeats = []
    for candidates in by_identity.values():
        first: dict[str, str] = {}
        # `realpath` is expensive, and needed only to distinguish hard links from paths to one file.
        for path in candidates if len(candidates) > 1 else ():
            real = os.path.realpath(path)
            if real in first:
                repeats.append((first[real], path))
            first.setdefault(real, path)
    return repeats


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    return status.st_dev, status.st_ino


SUFFIXES = (".parquet", ".parq")
_NATIVE_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_NAMED = 5
_LEFT_OUT_NAMED = 3
_BESIDE_DATA = (".md", ".txt", ".json", ".toml", ".yaml", ".yml")  # expected beside data: no warning about these
_ASK = "Ask for this permission, or name every file"
_FILE_URL = re.compile(r"file:(?://(?:localhost(?=/|$))?(.*)|(/.*))", re.IGNORECASE | re.DOTALL)
_OPTIONS = re.compile(r"\?[a-z_]+=[^?&]*(&[a-z_]+=[^?&]*)*$")


def discover(paths: Sequence[str], filesystem: Any, *, label: str | None = None) -> FileList:
    """The files of `paths`, in order: paths as they are passed, the files of one glob or folder by name.

    label: name of the source in a warning about entries of folders and globs that are not read; None logs nothing.

    Raises:
        FileNotFoundError: a path, glob or folder without a Parquet file.
        PermissionError, ConnectionError: a folder that cannot be listed.
        SchemaError: a file that is found twice, a folder inside itself, an unknown kind of filesystem.
    """
    left_out: list[tuple[str, str]] = []
    files = FileList.from_entries(_found(paths, filesystem, left_out))
    _check_repeats(files)
    if label is not None and left_out:
        text = "%s: %d left out: %s. To read such files, give their paths or a glob"
        _LOG.warning(text, label, len(left_out), _described(left_out))
    return files


def _described(left_out: Sequence[tuple[str, str]]) -> str:
    """A few names with reasons: one for every reason before a second one for the same."""
    seen: Counter[str] = Counter()
    ranked = []
    for name, why in left_out:
        ranked.append((seen[why], name, why))
        seen[why] += 1
    named = [f"{name} ({why})" for _, name, why in sorted(ranked, key=lambda entry: entry[0])[:_LEFT_OUT_NAMED]]
    more = f" and {len(left_out) - len(named)} more" if len(left_out) > len(named) else ""
    return ", ".join(named) + more


def found_now(files: FileList, *, threads: int, retry: Retrying) -> list[Version | None]:
    """The present versions of files that were listed before, None if they are gone. Lists their folders.

    Raises:
        PermissionError, ConnectionError: a folder that cannot be listed.
    """
    # Folders are listed instead of asking for every file: one request for thousands of files.
    numbers = sorted(set(files.folder.tolist()))
    example = {folder: number for number, folder in enumerate(files.folder.tolist())}  # a file of each, for messages

    def listed(number: int) -> dict[str, Version]:
        folder = files.folders[number]
        selector = pafs.FileSelector(folder.path.rstrip("/") or folder.path, allow_not_found=True)
        infos = retry.call(lambda: folder.filesystem.get_file_info(selector), files[example[number]])
        return {info.base_name: _version(info) for info in infos if info.type == pafs.FileType.File}

    with ThreadPoolExecutor(threads, thread_name_prefix="fsdata-listing") as pool:
        versions = dict(zip(numbers, pool.map(listed, numbers), strict=True))
    names = (files.path(number).rpartition("/")[2] for number in range(len(files)))
    return [versions[folder].get(name) for folder, name in zip(files.folder.tolist(), names, strict=True)]


def root_of(location: str, filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem, and the folder (with its slash) that contains all files of the location, a folder or glob."""
    system, path = resolve(location, filesystem)
    base, rest = _fixed_part(path)
    return system, (base if rest else path).rstrip("/") + "/"


def _found(
    paths: Sequence[str], filesystem: Any, left_out: list[tuple[str, str]]
) -> Iterator[tuple[pafs.FileSystem, str, Version]]:
    for location in paths:
        system, path = resolve(location, filesystem)
        local = isinstance(system, pafs.LocalFileSystem)
        for entry in _listed(system, path, location, left_out):
            _check_text(entry.path)
            yield system, entry.path, (local_version(entry.path) if local else entry.version)


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{path!r}: its name is not UTF-8, and Arrow cannot open it: rename it") from error


def local_version(path: str) -> Version:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _check_repeats(files: FileList) -> None:
    """Raise SchemaError for two paths to one file. For remote files only equal paths are compared."""
    # Equal inodes are candidates only: other filesystems may have the same numbers.
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


def resolve(location: str, filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a path or URL, and the path in it.

    Raises:
        SchemaError: neither a path nor a URL, or no filesystem supports the URL.
        FileNotFoundError, PermissionError, ConnectionError: the filesystem cannot be opened.
    """
    if filesystem is not None:
        return _as_arrow(filesystem), location
    file_url = _FILE_URL.fullmatch(location)
    if file_url is not None:
        return pafs.LocalFileSystem(), _path_of_file_url(location, file_url[1] or file_url[2])
    scheme = location.split("://", 1)[0] if "://" in location else ""
    if not scheme:
        return pafs.LocalFileSystem(), str(_with_home(location).absolute())
    if scheme in _NATIVE_SCHEMES:
        path, options = _options(location)
        fixed, rest = _fixed_part(path)  # wildcards such as ? have another meaning in a URL
        try:
            system, path = pafs.FileSystem.from_uri(fixed + options)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"{location}: not a URL: {error}") from error
        return system, path.rstrip("/") + rest
    return _by_fsspec(location)


def _path_of_file_url(location: str, path: str) -> str:
    """The path of a file URL. It is percent-encoded, as in any URL, unless it exists as it is written: Iceberg does not
    encode its URLs."""
    if not path:
        raise SchemaError(f"{location}: names no file. After file:// comes an absolute path: file:///data/a.parquet")
    decoded = unquote(path)
    base, base_of_decoded = _fixed_part(path)[0], _fixed_part(decoded)[0]
    literal = os.path.lexists(path) or (os.path.lexists(base) and not os.path.lexists(base_of_decoded))
    return str(Path(path if literal else decoded).absolute())


def _with_home(location: str) -> Path:
    """The path with a `~` at its beginning replaced by the home folder, as in a shell."""
    if not location.startswith("~"):
        return Path(location)
    try:
        return Path(location).expanduser()
    except RuntimeError as error:
        if os.path.lexists(location):
            return Path(location)
        raise SchemaError(f"{location}: there is no such user, or no home folder. Give the folder itself") from error


def _by_fsspec(location: str) -> tuple[pafs.FileSystem, str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(location)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{location}: {error}") from error
    except PermissionError as error:
        raise PermissionError(f"{location}: {error}") from error
    except (ConnectionError, TimeoutError) as error:
        raise ConnectionError(f"{location}: cannot be reached: {error}") from error
    except Exception as error:  # each filesystem raises errors of its own
        raise SchemaError(
            f"{location}: no filesystem can be made of this URL: {type(error).__name__}: {error}. Give a URL of "
            "fsspec or pyarrow, or make the filesystem and give ParquetSource(filesystem=...)"
        ) from error
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
    match = _OPTIONS.search(url)
    return (url[: match.start()], match[0]) if match else (url, "")


def _fixed_part(path: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the rest."""
    wild = re.search(r"[*?\[]", path)
    if wild is None:
        return path, ""
    cut = path.rfind("/", 0, wild.start())
    return path[: max(cut, 0)], path[max(cut, 0) :]


def _listed(system: pafs.FileSystem, path: str, location: str, left_out: list[tuple[str, str]]) -> list[Entry]:
    """The files of one path. Raises errors that name it; see `discover`."""
    try:
        return _expand(system, path, location, left_out)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{location}: {error}. Give paths without a scheme to filesystem=...") from error
    except PermissionError as error:
        raise PermissionError(f"{location}: no permission to list it: {error}. {_ASK}") from error
    except NotADirectoryError as error:
        raise FileNotFoundError(f"{location}: no file matches: {_fixed_part(path)[0]} is not a folder") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(f"{location}: no such file or folder: the name is too long") from error
        if type(error) is not OSError:
            raise
        # Arrow's cloud filesystems raise plain OSErrors: only their messages have the reason.
        if "ACCESS_DENIED" in str(error):
            raise PermissionError(f"{location}: no permission to list it: {error}. {_ASK}") from error
        raise ConnectionError(f"{location}: cannot be listed: {error}") from error


def _expand(system: pafs.FileSystem, path: str, location: str, left_out: list[tuple[str, str]]) -> list[Entry]:
    info = system.get_file_info(path)
    if info.type == pafs.FileType.File:
        return [Entry(info.path, _version(info), "")]
    if info.type == pafs.FileType.Directory:
        return _files_of_folder(_below(system, info.path, recursive=True), info.path, location, left_out)
    if info.type == pafs.FileType.Unknown:
        raise SchemaError(
            f"{location}: {_what_it_is(path)}, where a file or folder is needed: copy its contents to a file"
        )
    base, rest = _fixed_part(path)
    if not rest:
        raise FileNotFoundError(f"{location}: {_why_missing(system, path, location)}")
    base = base or path[: path.startswith("/")]
    if system.get_file_info(base).type == pafs.FileType.NotFound:
        raise FileNotFoundError(f"{location}: no file matches; there is no folder {base}")
    return _files_of_glob(
        _below(system, base, recursive=rest.count("/") > 1 or "**" in rest),
        _pattern(path, location),
        base,
        location,
        left_out,
    )


def _files_of_folder(below: list[Entry], base: str, location: str, left_out: list[tuple[str, str]]) -> list[Entry]:
    """The files with a suffix of Parquet. Adds the others to `left_out`, except folders and descriptions of data."""
    files = [entry for entry in below if not entry.what and entry.path.endswith(SUFFIXES)]
    suffixes = " or ".join(SUFFIXES)
    rest = [
        entry for entry in below if entry.what not in ("", _FOLDER) or not (entry.what or entry.path.endswith(SUFFIXES))
    ]
    others = [
        (_short(entry.path, base), entry.what or f"its name does not end in {suffixes}")
        for entry in rest
        if not entry.path.endswith(_BESIDE_DATA)
    ]
    if not files:
        why = f", but {len(others)} left out: {_described(others)}" if others else ""
        todo = (
            f". A glob reads files of any name: {location.rstrip('/')}/**"
            if not all(entry.what for entry in rest)
            else ""
        )
        raise FileNotFoundError(f"{location}: no {suffixes} file in this folder or below it{why}{todo}")
    left_out += others
    return files


def _files_of_glob(
    below: list[Entry], pattern: re.Pattern[str], base: str, location: str, left_out: list[tuple[str, str]]
) -> list[Entry]:
    """The files that match. Adds other matching entries to `left_out`, except folders whose files match."""
    matches = [entry for entry in below if pattern.fullmatch(entry.path)]
    files = [entry for entry in matches if not entry.what]
    others = [entry for entry in matches if entry.what]
    if any(entry.what == _FOLDER for entry in others):
        folders_read = {file.path[: match.start()] for file in files for match in re.finditer("/", file.path)}
        others = [entry for entry in others if entry.path not in folders_read]
    named = [(_short(entry.path, base), entry.what) for entry in others]
    if files:
        left_out += named
        return files
    if others and all(entry.what == _FOLDER for entry in others):
        raise FileNotFoundError(
            f"{location}: no file matches, only folders: {_described(named)}. Give the folder itself, or "
            f"{location.rstrip('/')}/**/*.parquet for the files below"
        )
    why = f", but {len(named)} left out: {_described(named)}" if named else ""
    raise FileNotFoundError(f"{location}: no file matches{why}")


def _short(path: str, base: str) -> str:
    return path[len(base) :].lstrip("/")


def _why_missing(system: pafs.FileSystem, path: str, location: str) -> str:
    if isinstance(system, pafs.LocalFileSystem) and os.path.islink(path):
        return f"a link that leads nowhere: to {os.readlink(path)}"
    return "no such file or folder" + (f": {path}" if path != location else "")


def _what_it_is(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a link that leads nowhere"
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def _below(system: pafs.FileSystem, folder: str, *, recursive: bool) -> list[Entry]:
    if isinstance(system, pafs.LocalFileSystem):
        return entries_below(folder, recursive=recursive)
    infos = system.get_file_info(pafs.FileSelector(folder, recursive=recursive))
    skip = len(folder.rstrip("/"))  # hidden names count below the folder only, not on the way to it
    shown = [info for info in infos if not re.search(r"/[._]", "/" + info.path[skip:].lstrip("/"))]
    kinds = {pafs.FileType.File: "", pafs.FileType.Directory: _FOLDER}
    return sorted(
        Entry(info.path.rstrip("/"), _version(info), kinds.get(info.type, "neither a file nor a folder"))
        for info in shown
    )


def _version(info: pafs.FileInfo) -> Version:
    return info.size or 0, info.mtime_ns or 0, 0


def _pattern(glob: str, location: str) -> re.Pattern[str]:
    """A regular expression for a glob in which `*` stays inside a folder and `**` does not."""
    parts = re.findall(r"\*\*/|\*\*|\*|\?|\[[!^]?(?:\][^\]]*|[^\]]+)\]|.", glob, re.DOTALL)
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = ""
    for part in parts:
        if len(part) > 1 and part[0] == "[":
            text += _class(part[1:-1])
        else:
            text += translated.get(part, re.escape(part))
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise SchemaError(f"{location}: not a glob: {error.msg}") from error


def _class(inside: str) -> str:
    """The regular expression for a class of characters, the text between the brackets of a glob."""
    negated = len(inside) > 1 and inside[0] in "!^"
    signs = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
    return f"(?!/)[{'^' if negated else ''}{signs}]"
