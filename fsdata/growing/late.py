"""Finds the files of late side tables that hold the matches of a file's rows; on rank 0.

Only the keys of files are read here. All ranks then read the rows of the side tables, see `late_side`.
"""

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
_WARNED_AFTER_NS = 60 * 10**9  # since the last modification of a file that is still not whole


@dataclass(slots=True)
class _Waiting:
    """A file of rows that waits for matches.

    Attributes:
        modified: `Arrived.modified` when its keys were read.
        keys: int64 [n], those without a match yet. sides: the files that hold the matches of the others.
    """

    modified: int
    keys: np.ndarray
    sides: set[SideFile] = field(default_factory=set)


class LateTable:
    """One followed side table: holds the keys of its files.

    A file is forgotten when it is older, by more than `wait`, than all rows that may still need it.

    Args:
        number: position of the join in its source.
        main: files of the followed source of rows. files: of the side table.
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
        self._keys: dict[str, tuple[int, str, np.ndarray]] = {}  # name -> modified, digest, keys
        self._first_seen: dict[tuple[str, tuple[int, int]], int] = {}  # name, stamp -> ns
        self._waiting: dict[str, _Waiting] = {}
        self._warned: set[str] = set()

    def look(self, since: int) -> bool:
        """Read the keys of new files; True if there were any.

        since: ns; no row that is still to be read is in a file older than that.
        """
        source = self._files.source
        try:
            listing = discover(source.path_list, source.filesystem).below(self._files.root[1])
        except FileNotFoundError:
            return False
        now = time.time_ns()
        # A match may be older than its row by as much as it may be newer.
        oldest, settled = since - self._wait_ns, now - self._lag_ns
        stamps = stamps_of(listing)
        self._first_seen = {version: self._first_seen.get(version, now) for version in stamps.items()}
        modified = {name: modified_at(stamp, self._first_seen[name, stamp]) for name, stamp in stamps.items()}
        self._keys = {name: entry for name, entry in self._keys.items() if entry[0] >= oldest}
        new = [name for name, at in modified.items() if name not in self._keys and oldest <= at <= settled]
        if not new:
            return False
        catalog, faults = self._files.open_more(self._files.named(new))
        for name, error in faults:
            if name not in self._warned and modified[name] <= settled - _WARNED_AFTER_NS:
                self._warned.add(name)
                _LOG.warning("%s: not whole, rows wait for its matches in vain: %s", self.label, error)
        for number, name in enumerate(catalog.files.names()):
            keys = _keys(self._files, name, self._join.on)
            self._keys[name] = modified[name], catalog.digest(number), keys
            for waiting in self._waiting.values():
                self._match(waiting, name)
        return len(catalog) > 0

    def is_ready(self, file: Arrived, now: int) -> bool:
        """Whether all rows of a file have a match, or have waited for `wait`. now: ns."""
        waiting = self._waiting.get(file.name)
        if waiting is None or waiting.modified != file.modified:  # new, or written again with other rows
            keys = np.unique(_keys(self._main, file.name, self._join.on))
            self._waiting[file.name] = waiting = _Waiting(file.modified, keys)
            for name in self._keys:
                self._match(waiting, name)
        return not len(waiting.keys) or now - file.modified >= self._wait_ns

    def take(self, file: Arrived) -> tuple[SideFile, ...]:
        """The files that hold the matches of a file, which is read now and waits no longer."""
        return tuple(sorted(self._waiting.pop(file.name).sides))

    def _match(self, waiting: _Waiting, name: str) -> None:
        _, digest, keys = self._keys[name]
        matched = np.isin(waiting.keys, keys)
        if matched.any():
            waiting.sides.add((self._number, name, digest))
            waiting.keys = waiting.keys[~matched]


def _keys(files: GrowingFiles, name: str, on: str) -> np.ndarray:
    """int64 [n], the keys of the rows that the filter keeps."""
    source = files.source
    column = source.columns.get(on, on)
    if not isinstance(column, str):
        raise SchemaError(f"{files.label}: the key {on!r} of a followed side table has to be a column")
    condition = source.condition
    with open_file(files.named([name])[0]) as handle:
        parquet = parquet_file(handle)
        columns = (column, *(condition.columns if condition else ()))
        paths = {name: names_at(parquet.schema_arrow, name) for name in columns}
        # A column that this file lacks: its rows are not filtered here, so more matches are waited for than are needed.
        filtered = condition is not None and all(paths.values())
        wanted = {names[0] for name, names in paths.items() if names and (filtered or name == column)}
        table = parquet.read(columns=sorted(wanted), use_threads=False).combine_chunks()
    rows = table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)
    keys = array_at(rows, column)
    if column in source.declared:
        keys = expressions.as_declared(column, keys, source.declared[column])
    if condition is not None and filtered:
        values = [array_at(rows, name) for name in condition.columns]
        batch = pa.RecordBatch.from_arrays(values, list(condition.columns))
        (mask,) = expressions.evaluate([condition], [pa.bool_()], batch)
        keys = keys.filter(mask)
    keys = pc.drop_null(keys)

    def bad(kind: str, rows: np.ndarray, what: str) -> None:
        raise DataError(f"{files.label}, {name}: {on}: {what}")

    return widen.convert(keys, "id", bad).to_numpy(zero_copy_only=False)


def sides_of(tables: Sequence[LateTable], file: Arrived) -> tuple[SideFile, ...]:
    """The files of all late side tables that a file needs."""
    return tuple(side for table in tables for side in table.take(file))
