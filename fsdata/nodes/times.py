"""The times of all rows, by which `mix="time"` merges sources."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import numpy as np

from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.decode.opened_source import OpenSource

SHARED_FROM = 1 << 20  # rows; with fewer, every process reads the times itself
_VERSION = 1
_TIMES = "times"


class Times:
    """The sort keys of `fsdata.order.mix` by time, 8 bytes a row. The constructor reads the time columns and blocks.

    With many rows, one process of a host reads them, and the others wait and map the same memory.

    Raises: as `OpenSource.read_times`.
    """

    def __init__(self, sources: Sequence[OpenSource], time: str, threads: int) -> None:
        """time: `Schema.time`."""
        self._field = time
        self._shared: list[SharedArrays] = []
        self._times = [self._of(source, threads) for source in sources]
        self._ends = [np.cumsum(source.groups.row_counts) for source in sources]
        self._rows = [source.groups.row_counts for source in sources]

    def __call__(self, source: int, group: int) -> np.ndarray:
        """int64 [rows] of a row group, read-only."""
        end = int(self._ends[source][group])
        return self._times[source][end - int(self._rows[source][group]) : end]

    def _of(self, source: OpenSource, threads: int) -> np.ndarray:
        def make(_: Path | None) -> Arrays:
            return {_TIMES: _read(source, threads)}

        if int(source.groups.row_counts.sum()) < SHARED_FROM:
            return make(None)[_TIMES]
        contents = repr(
            (_VERSION, self._field, sorted(source.fingerprint.items()), source.opened.catalog.files.identity)
        )
        name = f"times{blake2b(contents.encode(), digest_size=16).hexdigest()}"
        self._shared.append(SharedArrays(name, make, f"{source.label}, its times"))
        return self._shared[-1][_TIMES]


def _read(source: OpenSource, threads: int) -> np.ndarray:
    groups = [source.groups[number] for number in range(len(source.groups))]
    if threads == 1 or len(groups) < 2:
        return np.concatenate([np.empty(0, np.int64), *map(source.read_times, groups)])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fsdata-times")
    try:
        return np.concatenate([np.empty(0, np.int64), *pool.map(source.read_times, groups)])
    finally:
        pool.shutdown(cancel_futures=True)
