"""Arrays that all processes of a host share: one of them makes them, all map the same file.

The file lies in memory (/dev/shm) if it fits there, else in the folder for temporary files. What is meant for the disk
lies there in any case; the system then keeps in memory what is used, as far as there is room. A process that uses it
holds a shared lock on it, and the one that makes it an exclusive lock on a second file, so that the system knows who is
there: whatever ends a process gives its locks back. The last one to leave removes the file. What killed processes left
is removed by the next process that shares anything.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fsdata.errors import DataError

PATIENCE_S = 1800.0  # for the process that makes the arrays
_ALIGNMENT = 64
_TRIES_TO_LEAVE = 10  # others may be leaving, or looking for what was left
_SPARE = 1 << 26  # bytes of /dev/shm that are left to others

Arrays = Mapping[str, np.ndarray]


class SharedArrays:
    """Read-only arrays by name, for as long as this object lives.

    Args:
        name: what the arrays are; the same name must mean the same contents. Letters and digits.
        make: makes them, in one process of the host while the others wait; called with None, or with a folder for what
            does not fit in memory.
        what: for messages.
        on_disk: keep them there.

    Raises:
        DataError: the process that makes them does not come to an end.
        OSError: there is no room for them.
        What `make` raises.
    """

    def __init__(self, name: str, make: Callable[[Path | None], Arrays], what: str, *, on_disk: bool = False) -> None:
        folder = _folders()[0]
        with _locked(folder / f"{name}.lock", what):
            _sweep(folder)
            path = next((each / f"{name}.data" for each in _folders() if (each / f"{name}.data").exists()), None)
            if path is None:
                path = _written_on_disk(name, make) if on_disk else _write(name, make(None), _folders())
            self._file = open(path, "rb")  # noqa: SIM115 (closed with this object)
            fcntl.flock(self._file, fcntl.LOCK_SH)
        self.arrays: Arrays = _mapped(path, self._file)
        self.close = weakref.finalize(self, _leave, self._file, path, folder / f"{name}.lock")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def _folders() -> list[Path]:
    """Where the file may lie, the best first; the locks lie in the first."""
    memory = Path("/dev/shm")
    places = [memory] if memory.is_dir() and os.access(memory, os.W_OK) else []
    return [_own_folder(place) for place in (*places, Path(tempfile.gettempdir()))]


def _own_folder(place: Path) -> Path:
    """A folder that only this user can write."""
    folder = place / f"freescale-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to another user or can be written by others: remove it, or set TMPDIR")
    return folder


@contextlib.contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold the exclusive lock of a file."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with open(path, "a+") as file:
            if _try_lock(file) and _same_file(file, path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                yield
                return
            if time.monotonic() > end:
                file.seek(0)
                raise DataError(
                    f"{what}: process {file.read() or '?'} of this host reads it for all and has not ended after "
                    f"{PATIENCE_S:.0f} s"
                )
        time.sleep(0.02)


def _try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same_file(file: IO[Any], path: Path) -> bool:
    """Nobody has removed it in the meantime."""
    try:
        return os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _written_on_disk(name: str, make: Callable[[Path | None], Arrays]) -> Path:
    folder = _folders()[-1]
    scratch = folder / f"{name}.scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed while it made the same
    scratch.mkdir(mode=0o700)
    try:
        return _write(name, make(scratch), [folder])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(name: str, arrays: Arrays, folders: Sequence[Path]) -> Path:
    """folders: where the file may lie, the best first."""
    head, at = {}, 0
    for key, array in arrays.items():
        head[key] = (str(array.dtype), len(array), at)
        at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    roomy = (folder for folder in folders if shutil.disk_usage(folder).free > at + _SPARE)
    path = next(roomy, folders[-1]) / f"{name}.data"
    text = json.dumps(head).encode()
    text = text.ljust(-(-(len(text) + 8) // _ALIGNMENT) * _ALIGNMENT - 8)
    half = path.with_suffix(".half")
    try:
        with open(half, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for key, array in arrays.items():
                file.seek(8 + len(text) + head[key][2])
                file.write(np.ascontiguousarray(array).data)
            file.truncate(8 + len(text) + at)
        half.rename(path)
    finally:
        half.unlink(missing_ok=True)
    return path


def _mapped(path: Path, file: IO[bytes]) -> Arrays:
    size = int.from_bytes(file.read(8), "little")
    head = json.loads(file.read(size))
    if not any(count for _, count, _ in head.values()):
        return {key: np.empty(0, kind) for key, (kind, _, _) in head.items()}
    whole = np.memmap(path, np.uint8, "r")[8 + size :]
    return {
        key: np.frombuffer(whole, np.dtype(kind), count, at) if count else np.empty(0, kind)
        for key, (kind, count, at) in head.items()
    }


def _leave(file: IO[bytes], path: Path, lock: Path) -> None:
    """Give the file back, and remove it if nobody else uses it or comes to use it."""
    with file, contextlib.suppress(OSError), open(lock, "a+") as held:
        for _ in range(_TRIES_TO_LEAVE):
            if _try_lock(held):
                break
            time.sleep(0.02)
        else:
            return
        file.close()
        if _same_file(held, lock) and _remove_unused(path):
            lock.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left; of each name that nobody holds."""
    for lock in folder.glob("*.lock"):
        with contextlib.suppress(OSError), open(lock, "a+") as held:
            if not _try_lock(held) or not _same_file(held, lock):
                continue
            paths = [each / lock.with_suffix(".data").name for each in _folders()]
            gone = [_remove_unused(path) for path in paths]
            if all(gone):
                for path in paths:
                    path.with_suffix(".half").unlink(missing_ok=True)
                    shutil.rmtree(path.with_suffix(".scratch"), ignore_errors=True)
                lock.unlink(missing_ok=True)


def _remove_unused(path: Path) -> bool:
    """Whether it is gone."""
    try:
        with open(path, "rb") as file:
            if not _try_lock(file):
                return False
            path.unlink()
    except FileNotFoundError:
        pass
    return True
