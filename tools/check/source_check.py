"""Reads a source as a loader with a schema does, and lists everything that the loader would stop at.

No rule is written here: fsdata binds, decodes and joins the rows, and notes each fault where a loader raises the first
one (`fsdata.errors.Fault`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.files import out_of_reach
from fsdata import ParquetSource, Schema
from fsdata.compose.reading import open_source
from fsdata.decode.opened_source import OpenSource, other_forms
from fsdata.decode.row_layout import layout_of
from fsdata.errors import CorruptFileError, DataError, Fault, SchemaError
from fsdata.sources.source import Joined
from fsdata.tables.join import Join


class SourceCheck:
    """The check of one source. Its creation opens the files and reads joined tables; `run` reads the rows.

    Attributes:
        opened: None if its files are of no use without what has been found of them.

    Raises UsageError if the source has no files, or if they cannot be reached.
    """

    def __init__(self, source: ParquetSource, schema: Schema, *, index: int) -> None:
        self.label = f"source {index} ({source.label})"
        self._schema = schema
        self._map = source.map
        self._tables = {self.label: source}
        self._notes: list[Fault] = []
        self.opened: OpenSource | None = None
        # The files that are there now; damaged ones are left out and noted.
        now: dict[str, Any] = {"on_error": "skip", "follow": None}
        joined: list[Joined] = []
        for join in source.join:
            self._tables[join.label(self.label)] = join.source
            table = replace(join.source, **now)
            joined.append(
                replace(join, source=table, wait=None) if isinstance(join, Join) else replace(join, source=table)
            )
        try:
            self.opened = open_source(replace(source, **now, join=joined), schema, index=index, notes=self._notes)
        except FileNotFoundError as error:
            raise UsageError(f"{self.label}: {error}") from error
        except CorruptFileError:  # no file is readable, and each of them is noted
            pass
        except (SchemaError, DataError) as error:
            kind = "mismatch" if isinstance(error, SchemaError) else "data"
            if all(fault.kind != kind for fault in self._notes):
                self._notes.append(Fault(kind=kind, label=self.label, what=str(error)))
        except (OSError, pa.ArrowException) as error:
            raise out_of_reach([self.label], error) from error

    @property
    def rows(self) -> int:
        """All rows that are read; 0 if there are none to be read."""
        return 0 if self.opened is None else int(self.opened.groups.row_counts.sum())

    def run(self, progress: Progress) -> list[Fault]:
        """Read all rows and return everything that was found."""
        opened = self.opened
        if opened is not None:
            layout = layout_of(self._schema, opened.list_labels, texts=opened.texts)
            for group in opened.groups:
                try:
                    opened.read(group, layout, 0, group.rows)
                    if self._schema.time is not None:
                        opened.read_times(group)
                except DataError as error:
                    opened.opened.faults_of(group).found("data", None, None, str(error))
                except Exception as error:
                    if self._map is None or isinstance(error, OSError):
                        raise
                    what = f"map raised {type(error).__name__}: {error}"
                    opened.opened.faults_of(group).found("data", None, None, what)
                progress.advance(rows=group.rows)
        # One fault of each kind and field in a row group, whatever batches it was decoded in; in order of the first.
        merged: dict[tuple[Any, ...], Fault] = {}
        for one in self._notes:
            key = one.kind, one.label, one.file, one.row_group, one.field, one.what if one.rows is None else None
            before = merged.setdefault(key, one)
            if before.rows is not None and one.rows is not None and before is not one:
                merged[key] = replace(before, rows=np.union1d(before.rows, one.rows))
        return list(merged.values())

    def column(self, fault: Fault) -> str | None:
        """The column of the file that the field of a fault is read from; None if it is of no one column."""
        table = self._tables.get(fault.label)
        if table is None or fault.file is None or fault.field is None or fault.kind == "ragged":
            return None
        name = table.columns.get(fault.field, fault.field)
        return name if isinstance(name, str) else None

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def check_forms(checks: Sequence[SourceCheck], schema: Schema) -> list[Fault]:
    """Faults of fields that have another form in one source than in those before it."""
    found = other_forms([check.opened for check in checks if check.opened is not None], schema)
    return [Fault(kind="mismatch", label=source.label, what=what, field=name) for name, source, what in found]
