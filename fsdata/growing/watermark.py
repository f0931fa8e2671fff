"""The rules by which files of a growing folder are read next (pure planning; no file is opened here).

Files are ordered by path, or by their latest time. A file that was taken for an extension is remembered by its name.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from fsdata.catalog.listing.file_list import FileList

EARLIEST = -(2**63)
_DIGEST_BYTES = 8  # a state has one digest per file, and must stay small
Key = tuple[int, str]
"""The position of a file in the order: its latest time (0 by path), and its name."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that was found in the folder.

    Attributes:
        modified: time of the last modification, ns, see `modified_at`.
        stamp: size and time of modification in the listing of the store: they differ after the file was changed.
        whole: it has a footer; False: it had none when it was last opened; None: it was not opened yet.
        time: its latest time, ns or the unit of an integer column; by path 0, without rows `EARLIEST`.
        matched: its rows need not wait for a late side table.
        empty: it has no rows, so it is never reported as late.
    """

    name: str
    modified: int
    whole: bool | None = None
    time: int = 0
    matched: bool = True
    stamp: tuple[int, int] = (0, 0)
    empty: bool = False

    @property
    def key(self) -> Key:
        return self.time, self.name


@dataclass(slots=True)
class Taken:
    """The files that were taken for an extension.

    All names are stored, not only the last position: a late file with a smaller position has not been taken.

    Attributes:
        names: digests of their names.
        upto: the last position that was taken.
    """

    names: set[bytes] = field(default_factory=set)
    upto: Key = (EARLIEST, "")

    def __contains__(self, name: str) -> bool:
        return _digest(name) in self.names

    def add(self, names: Iterable[str], upto: Key) -> None:
        """upto: the position of the last of them."""
        self.names |= set(map(_digest, names))
        self.upto = max(self.upto, upto)

    def absent(self, there: Iterable[str]) -> set[bytes]:
        """The digests of taken files that are not `there`."""
        return self.names - set(map(_digest, there))

    def state(self) -> dict[str, Any]:
        return {"names": b64encode(b"".join(sorted(self.names))).decode(), "upto": list(self.upto)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Taken":
        digests, (time, name) = b64decode(state["names"], validate=True), state["upto"]
        starts = range(0, len(digests), _DIGEST_BYTES)
        return cls({digests[start : start + _DIGEST_BYTES] for start in starts}, (int(time), str(name)))


def stamps_of(files: FileList) -> dict[str, tuple[int, int]]:
    """`Arrived.stamp` of each file of a listing, by name."""
    return {name: (size, time) for name, (size, time, _) in zip(files.names(), files.versions.tolist(), strict=True)}


def modified_at(stamp: tuple[int, int], found: int) -> int:
    """`Arrived.modified` of a file that was first found with this stamp at the time `found`, ns.

    Never later than `found`: the clock of a store may be ahead. Some stores state no time (0).
    """
    return min(stamp[1] or found, found)


def _digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()


def files_to_open(files: Sequence[Arrived], *, by: Literal["path", "time"], before: int) -> list[str]:
    """Names of the files whose footers are to be read now. files: all that were not taken. before: see
    `files_to_read`."""
    settled = [file for file in files if file.modified <= before] if by == "path" else files
    return [file.name for file in settled if not file.whole]


def files_to_read(
    files: Sequence[Arrived], taken: Taken, *, by: Literal["path", "time"], before: int, latest: int | None
) -> list[Arrived]:
    """The files that may be read now, in order.

    A file that may not be read yet blocks the files behind it, except by time a file that is not whole, as its position
    is unknown. Late files block no others.

    Args:
        files: all that were not taken.
        before: by path, ns: a file modified later may still change.
        latest: by time: files with later times may still be preceded by others. None: there is no such limit.
    """
    readable = []
    for file in sorted(files, key=lambda file: file.key):
        if by == "time" and not file.whole:
            continue
        settled = file.modified <= before if by == "path" else latest is None or file.time <= latest
        if file.whole and file.matched and settled:
            readable.append(file)
        elif file.key > taken.upto:
            break  # files behind it would be read before it, and make it late
    return readable
