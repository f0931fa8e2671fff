"""Scans one table of a source, main or joined, for everything that a loader would stop at."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freescale_tools.check.findings import Finding, merged, mismatches
from freescale_tools.check.row_faults import Checked, Fault, check_fields, check_groups
from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import read_files
from freescale_tools.scan.reading import reading_source
from fsdata.catalog.bind import Binding, FileKind, bind, partition_column
from fsdata.catalog.catalog import catalog_of
from fsdata.catalog.footers import Footer
from fsdata.errors import CorruptFileError, DataError, SchemaError
from fsdata.schema import Field
from fsdata.sources import AsOf, Join, ParquetSource
from fsdata.sources.expressions import Expression, evaluate


class Table:
    """The files of one ParquetSource, and the fields that are wanted from them.

    Args:
        groups: group name -> its list fields, which must have equal lengths.
        label: the name of the table in findings.
        ascending: fields of the files whose lists of times have to ascend.

    `findings` holds faults of files and types; `scan` finds faults of rows. Raises UsageError as `read_files`
    does.
    """

    def __init__(
        self,
        source: ParquetSource,
        wanted: Sequence[Field],
        *,
        groups: Mapping[str, Sequence[str]],
        label: str,
        ascending: Collection[str] = (),
    ) -> None:
        self.source = source
        self._ascending = ascending
        self.label = label
        self.findings: list[Finding] = []
        self._groups = groups
        self._wanted = wanted
        self.footers = self._read()
        self._kinds = self._bind() if self.footers else []

    @property
    def rows(self) -> int:
        return sum(footer.metadata.num_rows for footer in self.footers)

    def keys(self, join: Join | AsOf) -> np.ndarray:
        """The distinct keys of a joined table, int64, ascending. Its faults, also of keys, become findings."""
        found: list[np.ndarray] = []
        for number, footer in enumerate(self.footers):
            for group in range(footer.metadata.num_row_groups):
                findings: list[Finding] = []
                for rows, checked in self._checked(number, group, findings):
                    findings += [self._of(each, rows, footer, group) for each in check_groups(checked, self._groups)]
                    keys, null = checked.keys.get(join.on, (np.empty(0, np.int64), np.empty(0, bool)))
                    alive = ~checked.dropped
                    found.append(keys[alive & ~null] if len(keys) else keys)
                    if len(null) and (null & alive).any():
                        what = f"{int((null & alive).sum())} rows have a null {join.on}"
                        findings.append(self._finding("key", what, footer, group, join.on))
                self.findings += merged(findings)
        keys, counts = np.unique(np.concatenate([np.empty(0, np.int64), *found]), return_counts=True)
        if (counts > 1).any():
            some = ", ".join(str(key) for key in keys[counts > 1][:5])
            what = f"{int((counts > 1).sum())} values of {join.on} stand in more than one row ({some})"
            self.findings.append(Finding(kind="key", source=self.label, what=what, field=join.on))
        return keys

    def scan(self, number: int, group: int, sides: Sequence[tuple[Join, np.ndarray]] = ()) -> list[Finding]:
        """All faults of one row group of file `number`. `sides`: joins with the keys of their tables."""
        found: list[Finding] = []
        footer = self.footers[number]
        for rows, checked in self._checked(number, group, found):
            faults = list(_without_match(checked, sides))
            faults += check_groups(checked, self._groups)
            found += [self._of(fault, rows, footer, group) for fault in faults]
        return merged(found)

    def _read(self) -> list[Footer]:
        if not self.source.path_list:
            raise UsageError(f"{self.label}: a catalog or a table; name the files to check")
        try:
            found = read_files(self.source.path_list, self.source.filesystem)
        except UsageError as error:
            raise UsageError(f"{self.label}: {error}") from error
        for file, answer in found:
            if isinstance(answer, CorruptFileError):
                self.findings.append(Finding(kind="corrupt", source=self.label, what=str(answer), file=file.name))
        return [answer for _, answer in found if isinstance(answer, Footer)]

    def _bind(self) -> list[FileKind | None]:
        """For every file, the fields that can be read from it; None if its rows cannot be read."""
        try:
            kinds, kind_of = bind(self.source, self._wanted, catalog_of(self.footers), self.label)
        except SchemaError as error:
            self.findings += mismatches(error, self.label)
            known: dict[tuple[str, tuple], FileKind | None] = {}
            result = []
            for footer in self.footers:
                key = footer.schema.to_string(), tuple(footer.file.partitions.items())
                if key not in known:
                    known[key] = self._bind_what_fits(footer)
                result.append(known[key])
            return result
        return [kinds[kind] for kind in kind_of]

    def _bind_what_fits(self, footer: Footer) -> FileKind | None:
        bindings: list[Binding] = []
        try:
            (kind,), _ = bind(self.source, [], catalog_of([footer]), self.label)
        except SchemaError:  # the filter does not fit, so it is unknown which rows count
            return None
        for field in self._wanted:
            try:
                bindings += bind(self.source, [field], catalog_of([footer]), self.label)[0][0].bindings
            except SchemaError:
                continue
        return replace(kind, bindings=tuple(bindings))

    def _checked(self, number: int, group: int, found: list[Finding]) -> Iterator[tuple[np.ndarray, Checked]]:
        """(rows of the row group, their checked fields), batch by batch.

        Adds faults of fields and damage to `found`.
        """
        kind, footer = self._kinds[number], self.footers[number]
        if kind is None:
            return
        first = 0
        try:
            with reading_source(footer) as reading:
                for batch in reading.group(group, _needed(kind, self.source)):
                    rows = np.arange(first, first + batch.num_rows)
                    first += batch.num_rows
                    try:
                        kept, columns = _columns(batch, kind, self.source)
                    except (SchemaError, DataError) as error:
                        fault = Fault(kind="expression", field="", rows=np.arange(len(rows)), what=str(error))
                        found.append(self._of(fault, rows, footer, group))
                        continue
                    checked = check_fields(columns, len(kept), self._ascending)
                    found += [self._of(fault, rows[kept], footer, group) for fault in checked.faults]
                    yield rows[kept], checked
        except CorruptFileError as error:
            found.append(self._finding("corrupt", str(error), footer, group, None))

    def _of(self, fault: Fault, rows: np.ndarray, footer: Footer, group: int) -> Finding:
        return replace(self._finding(fault.kind, fault.what, footer, group, fault.field or None), rows=rows[fault.rows])

    def _finding(self, kind: str, what: str, footer: Footer, group: int, field: str | None) -> Finding:
        read_from = None if field is None else self.source.columns.get(field, field)
        return Finding(
            kind=kind,
            source=self.label,
            what=what,
            file=footer.file.name,
            row_group=group,
            field=field,
            column=read_from if isinstance(read_from, str) and read_from in footer.schema.names else None,
        )


def _needed(kind: FileKind, source: ParquetSource) -> list[str]:
    """Columns of the file that fields and filter read; the first column if they read none."""
    names = {binding.column for binding in kind.bindings if binding.origin == "column"}
    for binding in kind.bindings:
        if binding.origin == "expression":
            names.update(source.computed[binding.field.name].columns)
    if source.condition is not None:
        names.update(source.condition.columns)
    return [name for name in kind.schema.names if name in names] or kind.schema.names[:1]


def _columns(
    batch: pa.RecordBatch, kind: FileKind, source: ParquetSource
) -> tuple[np.ndarray, list[tuple[Binding, pa.Array]]]:
    """(rows that the filter keeps, the array of every field that is in the file)."""
    kept = np.arange(batch.num_rows)
    if source.condition is not None:
        mask = pc.fill_null(_evaluate(source.condition, pa.bool_(), batch, kind), False)
        batch, kept = batch.filter(mask), np.flatnonzero(np.asarray(mask.cast(pa.uint8())))
    columns = []
    for binding in kind.bindings:
        if binding.origin == "column":
            columns.append((binding, batch.column(binding.column)))
        elif binding.origin == "expression":
            columns.append((binding, _evaluate(source.computed[binding.field.name], binding.type, batch, kind)))
    return kept, columns


def _evaluate(expression: Expression, type_bound: Any, batch: pa.RecordBatch, kind: FileKind) -> pa.Array:
    arrays = [
        partition_column(kind.partitions[name], batch.num_rows) if name in kind.partitions else batch.column(name)
        for name in expression.columns
    ]
    rows = pa.RecordBatch.from_arrays(arrays, list(expression.columns))
    return evaluate([expression], [type_bound], rows)[0]


def _without_match(checked: Checked, sides: Sequence[tuple[Join, np.ndarray]]) -> Iterator[Fault]:
    """Faults of rows whose key is null or not in the side table, although a joined field needs a value."""
    for join, known in sides:
        if join.on not in checked.keys:
            continue
        keys, null = checked.keys[join.on]
        lost = null | ~np.isin(keys, known)
        policies = {name: join.source.policy(name) for name in join.fields}
        strict = [name for name, policy in policies.items() if policy == "error"]
        rows = np.flatnonzero(lost & ~checked.dropped)
        if strict and len(rows):
            key = "null" if null[rows[0]] else int(keys[rows[0]])
            what = f"{join.on} {key} is not in the side table, which makes {', '.join(strict)} null"
            yield Fault(kind="no match", field=join.on, rows=rows, what=what)
        elif "drop" in policies.values():
            checked.dropped |= lost
