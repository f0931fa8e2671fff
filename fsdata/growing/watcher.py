"""Looks for new files, on rank 0, in a thread of its own."""

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
from fsdata.growing.watermark import EARLIEST, Arrived, Taken, modified_at, next_to_look_at, stamps_of, visible
from fsdata.options import seconds
from fsranks.machine.clock import MACHINE_CLOCK, Clock

_LOG = logging.getLogger("fsdata")
_SHARE_OF_LISTING = 20  # a listing that takes a second is repeated after 20
_LISTING_PATIENCE_S = 300.0
_FORGET_S = 3600.0  # a file that was taken is forgotten if it was not there so long: a folder may be away for a moment
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NS_PER_DAY = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class News:
    """Files to be read next, in order; and what else changes of `Segment.seen`, see `seen_after`."""

    files: tuple[FileAt, ...]
    seen: Mapping[str, Any]


def seen_after(seen: Mapping[str, Any] | None, files: Sequence[FileAt], change: Mapping[str, Any]) -> dict[str, Any]:
    """What a state says after the files of a `News`, on every rank. It names all files, so it does not travel."""
    taken = Taken() if seen is None else Taken.of_state(seen)
    taken.names -= set(map(bytes.fromhex, change["gone"]))
    taken.add((file.name for file in files), tuple(change["upto"]))
    return taken.state()


class Watcher:
    """Finds the files of one extension after another. One thread at a time may call it; `close` ends its own.

    Args:
        files: of the source that is followed.
        time: the column of `Schema.time`, for `Follow(by="time")`.
        seen: what the state says, see `seen_after`; None at the beginning.
        late: side tables that rows wait for.
        clock: of the pauses between two looks. Times of files and rows are compared with the time of day.

    Raises (poll): what listing and opening raise, ConnectionError where that fails for minutes; CorruptFileError: a
    file that did not become whole before `idle`; SchemaError: a footer without the times of its rows.
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
        self._taken = Taken() if seen is None else Taken.of_state(seen)
        self._late = late
        self._clock = clock
        self._absent: set[bytes] = set()  # files that were taken, and were not there some time ago
        self._gone: set[bytes] = set()  # not there since then, and forgotten: to be told with the next files
        self._next_absent = self._clock.now()
        self._known: dict[str, Arrived] = {}  # that were not taken
        self._digest: dict[str, str] = {}
        self._warned: set[str] = set()
        self._changed = self._clock.now()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fsdata-follow")
        self._looking: Future[News | None] | None = None
        self._next_look = 0.0
        self._unreachable_since: float | None = None

    def poll(self, timeout_s: float, stopped: threading.Event) -> News | None:
        """The next files; those of none, where the epoch is over; None: not yet, or `stopped`.

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

    def look_ahead(self) -> None:
        """Begin to look for the files after those that `poll` gave last."""
        if self._looking is None:
            self._looking = self._thread.submit(self._look)

    def close(self) -> None:
        # A listing under way in a slow store ends by itself: a job that ends does not wait for it.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> News | None:
        begin = self._clock.now()
        try:
            self._update(self._listing())
            news = self._found(idle=False)
        except OSError as error:
            self._out_of_reach(error, begin)
            return None
        self._unreachable_since = None
        now, idle_s = self._clock.now(), self._follow.idle_s
        pause = max(self._follow.every_s, _SHARE_OF_LISTING * (now - begin))
        if idle_s is not None:
            pause = min(pause, max(self._changed + idle_s - now, 0.0))
        self._next_look = now + pause
        if news is None and idle_s is not None and self._clock.now() - self._changed >= idle_s:
            news = self._found(idle=True)
            if news is None:
                self._check_whole()
                self._changed = self._clock.now()  # a loop that begins again waits again
                return News((), {})
        return news

    def _out_of_reach(self, error: OSError, now: float) -> None:
        """A store that cannot be reached for a moment is asked again; raises if it was for longer."""
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
        """All files but those that `filter` needs nothing of."""
        source = self._files.source
        try:
            files = discover(source.path_list, source.filesystem).below(self._files.root[1])
        except FileNotFoundError:
            return FileList.from_entries([], self._files.root[1])
        return files.without(pruned(files, source))

    def _update(self, listing: FileList) -> None:
        """Compare what is there with what is known."""
        there = stamps_of(listing)
        if there and self._clock.now() >= self._next_absent:
            absent = self._taken.absent(there)
            forgotten, self._absent = absent & self._absent, absent
            self._taken.names -= forgotten
            self._gone |= forgotten
            self._next_absent = self._clock.now() + _FORGET_S
        for name in [name for name in self._known if name not in there]:
            gone = self._known.pop(name)
            self._digest.pop(name, None)
            self._warned.discard(name)
            if gone.whole:
                _LOG.warning("%s: removed before it was read: %s", self._files.label, name)
        for name, stamp in there.items():
            if (name not in self._known or self._known[name].stamp != stamp) and name not in self._taken:
                self._known[name] = Arrived(name, modified_at(stamp, time.time_ns()), stamp=stamp)
                self._changed = self._clock.now()

    def _found(self, *, idle: bool) -> News | None:
        follow, lag = self._follow, self._follow.lag
        before = time.time_ns()
        if follow.by == "path":
            before -= int(seconds(lag, "lag") * 10**9)
            if any(file.modified > before for file in self._known.values()):
                self._changed = self._clock.now()  # it only waits for its time
        names = next_to_look_at(list(self._known.values()), by=follow.by, before=before)
        self._known |= {file.name: file for file in self._opened([self._known[name] for name in names])}
        self._wait_for_matches()
        latest = None
        if follow.by == "time" and not idle:
            times = [file.time for file in self._known.values() if file.whole]
            latest = max([*times, self._taken.upto[0]]) - self._lag_in_time()
        found = visible(list(self._known.values()), self._taken, by=follow.by, before=before, latest=latest)
        found = found[: follow.at_most]
        if not found:
            return None
        late = [file.name for file in found if file.key <= self._taken.upto and not file.empty]
        if late:
            _LOG.warning("%s: late, behind files that were read: %s", self._files.label, ", ".join(late))
        upto = max(file.key for file in found)
        self._taken.add((file.name for file in found), upto)
        change = {"upto": list(upto), "gone": [each.hex() for each in sorted(self._gone)]}
        self._gone = set()
        for file in found:
            del self._known[file.name]
        self._changed = self._clock.now()
        _LOG.info("%s: %d new files, up to %s", self._files.label, len(found), found[-1].name)
        files = tuple(FileAt(file.name, self._digest.pop(file.name), sides_of(self._late, file)) for file in found)
        return News(files, change)

    def _wait_for_matches(self) -> None:
        """Say of all whole files whether their rows have the matches that they wait for."""
        whole = [file for file in self._known.values() if file.whole]
        since = min((file.modified for file in self._known.values()), default=time.time_ns())
        for table in self._late:
            if table.look(since):
                self._changed = self._clock.now()
        for file in whole if self._late else ():
            ready = [table.is_ready(file, time.time_ns()) for table in self._late]
            self._known[file.name] = replace(file, matched=all(ready))
            if not all(ready):
                self._changed = self._clock.now()

    def _opened(self, files: list[Arrived]) -> list[Arrived]:
        """The same files, with what their footers say; those that are not whole are looked at again."""
        if not files:
            return []
        by_time = self._follow.by == "time"
        extra = (self._time_column,) if by_time and self._time_column else ()
        try:
            catalog, faults = self._files.open_more(self._files.named([file.name for file in files]), extra)
        except FileNotFoundError as error:
            _LOG.warning("%s: gone while it was looked at: %s", self._files.label, error)
            return files  # the next listing tells which
        reasons = dict(faults)
        whole = dict(zip(catalog.files.names(), range(len(catalog)), strict=True))
        found = []
        for file in files:
            number = whole.get(file.name)
            if number is None:
                self._warn(file, reasons.get(file.name))
                found.append(replace(file, whole=False))
                continue
            self._digest[file.name] = catalog.digest(number)
            rows = catalog.rows[catalog.first[number] : catalog.first[number + 1]].sum()
            latest = 0 if not by_time else self._latest(catalog, number) if rows else EARLIEST
            found.append(replace(file, whole=True, time=latest, empty=not rows))
        return found

    def _warn(self, file: Arrived, reason: CorruptFileError | None) -> None:
        """Say once that a file that nobody has changed for a while is not whole."""
        if time.time_ns() - file.modified > 600 * 10**9 and file.name not in self._warned:
            self._warned.add(file.name)
            _LOG.warning("%s: still not whole, files after it may wait for it: %s", self._files.label, reason)

    def _check_whole(self) -> None:
        left = [file for file in self._known.values() if not file.whole]
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
        name = catalog.files.name(number)
        groups = slice(int(catalog.first[number]), int(catalog.first[number + 1]))
        low, high = catalog.bounds[self._time_column or ""][:, groups]
        rows = catalog.rows[groups] > 0
        if (high < low)[rows].any():
            raise SchemaError(
                f"{self._files.label}: {name}: its footer does not say between which times of {self._time_column!r} "
                "its rows are. Write it with statistics, or use Follow(by='path')"
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
