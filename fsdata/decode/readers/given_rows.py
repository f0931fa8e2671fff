"""Reader of formats beside Parquet, by a `RowSource` of the user."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from fsdata.catalog.binding.bind import bind
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import UNKNOWN, FileList
from fsdata.decode.readers.row_groups import RowGroup, RowGroups
from fsdata.decode.readers.row_reader import BatchReader
from fsdata.errors import Fault
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource, RowSource


class GivenRows(BatchReader):
    """The units of a `RowSource`, as row groups of one file that has its label as name.

    Args:
        wanted: the fields to serve. index, label: see `OpenSource`. notes: see `RowReader`.

    Raises:
        SchemaError: fields cannot be served, in one message.
    """

    def __init__(
        self, source: ParquetSource, wanted: Sequence[Field], *, index: int, label: str, notes: list[Fault] | None
    ) -> None:
        super().__init__(source, label, notes)
        assert source.rows is not None
        self._rows: RowSource = source.rows
        rows = np.array(self._rows.rows, np.int64).reshape(-1)
        self.catalog = Catalog(
            FileList.from_entries([(LocalFileSystem(), self._rows.label, UNKNOWN)]),
            size=np.zeros(1, np.int64),
            digests=np.frombuffer(blake2b(self._rows.identity.encode(), digest_size=16).digest(), np.uint8)[None],
            schema_of=np.zeros(1, np.int32),
            schemas=(self._rows.schema.remove_metadata(),),
            first=np.array([0, len(rows)]),
            rows=rows,
        )
        self.kinds, _ = bind(source, wanted, self.catalog, label, notes=notes)
        everything = np.ones(len(rows), bool)
        self.groups = RowGroups(index, self.catalog, everything, None, source.skip, source.limit)

    @property
    def counted(self) -> dict[Field, Counted]:
        (kind,) = self.kinds
        return {each.field: Counted.from_binding(each, self.label) for each in kind.bindings if each.unit is not None}

    def batch(self, group: RowGroup, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        """See `BatchReader`. Raises ArrowInvalid, which counts as damage, if the source returned something else."""
        made = self._rows.read(group.index, start, stop, names)
        schema = self._rows.schema
        if made.num_rows != stop - start:
            raise pa.ArrowInvalid(f"{made.num_rows} rows where rows {start} to {stop} were asked for")
        wrong = [each for each in made.schema if each.name in names and each.type != schema.field(each.name).type]
        if wrong:
            raise pa.ArrowInvalid(f"column {wrong[0].name!r} is {wrong[0].type}, and the schema says otherwise")
        return made.select(list(names))

    def describe(self) -> dict[str, Any]:
        return {
            "files": 1,
            "pruned_files": 0,
            "pruned_row_groups": 0,
            "row_groups": len(self.groups),
            "rows": int(self.groups.row_counts.sum()),
            "bytes": 0,
            "decoder": {"name": type(self._rows).__name__},
            "schemas": 1,
            "skipped": len(self.skipped),
            "seconds": {},
        }
