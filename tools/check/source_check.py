"""Checks a source against a schema and lists everything that a loader would stop at.

Every row group is read as the loader reads it. If that fails, or if the files do not fit the schema, the row
group is scanned field by field and every faulty row is noted.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freescale_tools.check.findings import Finding, mismatches
from freescale_tools.check.table_scan import Table
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from fsdata import ParquetSource, Schema
from fsdata.decode.files.row_groups import RowGroup
from fsdata.decode.opened_source import OpenSource, open_source
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.errors import CorruptFileError, DataError, SchemaError
from fsdata.schema import Field, fields_of
from fsdata.sources import AsOf, Join


class SourceCheck:
    """The check of one source. Its creation finds the files and reads their footers; `run` reads the rows.

    Raises UsageError if the source has no files, or if they cannot be reached.
    """

    def __init__(self, source: ParquetSource, schema: Schema, *, index: int) -> None:
        self.label = f"source {index} ({source.label})"
        self._schema = schema
        self._findings: list[Finding] = []
        joined = {name for join in source.join for name in join.fields}
        wanted = [field for field in fields_of(schema) if field.name not in joined]
        wanted += [Field(key, "join_key") for key in dict.fromkeys(join.on for join in source.join)]
        histories = [join for join in source.join if isinstance(join, AsOf)]
        wanted += [Field(name, "row_time") for name in dict.fromkeys(join.at for join in histories)]
        wanted += [] if schema.time is None else [Field(schema.time, "time")]
        groups = _groups(schema)
        self._table = Table(source, wanted, groups=groups, label=self.label)
        self._sides = [(join, self._side(join, groups)) for join in source.join if isinstance(join, Join)]
        self._histories = [self._of_histories(join) for join in histories]
        self._opened = self._open(_tolerant(source), index)

    @property
    def rows(self) -> int:
        return self._table.rows

    @property
    def opened(self) -> OpenSource | None:
        """The open source; None if its files do not fit the schema."""
        return self._opened

    def run(self, progress: Progress) -> list[Finding]:
        """Read all rows and return everything that was found."""
        groups = {} if self._opened is None else {(one.file, one.index): one for one in self._opened.groups}
        layout = (
            None
            if self._opened is None
            else layout_of(self._schema, self._opened.list_labels, texts=self._opened.texts)
        )
        rows_found: list[Finding] = []
        for number, footer in enumerate(self._table.footers):
            for group, rows in enumerate(footer.row_groups):
                if rows:
                    rows_found += self._group(number, group, groups.get((number, group)), layout)
                progress.advance(rows=rows)
        return [*self._findings, *self._of_files(), *rows_found]

    def _of_histories(self, join: AsOf) -> Table:
        """The table of histories, all of whose rows were looked at."""
        served = [field for field in fields_of(self._schema) if field.name in join.fields]
        served += [
            *(Field(name, "event_times") for name in join.times),
            *(Field(name, "event_ids") for name in join.only_read),
        ]
        table = Table(
            join.source,
            [*served, Field(join.on, "join_key")],
            groups={"histories": [field.name for field in served]},
            label=f"{self.label}, histories {join.source.label}",
            ascending=(join.time,),
        )
        table.keys(join)
        return table

    @functools.cached_property
    def _keys(self) -> list[tuple[Join, np.ndarray]]:
        """Keys of the side tables.

        The scan runs once, when it is first needed, and notes the tables' own faults.
        """
        return [(join, table.keys(join)) for join, table in self._sides]

    def _side(self, join: Join, groups: Mapping[str, Sequence[str]]) -> Table:
        served: list[Field] = [field for field in fields_of(self._schema) if field.name in join.fields]
        label = f"{self.label}, side table {join.source.label}"
        return Table(join.source, [*served, Field(join.on, "join_key")], groups=groups, label=label)

    def _open(self, source: ParquetSource, index: int) -> OpenSource | None:
        """Open the source as a loader does. If that fails, note the reason and return None."""
        tables = (self._table, *(table for _, table in self._sides), *self._histories)
        listed = any(table.findings for table in tables)
        try:
            return open_source(source, self._schema, index=index)
        except SchemaError as error:
            if not listed:
                self._findings += mismatches(error, self.label)
        except CorruptFileError:  # no file is readable, and each of them is already listed
            pass
        except DataError as error:
            if not any(table.findings for table in self._histories):
                self._findings.append(Finding(kind="data", source=self.label, what=str(error)))
        return None

    def _group(self, number: int, group: int, as_opened: RowGroup | None, layout: Layout | None) -> list[Finding]:
        if self._opened is None or as_opened is None or layout is None:
            return self._table.scan(number, group, self._keys)
        try:
            self._opened.read(as_opened, layout, 0, as_opened.rows)
            if self._schema.time is not None:
                self._opened.read_times(as_opened)
        except DataError as error:
            found = self._table.scan(number, group, self._keys)
            file = self._table.footers[number].file.name
            return found or [Finding(kind="data", source=self.label, what=str(error), file=file, row_group=group)]
        return []

    def _of_files(self) -> list[Finding]:
        """Findings about files, types, and row groups that could not be decoded."""
        tables = (self._table, *(table for _, table in self._sides), *self._histories)
        found = [one for table in tables for one in table.findings]
        if self._opened is not None:
            found += [
                Finding(kind="corrupt", source=self.label, what=one.reason, file=one.file, row_group=one.row_group)
                for one in self._opened.skipped
                if one.row_group is not None
            ]
        return found

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def label_forms(checks: Sequence[SourceCheck]) -> list[Finding]:
    """Findings about labels that are a list in one source and a number in another, and about passthrough fields that
    are text in one source and an integer in another."""
    opened = [check for check in checks if check.opened is not None]
    lists = {name for check in opened for name in check.opened.list_labels}  # type: ignore[union-attr]
    texts = {name for check in opened for name in check.opened.texts}  # type: ignore[union-attr]
    found = []
    for check in opened:
        assert check.opened is not None
        for name in sorted(texts - check.opened.texts):
            what = f"{name}: an integer here, text in another source; all must agree"
            found.append(Finding(kind="mismatch", source=check.label, what=what, field=name))
        for name in sorted(lists - check.opened.list_labels - check.opened.default_labels):
            what = f"{name}: one number per sample here, a list in another source; all must agree"
            found.append(Finding(kind="mismatch", source=check.label, what=what, field=name))
    return found


def document(findings: Sequence[Finding], *, sources: Sequence[SourceCheck], schema: str) -> dict[str, Any]:
    """The JSON document: all findings with all rows, and counts by kind."""
    counts: Counter[str] = Counter()
    for one in findings:
        counts[one.kind] += one.count
    return {
        **header("check"),
        "schema": schema,
        "sources": [{"source": check.label, "rows": check.rows} for check in sources],
        "rows": sum(check.rows for check in sources),
        "counts": dict(counts),
        "found": [one.to_dict() for one in findings],
    }


def _groups(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Groups of fields with equal lengths.

    List labels belong to the candidates; other labels have no length.
    """
    groups = {group.name: group.all_fields for group in schema.groups}
    if schema.candidates is not None:
        groups["candidates"] += schema.labels
    return groups


def _tolerant(source: ParquetSource) -> ParquetSource:
    """The same source, but it skips damaged files."""
    joins = [replace(join, source=replace(join.source, on_error="skip")) for join in source.join]
    return replace(source, on_error="skip", join=joins)
