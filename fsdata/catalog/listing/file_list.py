"""A compact list of many files: each folder once, all names in one text. Indexing creates a `FileRef`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

NO_PARTITION_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SAME_EVERYWHERE = ("local", "s3", "gcs", "abfs", "hdfs")  # types of filesystems whose paths identify a file
_PARTITION = re.compile(r"([^/=]+)=([^/]*)")

Partitions = dict[str, str | pa.Scalar | None]
"""Texts of `key=value` folders, None for the null partition; typed values for the files of a table."""


Version = tuple[int, int, int]
"""Bytes, time of modification in ns, inode; 0 where unknown."""

UNKNOWN: Version = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of a source.

    `name` is relative to the folder that all files of the source share; `modified` is the time of modification in ns
    when it was listed, 0 if unknown.
    """

    path: str
    name: str
    filesystem: pafs.FileSystem = field(repr=False)
    local: bool = False
    partitions: Partitions = field(default_factory=dict)
    modified: int = field(default=0, compare=False)

    @classmethod
    def from_path(cls, filesystem: pafs.FileSystem, path: str) -> "FileRef":
        """A file that is not one of a source, such as a catalog."""
        return cls(path, path, filesystem, isinstance(filesystem, pafs.LocalFileSystem))


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
        base: the folder of all files, with its slash, or empty.
        versions: int64 [N, 3], bytes, time of modification in ns, and inode; 0 if the listing did not have it.
    """

    def __init__(
        self,
        folders: tuple[Folder, ...],
        folder: np.ndarray,
        text: bytes,
        ends: np.ndarray,
        versions: np.ndarray,
        base: str,
    ):
        """text: the names of all files in their folders, one after another; ends: int64 [N], the end of each in it."""
        self.folders = folders
        self.folder = folder
        self.versions = versions
        self._text = text
        self._ends = ends
        self.base = base

    @classmethod
    def from_entries(
        cls,
        entries: Iterable[tuple[pafs.FileSystem, str, Version]],
        base: str | None = None,
        partitions: Sequence[Partitions] | None = None,
    ) -> "FileList":
        """entries: filesystem, path and version of each file; base: the folder of all files, None to find it;
        partitions: of each file, None to take them from its path."""
        # An iterator and growing arrays: a million tuples in a list would take far more memory.
        numbers: dict[tuple, int] = {}  # of folders; by the identity of the filesystem, as comparing two is slow
        folders: list[Folder] = []
        folder, sizes = np.empty(1024, np.int32), np.empty(1024, np.int64)
        versions = np.empty((1024, 3), np.int64)
        text = bytearray()
        count = 0
        for system, path, version in entries:
            cut = path.rfind("/") + 1
            values = None if partitions is None else partitions[count]
            key = (id(system), path[:cut], *(() if values is None else values.items()))
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(folders)
                folders.append(folder_of(system, path[:cut]) if values is None else Folder(path[:cut], system, values))
            if count == len(folder):
                folder, sizes = np.resize(folder, 2 * count), np.resize(sizes, 2 * count)
                versions = np.resize(versions, (2 * count, 3))
            name = path[cut:].encode()
            folder[count], sizes[count], versions[count] = number, len(name), version
            text += name
            count += 1
        base = _common_folder([item.path for item in folders]) if base is None else base
        return cls(
            tuple(folders), folder[:count].copy(), bytes(text), np.cumsum(sizes[:count]), versions[:count].copy(), base
        )

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> FileRef:  # type: ignore[override]  # no slices
        number = range(len(self))[index]
        folder, path = self.folders[self.folder[number]], self.path(number)
        local = isinstance(folder.filesystem, pafs.LocalFileSystem)
        modified = int(self.versions[number, 1])
        return FileRef(path, path[len(self.base) :], folder.filesystem, local, folder.partitions, modified)

    def path(self, number: int) -> str:
        """See `FileRef.path`."""
        return self.folders[self.folder[number]].path + self._raw(number).decode()

    def name(self, number: int) -> str:
        """See `FileRef.name`."""
        return self.path(number)[len(self.base) :]

    def names(self) -> Iterator[str]:
        return map(self.name, range(len(self)))

    def share(self, numbers: range) -> "FileList":
        """Consecutive files, under the same names."""
        begin, end = (self._ends[at - 1] if at else 0 for at in (numbers.start, numbers.stop))
        chosen = slice(numbers.start, numbers.stop)
        return FileList(
            self.folders,
            self.folder[chosen],
            self._text[begin:end],
            self._ends[chosen] - begin,
            self.versions[chosen],
            self.base,
        )

    def below(self, base: str) -> "FileList":
        """The same files, under names relative to `base`, a folder that has all of them."""
        return FileList(self.folders, self.folder, self._text, self._ends, self.versions, base)

    def plus(self, others: "FileList") -> "FileList":
        """These files, then the others, under names relative to the base of these."""
        number = {(id(folder.filesystem), folder.path): n for n, folder in enumerate(self.folders)}
        new = [folder for folder in others.folders if (id(folder.filesystem), folder.path) not in number]
        number |= {(id(folder.filesystem), folder.path): len(self.folders) + n for n, folder in enumerate(new)}
        of_others = np.array([number[id(folder.filesystem), folder.path] for folder in others.folders], np.int32)
        end = self._ends[-1] if len(self) else 0
        return FileList(
            (*self.folders, *new),
            np.concatenate([self.folder, of_others[others.folder]]),
            self._text + others._text,
            np.concatenate([self._ends, others._ends + end]),
            np.concatenate([self.versions, others.versions]),
            self.base,
        )

    def without(self, numbers: Sequence[int]) -> "FileList":
        """All files except `numbers`, under the same names."""
        if not numbers:
            return self
        kept = np.delete(np.arange(len(self)), numbers)
        names = [self._raw(number) for number in kept.tolist()]
        ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        return FileList(self.folders, self.folder[kept], b"".join(names), ends, self.versions[kept], self.base)

    @property
    def identity(self) -> str:
        """A hash of the paths, filesystems and versions; "" if other files could have the same ones."""
        # Without a time of modification a file that was overwritten by one of the same size would not be noticed.
        everywhere = all(folder.filesystem.type_name in _SAME_EVERYWHERE for folder in self.folders)
        if not len(self) or not everywhere or not (self.versions[:, 1] > 0).all():
            return ""
        result = blake2b(digest_size=16)
        for folder in self.folders:
            result.update(f"{folder.filesystem.type_name} {folder.path}".encode() + b"\0")
        # With the ends of names: equal texts may be divided into other names.
        for array in (self.folder, self._ends, self.versions):
            result.update(np.ascontiguousarray(array).data)
        result.update(self._text)
        return result.hexdigest()

    def _raw(self, number: int) -> bytes:
        return self._text[self._ends[number - 1] if number else 0 : self._ends[number]]


def folder_of(filesystem: pafs.FileSystem, path: str) -> Folder:
    """path: with its slash at the end."""
    return Folder(path, filesystem, _partitions(path))


def _common_folder(folders: Sequence[str]) -> str:
    """The longest folder that is a prefix of all; folders end with a slash."""
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
