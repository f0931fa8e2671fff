"""Looks for new files, on rank 0, in a thread of its own: a listing may take longer than a tick of `Followed`."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fsdata.catalog.binding.arrow_types import plain
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import FileList
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.prune import pruned
from fsdata.catalog.retry import unreachable
from fsdata.errors import CorruptFileError, SchemaError
from fsdata.growing.follow import Follow
from fsdata.growing.growing_files import GrowingFiles
from fsdata.growing.late import LateTable, sides_of
from fsdata.growing.segment import FileAt
from fsdata.growing.watermark import EARLIEST, Arrived, Taken, files_to_open, files_to_read, modified_at, stamps_of
from fsdata.options import seconds
from fsranks.machine.clock import MACHINE_CLOCK, Clock

_LOG = logging.getLogger("fsdata")
_SHARE_OF_LISTING = 20  # a listing that takes one second is repeated after 20 s
_LISTING_PATIENCE_S = 300.0
_FORGET_S = 3600.0  # a taken file is forgotten after it was absent for so long; a folder may be unmounted for a moment
_WARNED_AFTER_NS = 600 * 10**9  # since the last modification of a file that is still not whole
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NS_PER_DAY = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class News:
    """The files to be read next, in order. seen: further changes of `Segment.seen`, see `seen_after`."""

    files: tuple[FileAt, ...]
    seen: Mapping[str, Any]


def seen_after(seen: Mapping[str, Any] | None, files: Sequence[FileAt], change: Mapping[str, Any]) -> dict[str, Any]:
    """`Segment.seen` after the files of a `News`. Every rank computes it: it has all names, too many to be sent."""
    taken = Taken() if seen is None else Taken.from_state(seen)
    taken.names -= set(map(bytes.fromhex, change["gone"]))
    taken.add((file.name for file in files), tuple(change["upto"]))
    return taken.state()


class Watcher:
    """Finds the files of one extension after another, in its own thread. For one calling thread at a time.

    Args:
        files: of the followed source.
        time_column: the column of `Schema.time`, for `Follow(by="time")`.
        seen: `Segment.seen` of the state; None at the beginning.
        late: side tables that rows wait for.
        clock: measures the pauses between two looks. Times of files and rows are compared with the time of day.

    Raises (poll): errors of listing and opening, ConnectionError if these fail for minutes; CorruptFileError: a file
    that is still not whole after `idle`; SchemaError: a footer without the times of its rows.
    """

    def __init__(
        self,
        files: GrowingFiles,
        time_column: str | None,
        seen: Mapping[str, Any] | None,
        late: Sequence[LateTable] = (),
        clock: Clock = MACHINE_CLOCK,
    ) -> None:
        assert isinstance(files.source.follow, Follow)
        self._files = files
        self._follow = files.source.follow
        self._time_column = time_column
        self._taken = Taken() if seen is None else Taken.from_state(seen)
        self._late = late
        self._clock = clock
        self._absent: set[bytes] = set()  # taken files that were absent at the last check
        self._gone: set[bytes] = set()  # absent in two checks, and forgotten: sent to all ranks with the next files
        self._next_absent = self._clock.now()  # time of the next check
        self._waiting: dict[str, Arrived] = {}  # files that were not taken yet
        self._digest: dict[str, str] = {}  # of the footers of those that are whole
        self._warned: set[str] = set()
        self._changed = self._clock.now()  # `idle` counts from here
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fsdata-follow")
        self._looking: Future[News | None] | None = None
        self._next_look = 0.0
        self._unreachable_since: float | None = None

    def poll(self, timeout_s: float, stopped: threading.Event) -> News | None:
        """The next files; a `News` without files at the end of the epoch; None: not yet, or `stopped`.

        Blocks for at most `timeout_s`.
        """
        if self._looking is None:
            self._clock.wait(min(self._next_look - self._clock.now(), timeout_s), stopped)
            if self._clock.now() < self._next_look:
                return None
            self._looking = self._thread.submit(self._look)
        try:
            news = self._looking.result(timeout_s)
        except NotYet:
            return None
        self._looking = None
        return news

    def prefetch(self) -> None:
        """Begin to look for the files after those that `poll` returned last."""
        if self._looking is None:
            self._looking = self._thread.submit(self._look)

    def close(self) -> None:
        # A running listing of a slow store ends in the background: a job that ends does not wait for it.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> News | None:
        begin = self._clock.now()
        try:
            self._update(self._listing())
            news = self._take_files(idle=False)
        except OSError as error:
            self._retry_later(error, begin)
            return None
        self._unreachable_since = None
        now, idle_s = self._clock.now(), self._follow.idle_s
        pause = max(self._follow.every_s, _SHARE_OF_LISTING * (now - begin))
        if idle_s is not None:
            pause = min(pause, max(self._changed + idle_s - now, 0.0))
        self._next_look = now + pause  # a slow listing is repeated less often, but the end is not missed by it
        if news is None and idle_s is not None and self._clock.now() - self._changed >= idle_s:
            news = self._take_files(idle=True)
            if news is None:
                self._check_whole()
                self._changed = self._clock.now()  # a further loop over the loader waits for `idle` again
                return News((), {})
        return news

    def _retry_later(self, error: OSError, now: float) -> None:
        """Look again later, as the store may be out of reach for a moment. Raises other errors, and after minutes."""
        if isinstance(error, PermissionError) or not unreachable(error):
            raise error
        self._unreachable_since = self._unreachable_since or now
        patience = max(_LISTING_PATIENCE_S, self._files.source.retry.max_s)
        if now - self._unreachable_since > patience:
            raise ConnectionError(
                f"{self._files.label}: out of reach for {patience:.0f} s: {type(error).__name__}: {error}"
            ) from error
        _LOG.warning("%s: out of reach: %s: looking again", self._files.label, error)
        self._changed = self._clock.now()
        self._next_look = self._clock.now() + self._follow.every_s

    def _listing(self) -> FileList:
        """All files except those that cannot match the `filter`."""
        source = self._files.source
        try:
            files = discover(source.path_list, source.filesystem).below(self._files.root[1])
        except FileNotFoundError:
            return FileList.from_entries([], self._files.root[1])
        return files.without(pruned(files, source))

    def _update(self, listing: FileList) -> None:
        """Compare a listing with the files seen before."""
        there = stamps_of(listing)
        # An empty listing is no evidence: the folder may be unmounted.
        if there and self._clock.now() >= self._next_absent:
            absent = self._taken.absent(there)
            forgotten, self._absent = absent & self._absent, absent
            self._taken.names -= forgotten
            self._gone |= forgotten
            self._next_absent = self._clock.now() + _FORGET_S
        for name in [name for name in self._waiting if name not in there]:
            gone = self._waiting.pop(name)
            self._digest.pop(name, None)
            self._warned.discard(name)
            if gone.whole:
                _LOG.warning("%s: removed before it was read: %s", self._files.label, name)
        for name, stamp in there.items():
            if (name not in self._waiting or self._waiting[name].stamp != stamp) and name not in self._taken:
                self._waiting[name] = Arrived(name, modified_at(stamp, time.time_ns()), stamp=stamp)
                self._changed = self._clock.now()

    def _take_files(self, *, idle: bool) -> News | None:
        """Take the files that may be read now. idle: by time, do not wait for newer files any more."""
        follow, lag = self._follow, self._follow.lag
        before = time.time_ns()
        if follow.by == "path":
            before -= int(seconds(lag, "lag") * 10**9)
            if any(file.modified > before for file in self._waiting.values()):
                self._changed = self._clock.now()  # not idle: a file waits for `lag` only
        names = files_to_open(list(self._waiting.values()), by=follow.by, before=before)
        self._waiting |= {file.name: file for file in self._opened([self._waiting[name] for name in names])}
        self._wait_for_matches()
        # By time, files up to `lag` before the newest time seen may still come.
        latest = None
        if follow.by == "time" and not idle:
            times = [file.time for file in self._waiting.values() if file.whole]
            latest = max([*times, self._taken.upto[0]]) - self._lag_in_time()
        waiting = list(self._waiting.values())
        taken = files_to_read(waiting, self._taken, by=follow.by, before=before, latest=latest)[: follow.at_most]
        if not taken:
            return None
        late = [file.name for file in taken if file.key <= self._taken.upto and not file.empty]
        if late:
            _LOG.warning("%s: late, behind files that were read: %s", self._files.label, ", ".join(late))
        upto = max(file.key for file in taken)
        self._taken.add((file.name for file in taken), upto)
        change = {"upto": list(upto), "gone": [digest.hex() for digest in sorted(self._gone)]}
        self._gone = set()
        for file in taken:
            del self._waiting[file.name]
        self._changed = self._clock.now()
        _LOG.info("%s: %d new files, up to %s", self._files.label, len(taken), taken[-1].name)
        files = tuple(FileAt(file.name, self._digest.pop(file.name), sides_of(self._late, file)) for file in taken)
        return News(files, change)

    def _wait_for_matches(self) -> None:
        """Set `matched` of all whole files."""
        if not self._late:
            return
        whole = [file for file in self._waiting.values() if file.whole]
        since = min((file.modified for file in self._waiting.values()), default=time.time_ns())
        for table in self._late:
            if table.look(since):
                self._changed = self._clock.now()
        for file in whole:
            ready = [table.is_ready(file, time.time_ns()) for table in self._late]
            self._waiting[file.name] = replace(file, matched=all(ready))
            if not all(ready):
                self._changed = self._clock.now()  # not idle: its `wait` is limited

    def _opened(self, files: list[Arrived]) -> list[Arrived]:
        """The same files, with the values of their footers. Those that are not whole are opened again next time."""
        if not files:
            return []
        by_time = self._follow.by == "time"
        extra = (self._time_column,) if by_time and self._time_column else ()
        try:
            catalog, faults = self._files.open_more(self._files.named([file.name for file in files]), extra)
        except FileNotFoundError as error:
            _LOG.warning("%s: gone while it was looked at: %s", self._files.label, error)
            return files  # the next listing shows which
        reasons = dict(faults)
        numbers = dict(zip(catalog.files.names(), range(len(catalog)), strict=True))
        opened = []
        for file in files:
            number = numbers.get(file.name)
            if number is None:
                self._warn(file, reasons.get(file.name))
                opened.append(replace(file, whole=False))
                continue
            self._digest[file.name] = catalog.digest(number)
            rows = catalog.rows[catalog.first[number] : catalog.first[number + 1]].sum()
            latest = 0 if not by_time else self._latest(catalog, number) if rows else EARLIEST
            opened.append(replace(file, whole=True, time=latest, empty=not rows))
        return opened

    def _warn(self, file: Arrived, reason: CorruptFileError | None) -> None:
        """Warn once about a file that is not whole, if its writer seems to have stopped."""
        if time.time_ns() - file.modified > _WARNED_AFTER_NS and file.name not in self._warned:
            self._warned.add(file.name)
            _LOG.warning("%s: still not whole, files after it may wait for it: %s", self._files.label, reason)

    def _check_whole(self) -> None:
        """At the end of the epoch: CorruptFileError, or skip the files, if some are still not whole."""
        left = [file for file in self._waiting.values() if not file.whole]
        for file in left:
            if self._files.source.on_error == "skip":
                self._files.leave_out(file.name, "not whole when the epoch ended")
        if left and self._files.source.on_error == "raise":
            named = ", ".join(file.name for file in left[:5])
            raise CorruptFileError(
                f"{self._files.label}: nothing new has come for {self._follow.idle}, and {len(left)} files are not "
                f"whole: {named}. Write each file under another name (`.part`), and rename it when it is whole"
            )

    def _latest(self, catalog: Catalog, number: int) -> int:
        """`Arrived.time` of file `number` of the catalog."""
        name = catalog.files.name(number)
        groups = slice(int(catalog.first[number]), int(catalog.first[number + 1]))
        low, high = catalog.bounds[self._time_column or ""][:, groups]
        rows = catalog.rows[groups] > 0
        if (high < low)[rows].any():
            raise SchemaError(
                f"{self._files.label}: {name}: its footer has no statistics of {self._time_column!r}, so the times "
                "of its rows are unknown. Write it with statistics, or use Follow(by='path')"
            )
        return int(high[rows].max()) * self._ns_per_unit(catalog.schema(number))

    def _ns_per_unit(self, schema: pa.Schema) -> int:
        kind = plain(schema.field(self._time_column).type)
        if pa.types.is_timestamp(kind):
            return _NS[kind.unit]
        if pa.types.is_date(kind):
            return _NS_PER_DAY if pa.types.is_date32(kind) else _NS["ms"]
        if isinstance(self._follow.lag, str) and seconds(self._follow.lag, "lag") > 0:
            raise SchemaError(
                f"{self._files.label}: {self._time_column} holds integers, whose unit is not known: give "
                "Follow(lag=...) as an integer in that unit"
            )
        return 1

    def _lag_in_time(self) -> int:
        lag = self._follow.lag
        return lag if isinstance(lag, int) else int(seconds(lag, "lag") * 10**9)
