"""What several processes of a machine need done once: one does it, the others wait for it."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

_PATIENCE_S = 120.0
_POLL_S = 0.01


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """No two processes of this user and machine are inside with the same name. Blocks, but at most two minutes.

    It orders work that would do no harm if it were done twice. So it gives up where a process does not leave, and
    where the folder for temporary files cannot be used. A process that ends is no longer inside.
    """
    file = _enter(name, time.monotonic() + _PATIENCE_S)
    try:
        yield
    finally:
        if file is not None:
            _path(name).unlink(missing_ok=True)  # before the lock is gone: the next one makes a file of its own
            os.close(file)


def is_busy(name: str) -> bool:
    """Whether a process is inside with this name."""
    file = _open(name, 0)
    if file is None:
        return False
    try:
        return not _take(file)
    finally:
        os.close(file)


def _enter(name: str, end: float) -> int | None:
    """The file whose lock stands for the name; None: there is none, or another process does not leave."""
    while (file := _open(name, os.O_CREAT)) is not None:
        while not (taken := _take(file)) and time.monotonic() < end:
            time.sleep(_POLL_S)
        if taken and os.fstat(file).st_nlink:
            return file
        os.close(file)
        if not taken:
            break
    return None


def _open(name: str, flags: int) -> int | None:
    try:
        return os.open(_path(name), flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _path(name: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"freescale-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{blake2b(name.encode(), digest_size=16).hexdigest()}.lock"


def _take(file: int) -> bool:
    """Whether nobody else has the lock; that is so where a file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
