"""Writes the files of a table, one after the other."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.write.histories.events.layout import Layout
from freescale_tools.write.histories.existing import file_name

_WRITER: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "version": "2.6"}


class TableWriter:
    """The files of a table, below `folder`. Row groups come in order of their buckets.

    Every bucket gets its file, also one without keys. Keys and times are stored as deltas, as both ascend.
    """

    def __init__(self, folder: Path, layout: Layout, buckets: int) -> None:
        self.bytes = 0
        self.schema = layout.table_schema(buckets)
        self._folder = folder
        self._buckets = buckets
        deltas = {layout.by, f"{layout.time}.list.element"}
        self._options = {
            **_WRITER,
            "use_dictionary": [f"{name}.list.element" for name in layout.fields],
            "column_encoding": dict.fromkeys(sorted(deltas), "DELTA_BINARY_PACKED"),
        }
        self._bucket = -1
        self._open: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._advance(self._buckets)
        elif self._open is not None:
            self._open.close()

    def write(self, bucket: int, rows: pa.Table) -> None:
        """Append a row group to the file of `bucket`."""
        self._advance(bucket)
        assert self._open is not None
        self._open.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def _advance(self, bucket: int) -> None:
        """Finish all files before that of `bucket`, and open it if there is such a bucket."""
        while self._bucket < bucket:
            self._finish()
            self._bucket += 1
            if self._bucket < self._buckets:
                self._open = pq.ParquetWriter(self._path(), self.schema, **self._options)

    def _finish(self) -> None:
        if self._open is None:
            return
        self._open.close()
        self._open = None
        with open(self._path(), "rb") as handle:
            os.fsync(handle.fileno())
        self.bytes += self._path().stat().st_size

    def _path(self) -> Path:
        return self._folder / file_name(self._bucket, self._buckets)
