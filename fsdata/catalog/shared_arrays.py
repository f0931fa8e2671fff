"""Arrays that the processes of a host share: one process makes them, all map the same file.

The file is in memory (/dev/shm) if it fits there, else in the folder for temporary files (TMPDIR). With `on_disk` it is
in that folder in any case; the system then caches the pages in use, as far as there is memory.

Every process that uses the file holds a shared lock on it. Finding or making it takes an exclusive lock on a second
file. The system releases locks however a process ends, so a file in use is always locked, and the last process removes
it. A file without a lock was left by a killed process. Its contents may have changed since, so it is never used: the
next process that shares anything in these folders removes it.

Other users can write to /dev/shm, and to most folders for temporary files. So all files are in a folder there that only
this user can write to; they are opened and removed relative to a handle of that folder, and only under names that are
made here.
"""

import contextlib
import errno
import fcntl
import json
import logging
import mmap
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from fsdata.errors import DataError
from fsranks.machine.memory_file import reserve

# For the process that makes the arrays. A table of billions of events takes half an hour and more; a process that ends
# in the middle of it is noticed at once, by its lock.
PATIENCE_S = 7200.0
_LOG = logging.getLogger("fsdata")
_ALIGNMENT = 64
_SPARE = 1 << 26  # bytes of /dev/shm that are left to others
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_NAME = re.compile(r"arrays-\w+(\.lock|-[0-9a-f]{16}\.data)")
# Of a complete file: then the length and the checksum of a JSON text, 8 bytes each, and the text, with the type, length
# and offset of every array.
_MARK = b"fsarray3"

Arrays = Mapping[str, np.ndarray]


class SharedArrays:
    """Read-only arrays by name, for as long as this object lives.

    Args:
        name: identifies the arrays: equal names must mean equal contents. Letters and digits.
        make: makes them, in one process of the host while the others wait. Its argument is an empty folder for arrays
            that do not fit in memory, with `on_disk`, else None.
        what: for messages.
        on_disk: store them in the folder for temporary files.

    Raises:
        DataError: the process that makes them does not come to an end.
        PermissionError: others can write to this user's folder among temporary files.
        OSError: there is no room for them.
        What `make` raises.
    """

    def __init__(self, name: str, make: Callable[[Path | None], Arrays], what: str, *, on_disk: bool = False) -> None:
        with _own_folders() as folders, _locked(folders[0], f"arrays-{name}.lock", what):
            _remove_leftovers(folders)
            shared = _in_use(folders, name) or _created(folders, name, make, what, on_disk=on_disk)
        self.arrays = shared.arrays
        self.close = weakref.finalize(self, _release, shared)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder that only this user can write."""

    path: Path
    handle: int

    def open(self, name: str, flags: int = 0) -> FileIO:
        """A file of it, to read and write; a new one is for its owner alone."""
        return FileIO(os.open(name, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600, dir_fd=self.handle), "r+")

    def has(self, name: str, file: FileIO) -> bool:
        """Whether the open file still has that name: it may have been removed, or replaced, since it was opened."""
        try:
            return os.fstat(file.fileno()).st_ino == os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return False

    def remove_unlocked(self, name: str) -> None:
        """Remove a lock or a file of arrays, with its scratch folder, if no process has a lock on it."""
        with contextlib.suppress(OSError), self.open(name) as file:
            if _try_lock(file) and self.has(name, file):
                shutil.rmtree(_scratch_of(name), ignore_errors=True, dir_fd=self.handle)
                os.unlink(name, dir_fd=self.handle)


@dataclass(frozen=True, slots=True)
class _SharedFile:
    """Arrays, and their file, on which this process has a shared lock."""

    arrays: Arrays
    path: Path
    file: FileIO


def _folder_paths() -> list[Path]:
    """The folders of this user, in the order of preference; the last one is among temporary files."""
    memory = Path("/dev/shm")
    parents = [memory] if memory.is_dir() and os.access(memory, os.W_OK) else []
    return [parent / f"freescale-{os.getuid()}" for parent in (*parents, Path(tempfile.gettempdir()))]


@contextlib.contextmanager
def _own_folders() -> Iterator[list[_Folder]]:
    """The folders at these paths, made if missing. Omits one in memory that belongs to another user."""
    *in_memory, on_disk = _folder_paths()
    with contextlib.ExitStack() as opened:
        folders = []
        for path in in_memory:
            try:
                folders.append(opened.enter_context(_own_folder(path)))
            except OSError as error:
                _LOG.warning("%s. Until then nothing is shared in memory", error)
        yield [*folders, opened.enter_context(_own_folder(on_disk))]


@contextlib.contextmanager
def _own_folder(path: Path, *, make: bool = True) -> Iterator[_Folder]:
    """Raises PermissionError: it is a link, or others can write to it."""
    todo = "remove it, or set TMPDIR"
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise PermissionError(f"{path} is a link or a file in place of a folder: {todo}") from error
    try:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{path} belongs to another user or can be written by others: {todo}")
        yield _Folder(path, handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: _Folder, name: str, what: str) -> Iterator[None]:
    """Take an exclusive lock; its file exists as long as the lock."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with folder.open(name, os.O_CREAT) as file:
            if _try_lock(file) and folder.has(name, file):
                with contextlib.suppress(OSError):  # for the messages of waiting processes, if there is room
                    file.truncate(0)
                    file.write(str(os.getpid()).encode())
                try:
                    yield
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder.handle)
                return
            if time.monotonic() > end:
                raise DataError(
                    f"{what}: process {file.read().decode() or '?'} of this host reads it for all and has not ended "
                    f"after {PATIENCE_S:.0f} s"
                )
        time.sleep(0.02)


@contextlib.contextmanager
def _if_there_is_room() -> Iterator[None]:
    """Leave the block without an error if there is none."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise


def _try_lock(file: FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(folders: Sequence[_Folder], name: str) -> _SharedFile | None:
    """The arrays, if other processes use them: files that no process uses are gone, see `_remove_leftovers`."""
    for folder in folders:
        for entry in os.listdir(folder.handle):
            if entry.startswith(f"arrays-{name}-") and _NAME.fullmatch(entry):
                with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as opened:
                    file = opened.enter_context(folder.open(entry))
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if folder.has(entry, file):  # its last user may have left before this lock was taken
                        shared = _SharedFile(_mapped(folder, entry), folder.path / entry, file)
                        opened.pop_all()
                        return shared
    return None


def _created(
    folders: Sequence[_Folder], name: str, make: Callable[[Path | None], Arrays], what: str, *, on_disk: bool
) -> _SharedFile:
    *in_memory, disk = folders
    name = f"arrays-{name}-{secrets.token_hex(8)}.data"
    try:
        if on_disk:
            return _written(disk, name, make, in_memory=False)
        arrays = make(None)
        nbytes = sum(array.nbytes for array in arrays.values())
        for folder in in_memory:
            if shutil.disk_usage(folder.path).free > nbytes + _SPARE:
                with _if_there_is_room():
                    return _written(folder, name, lambda _: arrays, in_memory=True)
        return _written(disk, name, lambda _: arrays, in_memory=False)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        message = f"{what}: {os.strerror(error.errno or 0)}, {disk.path}: set TMPDIR to a folder with more room"
        raise OSError(error.errno, message) from error


def _written(folder: _Folder, name: str, make: Callable[[Path], Arrays], *, in_memory: bool) -> _SharedFile:
    """Write the arrays of `make` to a new file. in_memory: the folder is."""
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(folder.open(name, os.O_CREAT | os.O_EXCL))
        fcntl.flock(file, fcntl.LOCK_SH)
        if not folder.has(name, file):  # removed as a leftover of a killed process, before it was locked
            return _written(folder, name, make, in_memory=in_memory)
        opened.callback(folder.remove_unlocked, name)
        opened.callback(file.close)
        scratch = folder.path / _scratch_of(name)
        scratch.mkdir(mode=0o700)
        _write(make(scratch), file, in_memory=in_memory)
        shutil.rmtree(scratch)
        shared = _SharedFile(_mapped(folder, name), folder.path / name, file)
        opened.pop_all()
    return shared


def _scratch_of(name: str) -> str:
    return name.rpartition(".")[0] + ".scratch"


def _write(arrays: Arrays, file: FileIO, *, in_memory: bool) -> None:
    entries, at = {}, 0
    for key, array in arrays.items():
        entries[key] = (str(array.dtype), len(array), at)
        at += _aligned(array.nbytes)
    text = json.dumps(entries).encode()
    head = _MARK + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little") + text
    first = _aligned(len(head))
    if in_memory:
        reserve(file.fileno(), first + at)  # an error here, rather than the OOM killer later
    with open(file.fileno(), "r+b", closefd=False) as out:
        out.truncate(first + at)
        for key, array in arrays.items():
            out.seek(first + entries[key][2])
            out.write(np.ascontiguousarray(array).data)
        out.flush()
        os.fsync(out.fileno())  # a disk that is full or fails may report it only here
        out.seek(0)
        out.write(head)  # last: a file with a head is complete


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _mapped(folder: _Folder, name: str) -> Arrays:
    """The arrays of a file. Raises ValueError: it is not complete."""
    # Arrays may outlive the `SharedArrays`: their mapping has a handle of its own, so that closing the locked one
    # releases the lock.
    with folder.open(name) as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length, checksum = (int.from_bytes(whole[at : at + 8], "little") for at in (8, 16))
    text = whole[24 : 24 + length]
    if whole[:8] != _MARK or zlib.crc32(text) != checksum:
        raise ValueError("no head")
    first = _aligned(24 + length)
    return {
        key: np.frombuffer(whole, np.dtype(kind), count, first + at if count else 0)
        for key, (kind, count, at) in json.loads(text).items()
    }


def _release(shared: _SharedFile) -> None:
    """Unlock the file, and remove it if no other process uses it."""
    shared.file.close()
    with contextlib.suppress(OSError), _own_folder(shared.path.parent, make=False) as folder:
        folder.remove_unlocked(shared.path.name)


def _remove_leftovers(folders: Sequence[_Folder]) -> None:
    """Remove the files of killed processes."""
    for folder in folders:
        for name in os.listdir(folder.handle):
            if _NAME.fullmatch(name):
                folder.remove_unlocked(name)
