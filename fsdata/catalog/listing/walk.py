"""Files below a folder of this machine, each file once, and which of many paths lead to the same file."""

import os
from collections.abc import Sequence

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
