"""Which files of a growing folder may be read next, and which were read already; no file is opened here.

Files have an order, by path or by their latest time. What was taken is known by its name.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from fsdata.catalog.listing.file_list import FileList

EARLIEST = -(2**63)
_BYTES = 8  # of a name
Key = tuple[int, str]
"""The place of a file in the order: its latest time (0 by path), and its name."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that was found.

    Attributes:
        modified: when it was changed last, ns; not later than it was found, and then where its store does not say it.
        stamp: its size and time of modification as the store says them: others say that it was changed.
        whole: it has a footer; None: nobody has looked; False: it had none when somebody looked.
        time: its latest time, ns or the unit of an integer column; by path 0, without rows `EARLIEST`.
        matched: its rows wait for no late side table.
        empty: it has no rows, so it comes late nowhere.
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
    """What was taken: whether a file was is never guessed.

    Attributes:
        names: a digest of the name of each, 8 bytes.
        upto: the last one in order.
    """

    names: set[bytes] = field(default_factory=set)
    upto: Key = (EARLIEST, "")

    def __contains__(self, name: str) -> bool:
        return _digest(name) in self.names

    def add(self, names: Iterable[str], upto: Key) -> None:
        """upto: the last of them in order."""
        self.names |= set(map(_digest, names))
        self.upto = max(self.upto, upto)

    def absent(self, there: Iterable[str]) -> set[bytes]:
        """The digests of those that are not there."""
        return self.names - set(map(_digest, there))

    def state(self) -> dict[str, Any]:
        return {"names": b64encode(b"".join(sorted(self.names))).decode(), "upto": list(self.upto)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Taken":
        raw, (time, name) = b64decode(state["names"], validate=True), state["upto"]
        return cls({raw[at : at + _BYTES] for at in range(0, len(raw), _BYTES)}, (int(time), str(name)))


def stamps_of(files: FileList) -> dict[str, tuple[int, int]]:
    """`Arrived.stamp` of each file of a listing, by name."""
    return {name: (size, time) for name, (size, time, _) in zip(files.names(), files.versions.tolist(), strict=True)}


def modified_at(stamp: tuple[int, int], found: int) -> int:
    """`Arrived.modified` of a file that was found with this stamp at this time, ns.

    A clock that is ahead gives times to come, and some stores give none (0).
    """
    return min(stamp[1] or found, found)


def _digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_BYTES).digest()


def next_to_look_at(files: Sequence[Arrived], *, by: Literal["path", "time"], before: int) -> list[str]:
    """Names of the files to be opened now. `files`: those that were not taken; `before`: changed no later, ns."""
    settled = [file for file in files if file.modified <= before] if by == "path" else files
    return [file.name for file in settled if not file.whole]


def visible(
    files: Sequence[Arrived], taken: Taken, *, by: Literal["path", "time"], before: int, latest: int | None
) -> list[Arrived]:
    """The files that may be read now, in order.

    By path: those changed no later than `before` (ns), as far as all files before them are whole. By time: whole files
    whose times are not later than `latest`; None: all whole files. Files that wait for matches let no others pass. Late
    ones wait for nobody.
    """
    found = []
    for file in sorted(files, key=lambda file: file.key):
        if by == "time" and not file.whole:
            continue
        in_time = file.modified <= before if by == "path" else latest is None or file.time <= latest
        if file.whole and file.matched and in_time:
            found.append(file)
        elif file.key > taken.upto:
            break
    return found
