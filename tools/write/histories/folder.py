"""Puts a new folder into the place of an old one in one step, and gives the work a place beside it.

All work is done in the hidden folder `.NAME.work` beside the folder NAME: `new` grows into the new folder, `parts`
has temporary files, and `old` is where the old folder waits until the new one is in place. An end at any point
leaves the old folder whole, under its name or, between two renames, in `old`; the next run puts it back. A lock on
the working folder keeps out a second run. The system takes the lock away when its process ends.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from freescale_tools.console.errors import CommandFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Empty folders to work in. `new` takes the place of the target in the end, `parts` is deleted."""

    new: Path
    parts: Path


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Workplace]:
    """Lend a workplace; when the block ends without an error, `new` becomes `target`.

    The target may be missing, or be a folder, which is replaced with all that is in it.

    Raises CommandFailed if another run works on the same target, or if it cannot be told which of two folders an
    interrupted run has left is the right one.
    """
    target = target.resolve()
    work = target.parent / f".{target.name}.work"
    with _locked(work, target):
        _repair(work, target)
        place = Workplace(new=work / "new", parts=work / "parts")
        try:
            for folder in (place.new, place.parts):
                folder.mkdir()
            yield place
            _swap(place.new, target, work / "old")
        finally:
            if target.exists() or not (work / "old").exists():
                shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(work: Path, target: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(work)):
                raise BlockingIOError("the run that made the folder has just removed it")
        except (BlockingIOError, FileNotFoundError) as error:
            raise CommandFailed(f"another run is writing {target}: wait for its end, then run this again") from error
        yield
    finally:
        os.close(lock)


def _repair(work: Path, target: Path) -> None:
    """Clear what an interrupted run has left, after the old folder is in its place again."""
    old, new = work / "old", work / "new"
    if old.exists():
        if not target.exists():
            old.rename(target)
        elif new.exists():
            raise CommandFailed(
                f"an interrupted run has left the table of before in {old}, and there is another folder {target}: "
                f"remove {target} to get the table back, or remove {work} to keep {target}"
            )
    for entry in (new, work / "parts", old):
        if entry.exists():
            shutil.rmtree(entry)


def _swap(new: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
