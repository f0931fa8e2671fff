"""Which files of late side tables hold the matches of a file's rows; on rank 0."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.binding.column_paths import array_at, names_at
from fsdata.catalog.footers import open_file, parquet_file
from fsdata.catalog.listing.find_files import discover
from fsdata.decode.arrow import widen
from fsdata.errors import DataError, SchemaError
from fsdata.growing.follow import Follow
from fsdata.growing.growing_files import GrowingFiles
from fsdata.growing.segment import SideFile
from fsdata.growing.watermark import Arrived, modified_at, stamps_of
from fsdata.options import seconds
from fsdata.sources import expressions
from fsdata.tables.join import Join

_LOG = logging.getLogger("fsdata")
_WARNED_AFTER_NS = 60 * 10**9  # since a file was changed that is still not whole


@dataclass(slots=True)
class _Waiting:
    """A file, modified at some time, of whose keys these, int64 [n], have no match yet; `sides`: the files that hold
    the matches of the others."""

    modified: int
    keys: np.ndarray
    sides: set[SideFile] = field(default_factory=set)


class LateTable:
    """One side table that is followed.

    Files older by more than `wait` than all rows that may still need them are forgotten.

    Args:
        number: position of the join in its source.
        main: files of the source that rows come from.
    """

    def __init__(self, number: int, join: Join, main: GrowingFiles, files: GrowingFiles) -> None:
        assert isinstance(join.source.follow, Follow)
        self.label = files.label
        self._number = number
        self._join = join
        self._main = main
        self._files = files
        self._wait_ns = int(join.wait_s * 10**9)
        self._lag_ns = int(seconds(join.source.follow.lag, "lag") * 10**9)
        self._held: dict[str, tuple[int, str, np.ndarray]] = {}  # name -> modified, digest, keys
        self._found: dict[tuple[str, tuple[int, int]], int] = {}  # name, stamp -> when it was found
        self._waiting: dict[str, _Waiting] = {}
        self._warned: set[str] = set()

    def look(self, since: int) -> bool:
        """Read the keys of files that have come; True if there were any.

        since: ns; no row that comes from now on is in a file older than that.
        """
        source = self._files.source
        try:
            listing = discover(source.path_list, source.filesystem).below(self._files.root[1])
        except FileNotFoundError:
            return False
        now = time.time_ns()
        oldest, settled = since - self._wait_ns, now - self._lag_ns
        stamps = stamps_of(listing)
        self._found = {each: self._found.get(each, now) for each in stamps.items()}
        there = {name: modified_at(stamp, self._found[name, stamp]) for name, stamp in stamps.items()}
        self._held = {name: of for name, of in self._held.items() if of[0] >= oldest}
        new = [name for name, at in there.items() if name not in self._held and oldest <= at <= settled]
        if not new:
            return False
        catalog, faults = self._files.open_more(self._files.named(new))
        for name, error in faults:
            if name not in self._warned and there[name] <= settled - _WARNED_AFTER_NS:
                self._warned.add(name)
                _LOG.warning("%s: not whole, rows wait for its matches in vain: %s", self.label, error)
        for number, name in enumerate(catalog.files.names()):
            keys = _keys(self._files, name, self._join.on)
            self._held[name] = there[name], catalog.digest(number), keys
            for waiting in self._waiting.values():
                self._match(waiting, name)
        return len(catalog) > 0

    def is_ready(self, file: Arrived, now: int) -> bool:
        """Whether all rows of a file have a match, or have waited long enough. now: ns."""
        if file.name not in self._waiting or self._waiting[file.name].modified != file.modified:
            keys = np.unique(_keys(self._main, file.name, self._join.on))
            self._waiting[file.name] = waiting = _Waiting(file.modified, keys)
            for name in self._held:
                self._match(waiting, name)
        return not len(self._waiting[file.name].keys) or now - file.modified >= self._wait_ns

    def take(self, file: Arrived) -> tuple[SideFile, ...]:
        """The files that hold the matches of a file, which is read now."""
        return tuple(sorted(self._waiting.pop(file.name).sides))

    def _match(self, waiting: _Waiting, name: str) -> None:
        _, digest, keys = self._held[name]
        found = np.isin(waiting.keys, keys)
        if found.any():
            waiting.sides.add((self._number, name, digest))
            waiting.keys = waiting.keys[~found]


def _keys(files: GrowingFiles, name: str, on: str) -> np.ndarray:
    """int64 [n], the keys of the rows that the filter keeps."""
    source = files.source
    column = source.columns.get(on, on)
    if not isinstance(column, str):
        raise SchemaError(f"{files.label}: the key {on!r} of a side table that is followed has to be a column")
    condition = source.condition
    with open_file(files.named([name])[0]) as handle:
        parquet = parquet_file(handle)
        there = {
            name: names_at(parquet.schema_arrow, name) for name in (column, *(condition.columns if condition else ()))
        }
        filtered = condition is not None and all(there.values())
        wanted = {names[0] for name, names in there.items() if names and (filtered or name == column)}
        table = parquet.read(columns=sorted(wanted), use_threads=False).combine_chunks()
    rows = table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)
    keys = array_at(rows, column)
    if column in source.declared:
        keys = expressions.as_declared(column, keys, source.declared[column])
    if condition is not None and filtered:
        read = pa.RecordBatch.from_arrays([array_at(rows, name) for name in condition.columns], list(condition.columns))
        (mask,) = expressions.evaluate([condition], [pa.bool_()], read)
        keys = keys.filter(mask)
    keys = pc.drop_null(keys)

    def bad(kind: str, rows: np.ndarray, what: str) -> None:
        raise DataError(f"{files.label}, {name}: {on}: {what}")

    return widen.convert(keys, "id", bad).to_numpy(zero_copy_only=False)


def sides_of(tables: Sequence[LateTable], file: Arrived) -> tuple[SideFile, ...]:
    """The files of all late side tables that a file needs."""
    return tuple(side for table in tables for side in table.take(file))
