"""Many files, held in few bytes: folders once, names in one text. A `FileRef` is made when somebody asks for one."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload
from urllib.parse import unquote

import numpy as np
import pyarrow.fs as pafs

NO_PARTITION_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PARTITION = re.compile(r"([^/=]+)=([^/]*)")

Partitions = dict[str, str | None]
"""Texts of `key=value` folders, None for the null partition."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of a source.

    `name` is relative to the folder that all files of the source share.
    """

    path: str
    name: str
    filesystem: pafs.FileSystem = field(repr=False)
    local: bool = False
    partitions: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with files of a source. `path` ends with its slash, or is empty."""

    path: str
    filesystem: pafs.FileSystem = field(repr=False)
    partitions: Partitions = field(default_factory=dict)


class FileList(Sequence[FileRef]):
    """N files in order.

    Attributes:
        folders: each once.
        folder: int32 [N], the folder of each file.
    """

    def __init__(self, folders: tuple[Folder, ...], folder: np.ndarray, text: bytes, ends: np.ndarray, base: str):
        """text: all names inside their folders; ends: int64 [N], where each ends; base: the folder of all files."""
        self.folders = folders
        self.folder = folder
        self._text = text
        self._ends = ends
        self._base = base

    @classmethod
    def of(cls, found: Iterable[tuple[pafs.FileSystem, str]], base: str | None = None) -> "FileList":
        """found: filesystem and path of each file; base: the folder of all files, None to find it."""
        numbers: dict[tuple[int, str], int] = {}
        folders: list[Folder] = []
        folder, sizes = np.empty(1024, np.int32), np.empty(1024, np.int64)
        text = bytearray()
        count = 0
        for system, path in found:
            cut = path.rfind("/") + 1
            key = id(system), path[:cut]
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(folders)
                folders.append(Folder(path[:cut], system, _partitions(path[:cut])))
            if count == len(folder):
                folder, sizes = np.resize(folder, 2 * count), np.resize(sizes, 2 * count)
            name = path[cut:].encode("utf-8", "surrogateescape")
            folder[count], sizes[count] = number, len(name)
            text += name
            count += 1
        base = _common_folder([each.path for each in folders]) if base is None else base
        return cls(tuple(folders), folder[:count].copy(), bytes(text), np.cumsum(sizes[:count]), base)

    def __len__(self) -> int:
        return len(self.folder)

    @overload
    def __getitem__(self, index: int) -> FileRef: ...

    @overload
    def __getitem__(self, index: slice) -> list[FileRef]: ...

    def __getitem__(self, index: int | slice) -> FileRef | list[FileRef]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        number = index % len(self)
        folder, path = self.folders[self.folder[number]], self._path(number)
        local = isinstance(folder.filesystem, pafs.LocalFileSystem)
        return FileRef(path, path[len(self._base) :], folder.filesystem, local, folder.partitions)

    def name(self, number: int) -> str:
        """See `FileRef.name`."""
        return self._path(number)[len(self._base) :]

    def names(self) -> Iterator[str]:
        return map(self.name, range(len(self)))

    def without(self, some: Sequence[int]) -> "FileList":
        """All files but `some`, under the same names."""
        if not some:
            return self
        kept = np.delete(np.arange(len(self)), some)
        names = [self._raw(number) for number in kept.tolist()]
        ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        return FileList(self.folders, self.folder[kept], b"".join(names), ends, self._base)

    def _raw(self, number: int) -> bytes:
        return self._text[self._ends[number - 1] if number else 0 : self._ends[number]]

    def _path(self, number: int) -> str:
        return self.folders[self.folder[number]].path + self._raw(number).decode("utf-8", "surrogateescape")


def _common_folder(folders: Sequence[str]) -> str:
    """The longest folder that all begin with; folders end with a slash."""
    parts = [folder.split("/")[:-1] for folder in folders]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared) + "/" if shared else ""


def _partitions(folder: str) -> Partitions:
    values: Partitions = {}
    for part in folder.split("/"):
        match = _PARTITION.fullmatch(part)
        if match:
            text = unquote(match[2])
            values[unquote(match[1])] = None if text == NO_PARTITION_VALUE else text
    return values
