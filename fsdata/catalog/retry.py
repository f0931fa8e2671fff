"""Bounded retries of reads from filesystems that fail now and then."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fsdata.catalog.listing.file_list import FileRef
from fsdata.errors import FreeScaleError

Result = TypeVar("Result")

# Trying again gives the same error.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FreeScaleError)
_CLOUD = re.compile(r"AWS Error |google::cloud::Status|Azure Error")  # of S3, GCS, Azure


@dataclass(slots=True)
class Retry:
    """Repeat a read of a remote file after OSError (timeouts included). Thread-safe.

    Args:
        delays_s: how long to wait before the second try, the third, ...: their number bounds the tries.
        sleep: for tests.

    `count` is how many tries were repeated.
    """

    delays_s: tuple[float, ...] = (0.1, 0.4)
    sleep: Callable[[float], None] = time.sleep
    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self, read: Callable[[], Result], file: FileRef) -> Result:
        """`read()`. Local files are read once: a local error does not go away.

        Raises:
            ConnectionError: the last error, naming the file, if it is about reaching it.
            OSError: any other last error as it is.
        """
        delays = () if file.local else self.delays_s
        for tries in range(len(delays) + 1):
            try:
                return read()
            except OSError as error:
                if isinstance(error, _FINAL):
                    raise
                if tries == len(delays):
                    if unreachable(error):
                        raise ConnectionError(
                            f"{file.path}: cannot be read after {tries + 1} tries: {type(error).__name__}: {error}"
                        ) from error
                    raise
            with self._lock:
                self.count += 1
            self.sleep(delays[tries])
        raise AssertionError("unreachable: the last try returns or raises")


def unreachable(error: BaseException) -> bool:
    """Whether the error is about reaching the file and not about its bytes: it must never count as corruption.

    Errors of Arrow's own decoders are plain OSErrors without a number, as are those of its own cloud filesystems: only
    their words tell them apart.
    """
    if not isinstance(error, OSError):
        return False
    return type(error) is not OSError or error.errno is not None or _CLOUD.search(str(error)) is not None
