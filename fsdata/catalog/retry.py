"""Bounded retries of reads from unreliable filesystems."""

import errno
import logging
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from fsdata.catalog.listing.file_list import FileRef
from fsdata.errors import FreeScaleError
from fsdata.sources.source import Retry

Result = TypeVar("Result")
_LOG = logging.getLogger("fsdata")
_FIRST_WAIT_S, _GROWTH = 0.1, 4
# Tries after an error that does not look like the transport's: reading the bytes again helps at once or never.
_TRIES_OF_DAMAGE = 3

# Not repeated: the error would be the same.
_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, FreeScaleError)
_CLOUD = re.compile(r"AWS Error |google::cloud::Status|Azure Error")  # of S3, GCS, Azure


@dataclass(slots=True)
class Retrying:
    """Repeats reads of remote files after OSError (timeouts included), by `policy`. Thread-safe.

    Args:
        sleep, jitter: for tests; `sleep` replaces the wait that `end` interrupts, `jitter` returns 0 to 1.

    `count` is the number of repeated tries.
    """

    policy: Retry = field(default_factory=Retry)
    sleep: Callable[[float], object] | None = None
    jitter: Callable[[], float] = random.random
    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def call(self, read: Callable[[], Result], file: FileRef) -> Result:
        """`read()`, as often as `attempts` allows, whose errors it raises."""
        for attempt in self.attempts(file):
            with attempt:
                return read()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def attempts(self, file: FileRef) -> "Attempts":
        """To be used as `for attempt in retrying.attempts(file): with attempt: return ...`.

        A local file has one attempt: a local error does not go away.
        """
        return Attempts(self, file)

    def wait(self, seconds: float) -> None:
        """Before a further try, which counts."""
        with self._lock:
            self.count += 1
        (self.sleep or self._ended.wait)(seconds)

    @property
    def ended(self) -> bool:
        """Whether reads that fail now fail at once."""
        return self._ended.is_set()

    def end(self) -> None:
        """Stop waiting in all threads; reads that fail from now on are not repeated."""
        self._ended.set()


class Attempts:
    """Tries to read a file. Each is a context: an OSError inside of it ends this try, after a wait, or all of them.

    Raises:
        ConnectionError: the last error, naming the file, if the file could not be reached.
        FileNotFoundError: the file was deleted after it was listed.
        OSError: any other last error, unchanged.
    """

    def __init__(self, retrying: Retrying, file: FileRef) -> None:
        self._retrying = retrying
        self._file = file
        self._number = 0
        self._waited = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Self:
        self._number += 1
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, OSError):
            return False
        file, policy, number = self._file, self._retrying.policy, self._number
        if isinstance(error, FileNotFoundError):
            gone = "no such file any more; it was there when files were listed"
            raise FileNotFoundError(errno.ENOENT, gone, file.path) from error
        if isinstance(error, _FINAL):
            return False
        # Jitter: many ranks fail at the same moment, and should not come back at the same moment.
        wait = _FIRST_WAIT_S * _GROWTH ** (number - 1) * (1 + self._retrying.jitter()) / 2
        damage = not unreachable(error) and number >= _TRIES_OF_DAMAGE
        last = number >= (1 if file.local else policy.tries) or self._waited + wait > policy.max_s
        if not (last or damage or self._retrying.ended):
            _LOG.info("%s: %s: %s: trying again in %.1f s", file.path, type(error).__name__, error, wait)
            self._waited += wait
            self._retrying.wait(wait)
            return True
        if unreachable(error):
            raise ConnectionError(
                f"{file.path}: cannot be read after {number} tries: {type(error).__name__}: {error}"
            ) from error
        return False


def unreachable(error: BaseException) -> bool:
    """Whether the file could not be reached: such an error must never count as corruption of its bytes.

    Arrow raises OSErrors without errno both in its decoders and in its cloud filesystems: only the message
    distinguishes them.
    """
    if not isinstance(error, OSError) or isinstance(error, FreeScaleError):
        return False
    return type(error) is not OSError or error.errno is not None or _CLOUD.search(str(error)) is not None
