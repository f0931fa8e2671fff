"""What several processes of a machine need done once: one does it, the others wait for it."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    with _opened(name) as file:
        if file is not None:
            _wait_for(file)
        yield


def is_busy(name: str) -> bool:
    """Whether a process is inside with this name."""
    with _opened(name) as file:
        return file is not None and not _take(file)


@contextmanager
def _opened(name: str) -> Iterator[int | None]:
    """The file whose lock stands for the name; closing it gives the lock back."""
    file = None
    with suppress(OSError):
        file = os.open(_path(name), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def _path(name: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"freescale-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{blake2b(name.encode(), digest_size=16).hexdigest()}.lock"


def _wait_for(file: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not _take(file) and time.monotonic() < end:
        time.sleep(_POLL_S)


def _take(file: int) -> bool:
    """Whether nobody else has the lock; that is so where a file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
