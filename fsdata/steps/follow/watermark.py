"""Which files of a growing folder may be read next, and which were read already; no file is opened here.

Files have an order, by path or by their latest time. What was taken is known by name near the end of that order, and
farther back by the order itself: so what a job has to remember stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fsdata.errors import StateError

RECENT = 256  # files that are known by name
Key = tuple[int, str]
"""The place of a file in the order: its latest time (0 by path), and its name."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that was found.

    Attributes:
        modified: its time of modification, ns.
        whole: it has a footer; None: nobody has looked; False: it had none when somebody looked.
        time: its latest time, ns or the unit of an integer column; by path 0.
        matched: its rows wait for no late side table.
    """

    name: str
    modified: int
    whole: bool | None = None
    time: int = 0
    matched: bool = True

    @property
    def key(self) -> Key:
        return self.time, self.name


@dataclass(slots=True)
class Taken:
    """What was taken.

    Attributes:
        floor: everything up to here was taken, if it was there when `listed` was the latest time of modification.
        recent: the files after it that were taken.
    """

    floor: Key = (-(2**63), "")
    recent: set[Key] = field(default_factory=set)
    listed: int = 0

    def add(self, files: Iterable[Arrived]) -> None:
        for file in files:
            self.listed = max(self.listed, file.modified)
            if file.key > self.floor:
                self.recent.add(file.key)
        for key in sorted(self.recent)[: max(len(self.recent) - RECENT, 0)]:
            self.recent.remove(key)
            self.floor = key

    @property
    def upto(self) -> Key:
        """The last file in order that was taken."""
        return max(self.recent, default=self.floor)

    def split(self, files: Sequence[Arrived]) -> tuple[list[Arrived], list[Arrived]]:
        """(files that were taken, others), for a job that begins with this.

        Raises:
            StateError: a file so far back that it may have been read or not.
        """
        names = {name for _, name in self.recent}
        taken: list[Arrived] = []
        others: list[Arrived] = []
        unclear: list[Arrived] = []
        for file in files:
            if file.name in names:
                taken.append(file)
            elif file.whole is False or file.key > self.floor:
                others.append(file)
            else:
                (taken if file.modified <= self.listed else unclear).append(file)
        if unclear:
            named = ", ".join(file.name for file in unclear[:5])
            raise StateError(
                f"{named}{' and others' if len(unclear) > 5 else ''}: came or changed after the state was saved, and "
                f"stand before {self.floor[1]}, up to where all files were read: their rows may have been read or not. "
                "Give new files names (or times) that ascend"
            )
        return taken, others

    def state(self) -> dict[str, Any]:
        return {"floor": list(self.floor), "recent": sorted(map(list, self.recent)), "listed": self.listed}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Taken":
        """Raises KeyError, TypeError or ValueError if it is not one."""
        (time, name), listed = state["floor"], int(state["listed"])
        return cls((int(time), str(name)), {(int(time), str(name)) for time, name in state["recent"]}, listed)


def next_to_look_at(files: Sequence[Arrived], taken: Taken, *, by: Literal["path", "time"], before: int) -> list[str]:
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
