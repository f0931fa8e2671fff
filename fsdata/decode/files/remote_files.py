"""Open remote files, shared by all threads that read them."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from fsdata.decode.files.open_files import Known, OpenParquet, modified

_KEPT = 64


@dataclass(slots=True)
class _Slot:
    """One file. The lock is held while it is opened, so that one thread opens and the others wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: OpenParquet | None = None


class RemoteFiles:
    """Remote files, those used last kept open. Thread-safe.

    A file is compared with its identity when it is opened. `check` says whether what was read since then is all of that
    file: a store may put another object in its place at any time.

    Args:
        open: opens a file and compares it; see `OpenFiles.open`.

    Attributes:
        bytes_read: all bytes of row groups, those of footers not counted.
        unplanned_reads: how often a decoder asked for bytes that were not planned.
    """

    def __init__(self, open: Callable[[Known], OpenParquet]) -> None:
        self.bytes_read = 0
        self.unplanned_reads = 0
        self._open = open
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, known: Known) -> OpenParquet:
        """The open file. Blocks for some requests to the store if it is not open yet.

        Raises what `open` raises.
        """
        with self._lock:
            slot = self._slots.setdefault(known.file.path, _Slot())
            self._slots.move_to_end(known.file.path)
            while len(self._slots) > _KEPT:
                self._slots.popitem(last=False)  # not closed, as others may be reading from it
        with slot.lock:
            if slot.opened is None:
                slot.opened = self._open(known)
            return slot.opened

    def forget(self, opened: OpenParquet) -> None:
        """Open the file anew when it is asked for the next time."""
        with self._lock:
            slot = self._slots.get(opened.file.path)
            if slot is not None and slot.opened is opened:
                del self._slots[opened.file.path]

    def read(self, opened: OpenParquet, begin: int, end: int, *, planned: bool = True) -> bytes:
        """Bytes [begin, end) of the file, all of them. Blocks; several threads read the same file at the same time.

        Raises as `RemoteFile` does.
        """
        found: bytes = opened.source.read_at(end - begin, begin)
        with self._lock:
            self.bytes_read += end - begin
            self.unplanned_reads += not planned
        return found

    def check(self, opened: OpenParquet, known: Known) -> None:
        """Check that the file is still the one that was opened. Blocks for a request to the store.

        Raises:
            CorruptFileError: it is another file.
            ConnectionError: it was written again with the same footer, so that it has to be read again.
        """
        if modified(opened.file) != opened.stamp:
            self.forget(opened)
            self.get(known)
            raise ConnectionError(f"{opened.file.path}: written again while it was being read")
