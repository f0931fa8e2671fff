"""Arrays that all processes of a host share: one of them makes them, all map the same file.

The file lies in memory (/dev/shm) if it fits there, else in the folder for temporary files. What is meant for the disk
lies there in any case; the system then keeps in memory what is used, as far as there is room.

Who uses the file holds a shared lock on it, and who looks for it or makes it an exclusive lock on a second file. So the
system knows who is there: whatever ends a process gives its locks back. The last one to leave removes the file. A file
that nobody holds was left by a process that was killed. Nobody knows what has become of it since, so it is not used:
the next process that shares anything removes it.

Arrays may also be kept in a folder that the user names, when nobody uses them any more. They are made there under a
name as above, and renamed when they are whole. Who is the first to use them compares their checksums.

Others can write to /dev/shm, and to most folders for temporary files. So everything lies in a folder of this user
there; files are opened and removed by a handle on that folder, and only under names that are made here.
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
_SPARE = 1 << 26  # bytes of /dev/shm that are left to others
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_NAME = re.compile(r"arrays-\w+(\.lock|-[0-9a-f]{16}\.data)")
_LINK = "elsewhere-"  # in memory: to a folder for temporary files that has such files
_MARK = b"fsarray2"  # then the length and the checksum of a text, 8 bytes each, and the text: where the arrays are

_CHECKED = 1 << 26  # bytes that have a checksum
_TEMPORARY = "remove it, or set TMPDIR"
_ANOTHER = "give AsOf(kept_in=...) a folder that belongs to this user, and that only this user can write to"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class KeptIn:
    """Arrays that stay in a folder. of: what they are made of, whatever the files hold now: those made before of the
    same are removed."""

    folder: Path
    of: str

    def with_more(self, of: str) -> "KeptIn":
        return replace(self, of=f"{self.of} {of}")


class SharedArrays:
    """Read-only arrays by name, for as long as this object lives.

    Args:
        name: what the arrays are; the same name must mean the same contents. Letters and digits.
        make: makes them, in one process of the host while the others wait; called with None, or with a folder for what
            does not fit in memory.
        what: for messages.
        on_disk: keep them there. kept: in this folder, also when nobody uses them.

    Raises:
        DataError: the process that makes them does not come to an end.
        PermissionError: the folder for temporary files has one for them that is not this user's alone, or `kept` is
            such a folder.
        OSError: there is no room for them, or `kept` cannot be written.
        What `make` raises.
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
    """An open folder that only this user can write."""

    path: Path
    handle: int

    def open(self, name: str, flags: int = 0) -> FileIO:
        """A file of it, to read and write; a new one is for its owner alone."""
        return FileIO(os.open(name, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600, dir_fd=self.handle), "r+")

    def has(self, name: str, file: FileIO) -> bool:
        """Whether the open file still has that name: nobody has removed it."""
        try:
            return os.fstat(file.fileno()).st_ino == os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return False

    def remove_unheld(self, name: str) -> None:
        """Remove a lock or a file of arrays, with what its maker kept beside it, if no process holds it."""
        with contextlib.suppress(OSError), self.open(name) as file:
            if _try_lock(file) and self.has(name, file):
                shutil.rmtree(_scratch_of(name), ignore_errors=True, dir_fd=self.handle)
                os.unlink(name, dir_fd=self.handle)


@dataclass(frozen=True, slots=True)
class _Held:
    """Arrays, and their file, on which this process holds a shared lock."""

    arrays: Arrays
    path: Path
    file: FileIO


def _places() -> list[Path]:
    """Where the folders of this user are, the best first; the last one is among temporary files."""
    memory = Path("/dev/shm")
    places = [memory] if memory.is_dir() and os.access(memory, os.W_OK) else []
    return [place / f"freescale-{os.getuid()}" for place in (*places, Path(tempfile.gettempdir()))]


@contextlib.contextmanager
def _own_folders() -> Iterator[list[_Folder]]:
    """The folders at these places, which are made. One in memory that is somebody else's is left out."""
    *in_memory, on_disk = _places()
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
    """Hold a lock; its file is there for so long."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with folder.open(name, os.O_CREAT) as file:
            if _try_lock(file) and folder.has(name, file):
                with contextlib.suppress(OSError):  # who it is, for messages, if there is room
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
    """Go on behind the block if there is none."""
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
    """The arrays, if other processes hold them: `_sweep` has removed what nobody holds."""
    for folder in folders:
        for each in os.listdir(folder.handle):
            if each.startswith(f"arrays-{name}-") and _NAME.fullmatch(each):
                with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as opened:
                    file = opened.enter_context(folder.open(each))
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if folder.has(each, file):
                        held = _Held(_mapped(folder, each), folder.path / each, file)
                        opened.pop_all()
                        return held
    return None


def _kept_or_made(kept: KeptIn, name: str, make: Callable[[Path | None], Arrays], what: str) -> _Held:
    """The arrays that are kept, or new ones in the place of those before."""
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
            os.rename(held.path.name, own, src_dir_fd=folder.handle, dst_dir_fd=folder.handle)
            for each in os.listdir(folder.handle):
                if each.startswith(of) and each != own:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=folder.handle)
    return held


def _reopened(folder: _Folder, name: str) -> _Held | None:
    """None: there is no such file, or it is damaged."""
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(folder.open(name))
            first = _try_lock(file)  # others that hold it have compared what is in it
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = _Held(_mapped(folder, name, check=first), folder.path / name, file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            _LOG.warning("%s is damaged and made again: %s", folder.path / name, error)
            return None
        os.utime(file.fileno())  # when it was last used
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
        said = f"{what}: {os.strerror(error.errno or 0)}, {disk.path}: {todo}"
        raise OSError(error.errno, said) from error


def _stored(folder: _Folder, name: str, make: Callable[[Path], Arrays], folders: Sequence[_Folder]) -> _Held:
    """Write what `make` gives to a new file."""
    path, in_memory = folder.path / name, folder is not folders[-1]
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(folder.open(name, os.O_CREAT | os.O_EXCL))
        fcntl.flock(file, fcntl.LOCK_SH)
        if not folder.has(name, file):  # a sweep has just taken it for one that was left
            return _stored(folder, name, make, folders)
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
    """The head comes last: without it the file is not whole."""
    places, at = {}, 0
    for key, array in arrays.items():
        places[key] = (str(array.dtype), len(array), at, [] if in_memory else _checksums(array))
        at += _aligned(array.nbytes)
    text = json.dumps(places).encode()
    head = _MARK + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little") + text
    first = _aligned(len(head))
    if in_memory:
        reserve(file.fileno(), first + at)
    with open(file.fileno(), "r+b", closefd=False) as out:
        out.truncate(first + at)
        for key, array in arrays.items():
            out.seek(first + places[key][2])
            out.write(np.ascontiguousarray(array).data)
        out.flush()
        os.fsync(out.fileno())  # a disk that is full, or does not write, may say so only here
        out.seek(0)
        out.write(head)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _checksums(array: np.ndarray) -> list[int]:
    raw = np.ascontiguousarray(array).view(np.uint8)
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(zlib.crc32, (raw[at : at + _CHECKED] for at in range(0, len(raw), _CHECKED))))


def _mapped(folder: _Folder, name: str, *, check: bool = False) -> Arrays:
    """The arrays of a file. check: compare their checksums. Raises ValueError: it is not whole."""
    with folder.open(name) as file:  # not the one that has the lock: arrays may be kept for longer than that is held
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
    """Give the file back; remove: if nobody else uses it."""
    held.file.close()
    if not remove:
        return
    with contextlib.suppress(OSError), _own_folder(held.path.parent, make=False) as folder:
        folder.remove_unheld(held.path.name)


def _sweep(folders: Sequence[_Folder]) -> None:
    """Remove what processes that were killed have left, in these folders and in those that links say."""
    for folder in folders:
        for name in os.listdir(folder.handle):
            if _NAME.fullmatch(name):
                folder.remove_unheld(name)
            elif name.startswith(_LINK) and folder is not folders[-1]:
                with contextlib.suppress(OSError):
                    _sweep_elsewhere(folder, name)


def _link(folder: _Folder, in_memory: Sequence[_Folder]) -> None:
    """So that files of this folder are found by processes with another TMPDIR."""
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
