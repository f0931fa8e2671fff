"""Delta Lake and Iceberg tables: the files of one version and their partition values, from the table's metadata.

The libraries that read this metadata are imported here. The files are then read like any Parquet files, with columns
found by their present names in the table. Versions for which this gives wrong rows (deleted rows, renamed columns) are
rejected.
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from fsdata.catalog.catalog import Catalog
from fsdata.catalog.footers import open_file
from fsdata.catalog.listing.file_list import UNKNOWN, FileList, FileRef, Partitions
from fsdata.catalog.listing.find_files import local_version, resolve
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.errors import SchemaError

_INSTALL = "{table}: reading it needs {library}: pip install 'freescale[{extra}]'"
_READER_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping", "deletionVectors"}
_ADVICE = {
    "delta": "Rewrite its files: `REORG TABLE ... APPLY (PURGE)`, or without the feature",
    "iceberg": "Rewrite its files with `rewrite_data_files`",
}
_METADATA = re.compile(r"v?(\d+)(-[^/]*)?(\.gz)?\.metadata\.json(\.gz)?")
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of a table.

    Attributes:
        files: ordered by path; their partitions are typed values.
        version: for messages and saved states, without a path.
        columns: field id -> name, for an Iceberg table whose schema was ever changed; None otherwise.
        ids: column name -> field id, from the table's name mapping, for files without field ids.
    """

    files: FileList
    version: str
    columns: Mapping[int, str] | None = None
    ids: Mapping[str, int] | None = None

    def check_columns(self, catalog: Catalog, label: str) -> None:
        """Raise SchemaError if a column of a file has the name of another column of the table.

        The schemas of the catalog have the field ids, so no footer is read again.
        """
        if self.columns is None:
            return
        first_files = np.unique(catalog.schema_of, return_index=True)[1]
        for file in np.sort(first_files).tolist():
            self._check_schema(catalog.schema(file), self.columns, f"{label}, {catalog.files.name(file)}")

    def _check_schema(self, schema: pa.Schema, columns: Mapping[int, str], where: str) -> None:
        id_of = {name: number for number, name in columns.items()}
        for field in schema:
            raw = (field.metadata or {}).get(_FIELD_ID)
            if raw is None and self.ids is None:
                raise SchemaError(f"{where}: its columns have no field ids, and the table has no name mapping")
            number = int(raw) if raw is not None else (self.ids or {}).get(field.name)
            if number != id_of.get(field.name) and (number in columns or field.name in id_of):
                now = columns.get(-1 if number is None else number, "not there any more")
                raise SchemaError(
                    f"{where}: its column {field.name!r} is {now!r} in the table now, and files are read by name. "
                    + _ADVICE["iceberg"]
                )


class TableFiles(SourceFiles):
    """Files of `ParquetSource(table=...)`."""

    _table: TableVersion | None = None

    def _opened(self) -> Catalog:
        try:
            catalog = super()._opened()
        except FileNotFoundError as error:
            if self._table is None:
                raise  # there is no such table
            raise _missing(self.label, self._table.version, str(error)) from error
        assert self._table is not None
        self._table.check_columns(catalog, self.label)
        self.version = self._table.version
        return catalog

    def _listed(self) -> FileList:
        assert self.source.table is not None
        self._table = open_table(self.source.table, *self.source.table_parts)
        return self._table.files


def open_table(table: str, kind: str, path: str, version: int | None) -> TableVersion:
    """The files of a version. Reads metadata only.

    Args:
        table: the user's argument, for messages.
        kind: "delta" or "iceberg".
        version: for Iceberg the id of a snapshot; None for the newest version.

    Raises:
        ImportError: the library is missing.
        FileNotFoundError: no such table, or one of its files is missing.
        SchemaError: no such version, or one whose files cannot be read as plain Parquet files.
    """
    return (_delta if kind == "delta" else _iceberg)(table, path, version)


def _library(name: str, table: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(_INSTALL.format(table=table, library=name.partition(".")[0], extra=extra)) from error


def _refused(table: str, version: str, why: str, kind: str) -> SchemaError:
    return SchemaError(f"{table}: {version} {why}, and would be read wrongly file by file. {_ADVICE[kind]}")


def _delta(table: str, path: str, version: int | None) -> TableVersion:
    deltalake = _library("deltalake", table, "delta")
    system, root = resolve(path, None)
    location = root if isinstance(system, pafs.LocalFileSystem) else path
    try:
        opened = deltalake.DeltaTable(location, version=version)
    except deltalake.exceptions.TableNotFoundError as error:
        raise FileNotFoundError(f"{table}: no Delta table: {error}") from error
    except deltalake.exceptions.DeltaError as error:
        what = "it" if version is None else f"version {version}, which does not exist, or no more,"
        raise SchemaError(f"{table}: {what} cannot be opened: {error}") from error
    number = opened.version()
    text = f"version {number} of a Delta table, which table='delta:...@{number}' opens"
    protocol, features = opened.protocol(), set(opened.protocol().reader_features or ())
    unknown = sorted(features - _READER_FEATURES)
    if unknown or protocol.min_reader_version > 3:
        what = ", ".join(unknown) or f"reader version {protocol.min_reader_version}"
        raise _refused(table, f"version {number}", f"needs unsupported features: {what}", "delta")
    mode = (opened.metadata().configuration or {}).get("delta.columnMapping.mode") or "none"
    if mode != "none":
        raise _refused(table, f"version {number}", f"maps columns by {mode} (delta.columnMapping.mode)", "delta")
    if "deletionVectors" in features and _has_deleted_rows(opened, deltalake):
        raise _refused(table, f"version {number}", "has deleted rows in its files (deletion vectors)", "delta")
    actions = pa.table(opened.get_add_actions(flatten=False))
    names = [unquote(name) for name in actions["path"].to_pylist()]
    paths = [name if "://" in name else f"{path.rstrip('/')}/{name}" for name in names]
    partitions: list[Partitions] = [{} for _ in paths]
    if "partition" in actions.column_names:
        values = actions["partition"].combine_chunks()
        for key in values.type:
            for partition, value in zip(partitions, values.field(key.name), strict=True):
                partition[key.name] = value
    return TableVersion(files=_listed(table, text, paths, partitions), version=text)


def _has_deleted_rows(opened: Any, deltalake: Any) -> bool:
    try:
        return pa.table(opened.deletion_vectors()).num_rows > 0
    except deltalake.exceptions.DeltaError:
        return True  # this library cannot read them, but there are some


def _iceberg(table: str, path: str, version: int | None) -> TableVersion:
    tables = _library("pyiceberg.table", table, "iceberg")
    arrow = _library("pyiceberg.io.pyarrow", table, "iceberg")
    opened = tables.StaticTable.from_metadata(_metadata_file(table, path))
    snapshot = opened.current_snapshot() if version is None else opened.snapshot_by_id(version)
    if snapshot is None:
        newest = ", ".join(str(existing.snapshot_id) for existing in opened.snapshots()[-5:])
        what = "it has no snapshot" if version is None else f"it has no snapshot {version}, or no more"
        raise SchemaError(f"{table}: {what}; existing snapshots: {newest or 'none'}")
    number = snapshot.snapshot_id
    text = f"snapshot {number} of an Iceberg table, which table='iceberg:...@{number}' opens"
    schema = opened.schema()
    if version is not None and snapshot.schema_id is not None:
        schema = opened.schemas()[snapshot.schema_id]
    if any(getattr(field, "initial_default", None) is not None for field in schema.fields):
        raise _refused(table, f"snapshot {number}", "has columns with defaults that older files lack", "iceberg")
    try:
        tasks = list(opened.scan(snapshot_id=number).plan_files())
    except (ValueError, NotImplementedError) as error:
        raise _refused(table, f"snapshot {number}", f"cannot be planned ({error})", "iceberg") from error
    deletes = sum(bool(task.delete_files) for task in tasks)
    if deletes:
        raise _refused(table, f"snapshot {number}", f"has deleted rows in {deletes} of its files", "iceberg")
    others = sorted({task.file.file_format.name for task in tasks} - {"PARQUET"})
    if others:
        raise SchemaError(f"{table}: snapshot {number} has files of {', '.join(others)}; only Parquet is supported")
    columns = {field.field_id: field.name for field in schema.fields}
    changed = len(opened.schemas()) > 1 or schema.schema_id != 0
    types = {field.name: field.type for field in arrow.schema_to_pyarrow(schema)}
    specs = opened.specs()
    partitions = [_identities(task.file, specs[task.file.spec_id], columns, types) for task in tasks]
    mapping = opened.name_mapping()
    return TableVersion(
        files=_listed(table, text, [task.file.file_path for task in tasks], partitions),
        version=text,
        columns=columns if changed else None,
        ids=None if mapping is None else {name: mapped.field_id for mapped in mapping.root for name in mapped.names},
    )


def _identities(file: Any, spec: Any, columns: Mapping[int, str], types: Mapping[str, pa.DataType]) -> Partitions:
    """The values of identity partitions. Other transforms (bucket, truncate, day) do not determine the column."""
    values: Partitions = {}
    for position, field in enumerate(spec.fields):
        name = columns.get(field.source_id)
        if str(field.transform) == "identity" and name is not None:
            kind = types[name]
            if not isinstance(kind, pa.BaseExtensionType):  # UUIDs are in the files, too
                values[name] = pa.scalar(file.partition[position], kind)
    return values


def _metadata_file(table: str, path: str) -> str:
    """The path itself if it is a metadata file, else the newest metadata file in the table's folder."""
    if path.endswith((".json", ".json.gz")):
        return path
    system, root = resolve(path, None)
    folder = f"{root.rstrip('/')}/metadata"
    if system.get_file_info(folder).type != pafs.FileType.Directory:
        raise FileNotFoundError(f"{table}: no Iceberg table: there is no folder metadata in it")
    names = [info.base_name for info in system.get_file_info(pafs.FileSelector(folder))]
    numbered = {name: int(match[1]) for name in names if (match := _METADATA.fullmatch(name))}
    if "version-hint.text" in names:
        with open_file(FileRef.from_path(system, f"{folder}/version-hint.text")) as file:
            newest = int(json.loads(file.read()))
    else:
        newest = max(numbered.values(), default=-1)
    candidates = [name for name, number in numbered.items() if number == newest]
    if len(candidates) != 1:  # two writers: only the table's catalog shows which of them committed
        what = f"{len(candidates)} metadata files of number {newest}" if candidates else "no metadata file"
        raise SchemaError(f"{table}: {what}: give the file itself, whose path is in the table's catalog")
    return f"{path.rstrip('/')}/metadata/{candidates[0]}"


def _listed(table: str, version: str, paths: Sequence[str], partitions: Sequence[Partitions]) -> FileList:
    if not paths:
        raise SchemaError(f"{table}: {version}: has no files")
    systems: list[pafs.FileSystem] = []
    order = sorted(range(len(paths)), key=lambda number: paths[number])

    def entries() -> Iterator[tuple[pafs.FileSystem, str, tuple[int, int, int]]]:
        for number in order:
            system, path = resolve(paths[number], None)
            # One filesystem object for equal ones: a `FileList` has each folder once per filesystem object.
            system = next((other for other in systems if other.equals(system)), system)
            if system not in systems:
                systems.append(system)
            local = isinstance(system, pafs.LocalFileSystem)
            yield system, path, _version_of(table, version, path) if local else UNKNOWN

    return FileList.from_entries(entries(), partitions=[partitions[number] for number in order])


def _version_of(table: str, version: str, path: str) -> tuple[int, int, int]:
    try:
        return local_version(path)
    except FileNotFoundError as error:
        raise _missing(table, version, path) from error


def _missing(table: str, version: str, what: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{table}: {version}: a file of it is gone: {what}. Vacuum or the expiry of snapshots removes files of old "
        "versions: open a later one"
    )
