"""Arrays that all processes of a host share: one of them makes them, all map the same file.

The file is stored in memory (/dev/shm) if it fits, else in the folder for temporary files. Arrays may also be requested
on disk; the system's page cache then keeps the used parts in memory, as far as there is room.

A process that uses the file has a shared lock on it; a process that looks for it or makes it has an exclusive lock on a
second file. The system releases the locks of a process however it ends, so locks show which files are in use. The last
user removes the file. A file without a lock was left by a process that was killed; it may have been changed since, so
it is not used, and the next process that shares any arrays removes it.

Arrays can also stay in a folder that the user names, after their last use. They are made there under a name as above,
and renamed when they are complete. The first user compares their checksums.

Other users can write to /dev/shm and to most folders for temporary files. All files are therefore in a folder of this
user there; they are opened and removed through a handle of that folder, and only under names that are generated here.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from io import FileIO
from pathlib import Path

import numpy as np

from fsdata.errors import DataError
from fsranks.machine.cores import usable_cores
from fsranks.machine.memory_file import reserve

PATIENCE_S = 1800.0  # for the process that makes the arrays
_LOG = logging.getLogger("fsdata")
_ALIGNMENT = 64
_SPARE = 1 << 26  # bytes of /dev/shm that stay free for other programs
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_NAME = re.compile(r"arrays-\w+(\.lock|-[0-9a-f]{16}\.data)")
_LINK = "elsewhere-"  # prefix of links in memory, to folders for temporary files that have such files
_MARK = b"fsarray2"  # then length and checksum of a text, 8 bytes each, and the text: types and offsets of the arrays

_CHECKED = 1 << 26  # bytes per checksum: a thread computes each
_TEMPORARY = "remove it, or set TMPDIR"
_ANOTHER = "give AsOf(kept_in=...) a folder that belongs to this user, and that only this user can write to"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class KeptIn:
    """Arrays that stay in a folder. of: identifies their source, whatever its files contain now: new arrays replace
    older ones of the same source."""

    folder: Path
    of: str

    def with_more(self, of: str) -> "KeptIn":
        return replace(self, of=f"{self.of} {of}")


class SharedArrays:
    """Read-only arrays by name, for the lifetime of this object.

    Args:
        name: identifies the arrays; equal names must mean equal contents. Letters and digits.
        make: makes them, in one process of the host while the others wait; called with None, or with a folder for
            data that does not fit in memory.
        what: description for messages.
        on_disk: store them on disk. kept: in this folder, also after their last use.

    Raises:
        DataError: the process that makes them does not end.
        PermissionError: the folder for them belongs to another user or can be written by others.
        OSError: there is no room for them, or `kept` cannot be written.
        All errors of `make`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Path | None], Arrays],
        what: str,
        *,
        on_disk: bool = False,
        kept: KeptIn | None = None,
    ) -> None:
        if kept is not None:
            held = _kept_or_made(kept, name, make, what)
        else:
            with _own_folders() as folders, _locked(folders[0], f"arrays-{name}.lock", what):
                _sweep(folders)
                held = _found(folders, name) or _made(folders, name, make, what, on_disk=on_disk)
        self.arrays = held.arrays
        self.close = weakref.finalize(self, _leave, held, remove=kept is None)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder that only this user can write to."""

    path: Path
    handle: int

    def open(self, name: str, flags: int = 0) -> FileIO:
        """A file of the folder, to read and write; a new one is private to its owner."""
        # O_NOFOLLOW and dir_fd: no link can lead outside the folder, even if the path is replaced meanwhile.
        return FileIO(os.open(name, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600, dir_fd=self.handle), "r+")

    def has(self, name: str, file: FileIO) -> bool:
        """Whether the open file still has that name, so that no process has removed or replaced it."""
        try:
            return os.fstat(file.fileno()).st_ino == os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return False

    def remove_unheld(self, name: str) -> None:
        """Remove a lock or a file of arrays, with its scratch folder, unless a process has a lock on it."""
        with contextlib.suppress(OSError), self.open(name) as file:
            # `has` after the lock: another process may have removed the file between opening and locking it.
            if _try_lock(file) and self.has(name, file):
                shutil.rmtree(_scratch_of(name), ignore_errors=True, dir_fd=self.handle)
                os.unlink(name, dir_fd=self.handle)


@dataclass(frozen=True, slots=True)
class _Held:
    """Arrays, and their file, on which this process has a shared lock."""

    arrays: Arrays
    path: Path
    file: FileIO


def _user_folders() -> list[Path]:
    """The paths of this user's folders: in memory, if possible, then among temporary files."""
    memory = Path("/dev/shm")
    parents = [memory] if memory.is_dir() and os.access(memory, os.W_OK) else []
    return [parent / f"freescale-{os.getuid()}" for parent in (*parents, Path(tempfile.gettempdir()))]


@contextlib.contextmanager
def _own_folders() -> Iterator[list[_Folder]]:
    """Creates and opens this user's folders. A folder in memory that belongs to another user is not used."""
    *in_memory, on_disk = _user_folders()
    with contextlib.ExitStack() as opened:
        folders = []
        for path in in_memory:
            try:
                folders.append(opened.enter_context(_own_folder(path)))
            except OSError as error:
                _LOG.warning("%s. Until then nothing is shared in memory", error)
        yield [*folders, opened.enter_context(_own_folder(on_disk))]


@contextlib.contextmanager
def _own_folder(path: Path, *, make: bool = True, todo: str = _TEMPORARY) -> Iterator[_Folder]:
    """Raises PermissionError: it is a link, or others can write to it."""
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise PermissionError(f"{path} is a link or a file in place of a folder: {todo}") from error
    try:
        found = os.fstat(handle)
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path} belongs to another user or can be written by others: {todo}")
        yield _Folder(path, handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: _Folder, name: str, what: str) -> Iterator[None]:
    """Hold an exclusive lock on a file that exists only during the block."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with folder.open(name, os.O_CREAT) as file:
            # Polling, as a blocking flock has no timeout. `has`: the previous holder removes the file, and a lock on a
            # removed file would exclude no process.
            if _try_lock(file) and folder.has(name, file):
                with contextlib.suppress(OSError):  # the process id, for messages; the disk may be full
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
    """Suppresses errors of a full disk or memory: execution continues after the block."""
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


def _found(folders: Sequence[_Folder], name: str) -> _Held | None:
    """The arrays, if other processes use them: `_sweep` has removed files without a lock."""
    for folder in folders:
        for each in os.listdir(folder.handle):
            if each.startswith(f"arrays-{name}-") and _NAME.fullmatch(each):
                with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as opened:
                    file = opened.enter_context(folder.open(each))
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if folder.has(each, file):  # else its last user removed it before this lock
                        held = _Held(_mapped(folder, each), folder.path / each, file)
                        opened.pop_all()
                        return held
    return None


def _kept_or_made(kept: KeptIn, name: str, make: Callable[[Path | None], Arrays], what: str) -> _Held:
    """The arrays that are in the folder, or new ones that replace older ones of the same source."""
    of = f"kept-{blake2b(kept.of.encode(), digest_size=16).hexdigest()}-"
    own = f"{of}{name}.data"
    with contextlib.ExitStack() as opened:
        try:
            folder = opened.enter_context(_own_folder(kept.folder.resolve(), todo=_ANOTHER))
            opened.enter_context(_locked(folder, f"arrays-{name}.lock", what))
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, f"{what}: {kept.folder}: {os.strerror(error.errno)}: {_ANOTHER}") from error
        _sweep([folder])
        held = _reopened(folder, own)
        if held is None:
            todo = "give AsOf(kept_in=...) a folder with more room"
            held = _made([folder], name, make, what, on_disk=True, todo=todo)
            # Renamed when complete: a file of this name is whole even if a process was killed. Then older ones go;
            # processes that still map them are not affected.
            os.rename(held.path.name, own, src_dir_fd=folder.handle, dst_dir_fd=folder.handle)
            for each in os.listdir(folder.handle):
                if each.startswith(of) and each != own:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=folder.handle)
    return held


def _reopened(folder: _Folder, name: str) -> _Held | None:
    """The arrays of a file that was kept; None if there is none, or if it is damaged."""
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(folder.open(name))
            first = _try_lock(file)  # False: another process uses it, and has compared the checksums
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = _Held(_mapped(folder, name, check=first), folder.path / name, file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            _LOG.warning("%s is damaged and made again: %s", folder.path / name, error)
            return None
        os.utime(file.fileno())  # time of its last use
        opened.pop_all()
    return held


def _made(
    folders: Sequence[_Folder],
    name: str,
    make: Callable[[Path | None], Arrays],
    what: str,
    *,
    on_disk: bool,
    todo: str = "set TMPDIR to a folder with more room",
) -> _Held:
    *in_memory, disk = folders
    name = f"arrays-{name}-{secrets.token_hex(8)}.data"
    try:
        if on_disk:
            return _stored(disk, name, make, folders)
        arrays = make(None)
        nbytes = sum(array.nbytes for array in arrays.values())
        for folder in in_memory:
            if shutil.disk_usage(folder.path).free > nbytes + _SPARE:
                with _if_there_is_room():
                    return _stored(folder, name, lambda _: arrays, folders)
        return _stored(disk, name, lambda _: arrays, folders)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        text = f"{what}: {os.strerror(error.errno or 0)}, {disk.path}: {todo}"
        raise OSError(error.errno, text) from error


def _stored(folder: _Folder, name: str, make: Callable[[Path], Arrays], folders: Sequence[_Folder]) -> _Held:
    """Write the arrays of `make` to a new file."""
    path, in_memory = folder.path / name, folder is not folders[-1]
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(folder.open(name, os.O_CREAT | os.O_EXCL))
        fcntl.flock(file, fcntl.LOCK_SH)
        if not folder.has(name, file):  # a sweep removed it before it was locked: try again
            return _stored(folder, name, make, folders)
        # On an error: close the file first (callbacks run in reverse), as its own lock would prevent the removal.
        opened.callback(folder.remove_unheld, name)
        opened.callback(file.close)
        if not in_memory:
            _link(folder, folders[:-1])
        scratch = folder.path / _scratch_of(name)
        scratch.mkdir(mode=0o700)
        _write(make(scratch), file, in_memory=in_memory)
        shutil.rmtree(scratch)
        held = _Held(_mapped(folder, name), path, file)
        opened.pop_all()
    return held


def _scratch_of(name: str) -> str:
    return name.rpartition(".")[0] + ".scratch"


def _write(arrays: Arrays, file: FileIO, *, in_memory: bool) -> None:
    """Write the arrays, then the head: a file without a head is incomplete."""
    layout, at = {}, 0
    for key, array in arrays.items():
        layout[key] = (str(array.dtype), len(array), at, [] if in_memory else _checksums(array))
        at += _aligned(array.nbytes)
    text = json.dumps(layout).encode()
    head = _MARK + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little") + text
    first = _aligned(len(head))
    if in_memory:
        reserve(file.fileno(), first + at)  # an error here, not a process ended for lack of memory
    with open(file.fileno(), "r+b", closefd=False) as out:
        out.truncate(first + at)
        for key, array in arrays.items():
            out.seek(first + layout[key][2])
            out.write(np.ascontiguousarray(array).data)
        out.flush()
        os.fsync(out.fileno())  # a full or failing disk may raise only here; and the head must not be written first
        out.seek(0)
        out.write(head)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _checksums(array: np.ndarray) -> list[int]:
    raw = np.ascontiguousarray(array).view(np.uint8)
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(zlib.crc32, (raw[at : at + _CHECKED] for at in range(0, len(raw), _CHECKED))))


def _mapped(folder: _Folder, name: str, *, check: bool = False) -> Arrays:
    """The arrays of a file. check: compare their checksums. Raises ValueError: it is incomplete or damaged."""
    with folder.open(name) as file:  # a handle of its own: arrays may be used after the handle with the lock is closed
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length, checksum = (int.from_bytes(whole[at : at + 8], "little") for at in (8, 16))
    text = whole[24 : 24 + length]
    if whole[:8] != _MARK or zlib.crc32(text) != checksum:
        raise ValueError("no head")
    first, arrays = _aligned(24 + length), {}
    for key, (kind, count, at, checksums) in json.loads(text).items():
        arrays[key] = np.frombuffer(whole, np.dtype(kind), count, first + at if count else 0)
        if check and _checksums(arrays[key]) != checksums:
            raise ValueError(f"the checksum of {key!r} is another")
    return arrays


def _leave(held: _Held, *, remove: bool) -> None:
    """Release the file. remove: delete it unless another process uses it."""
    held.file.close()
    if not remove:
        return
    with contextlib.suppress(OSError), _own_folder(held.path.parent, make=False) as folder:
        folder.remove_unheld(held.path.name)


def _sweep(folders: Sequence[_Folder]) -> None:
    """Remove the files of killed processes, in these folders and in those to which links point."""
    for folder in folders:
        for name in os.listdir(folder.handle):
            if _NAME.fullmatch(name):
                folder.remove_unheld(name)
            elif name.startswith(_LINK) and folder is not folders[-1]:
                with contextlib.suppress(OSError):
                    _sweep_elsewhere(folder, name)


def _link(folder: _Folder, in_memory: Sequence[_Folder]) -> None:
    """Add links to this folder in memory, so that processes with another TMPDIR find its left files."""
    for memory in in_memory:
        with contextlib.suppress(OSError):
            os.symlink(
                folder.path, _LINK + blake2b(os.fsencode(folder.path), digest_size=8).hexdigest(), dir_fd=memory.handle
            )


def _sweep_elsewhere(memory: _Folder, link: str) -> None:
    try:
        with _own_folder(Path(os.readlink(link, dir_fd=memory.handle)), make=False) as folder:
            _sweep([folder])
            used = any(map(_NAME.fullmatch, os.listdir(folder.handle)))
    except (FileNotFoundError, PermissionError):
        used = False
    if not used:
        os.unlink(link, dir_fd=memory.handle)
