"""Delta Lake and Iceberg tables: which files one version consists of, and their partition values, by its own metadata.

The libraries that read this metadata are imported here. Files are read as Parquet files of the names that the table's
schema has now; what would need more than that (deleted rows, other names in older files) is refused.
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fsdata.catalog.footers import open_file
from fsdata.catalog.listing.file_list import UNKNOWN, FileList, FileRef, Partitions
from fsdata.catalog.listing.find_files import local_version, resolve
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
        files: in the order of their paths; their partitions are values with types.
        version: for messages and saved states, without a path.
        columns: field id -> name, of an Iceberg table whose columns were changed; names: name in files without ids ->
            field id.
    """

    files: FileList
    version: str
    columns: Mapping[int, str] | None = None
    names: Mapping[str, int] | None = None

    def check_files(self, files: FileList, threads: int, label: str) -> None:
        """Raise SchemaError if a column of a file is another column of the table than its name says.

        Reads the footers of all files, where the table's columns were ever changed.
        """
        if self.columns is None:
            return
        with ThreadPoolExecutor(threads) as pool:
            schemas = pool.map(lambda file: pq.read_schema(file.path, filesystem=file.filesystem), files)
            for name, schema in zip(files.names(), schemas, strict=True):
                self._check(schema, self.columns, f"{label}, {name}")

    def _check(self, schema: pa.Schema, columns: Mapping[int, str], where: str) -> None:
        ids = {name: number for number, name in columns.items()}
        for field in schema:
            raw = (field.metadata or {}).get(_FIELD_ID)
            if raw is None and self.names is None:
                raise SchemaError(f"{where}: its columns have no field ids, and the table has no name mapping")
            number = int(raw) if raw is not None else (self.names or {}).get(field.name)
            if number != ids.get(field.name) and (number in columns or field.name in ids):
                now = columns.get(-1 if number is None else number, "not there any more")
                raise SchemaError(
                    f"{where}: its column {field.name!r} is {now!r} in the table now, and files are read by name. "
                    + _ADVICE["iceberg"]
                )


def open_table(table: str, kind: str, path: str, version: int | None) -> TableVersion:
    """The files of a version, the newest if `version` is None. Reads metadata only.

    Args:
        table: what the user gave, for messages.
        kind: "delta" or "iceberg"; version: of Iceberg the id of a snapshot.

    Raises:
        ImportError: the library is missing.
        FileNotFoundError: no such table, or a file of it is gone.
        SchemaError: no such version, or one that cannot be read file by file.
    """
    return (_delta if kind == "delta" else _iceberg)(table, path, version)


def _library(name: str, table: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(_INSTALL.format(table=table, library=name.partition(".")[0], extra=extra)) from error


def _refuse(table: str, version: str, why: str, kind: str) -> SchemaError:
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
        raise _refuse(table, f"version {number}", f"needs what is not known here: {what}", "delta")
    mode = (opened.metadata().configuration or {}).get("delta.columnMapping.mode") or "none"
    if mode != "none":
        raise _refuse(table, f"version {number}", f"maps columns by {mode} (delta.columnMapping.mode)", "delta")
    if "deletionVectors" in features and _has_deleted_rows(opened, deltalake):
        raise _refuse(table, f"version {number}", "has deleted rows in its files (deletion vectors)", "delta")
    actions = pa.table(opened.get_add_actions(flatten=False))
    found = [unquote(each) for each in actions["path"].to_pylist()]
    paths = [each if "://" in each else f"{path.rstrip('/')}/{each}" for each in found]
    partitions: list[Partitions] = [{} for _ in paths]
    if "partition" in actions.column_names:
        values = actions["partition"].combine_chunks()
        for kind in values.type:
            for of_file, value in zip(partitions, values.field(kind.name), strict=True):
                of_file[kind.name] = value
    return TableVersion(files=_listed(table, text, paths, partitions), version=text)


def _has_deleted_rows(opened: Any, deltalake: Any) -> bool:
    try:
        return pa.table(opened.deletion_vectors()).num_rows > 0
    except deltalake.exceptions.DeltaError:
        return True  # there are some, which this library cannot read


def _iceberg(table: str, path: str, version: int | None) -> TableVersion:
    tables = _library("pyiceberg.table", table, "iceberg")
    arrow = _library("pyiceberg.io.pyarrow", table, "iceberg")
    opened = tables.StaticTable.from_metadata(_metadata_file(table, path))
    snapshot = opened.current_snapshot() if version is None else opened.snapshot_by_id(version)
    if snapshot is None:
        there = ", ".join(str(each.snapshot_id) for each in opened.snapshots()[-5:])
        what = "it has no snapshot" if version is None else f"it has no snapshot {version}, or no more"
        raise SchemaError(f"{table}: {what}; snapshots that are there: {there or 'none'}")
    number = snapshot.snapshot_id
    text = f"snapshot {number} of an Iceberg table, which table='iceberg:...@{number}' opens"
    schema = opened.schema()
    if version is not None and snapshot.schema_id is not None:
        schema = opened.schemas()[snapshot.schema_id]
    if any(getattr(field, "initial_default", None) is not None for field in schema.fields):
        raise _refuse(table, f"snapshot {number}", "has columns with defaults that older files lack", "iceberg")
    try:
        tasks = list(opened.scan(snapshot_id=number).plan_files())
    except (ValueError, NotImplementedError) as error:
        raise _refuse(table, f"snapshot {number}", f"cannot be planned ({error})", "iceberg") from error
    deletes = sum(bool(task.delete_files) for task in tasks)
    if deletes:
        raise _refuse(table, f"snapshot {number}", f"has deleted rows in {deletes} of its files", "iceberg")
    others = sorted({task.file.file_format.name for task in tasks} - {"PARQUET"})
    if others:
        raise SchemaError(f"{table}: snapshot {number} has files of {', '.join(others)}, and Parquet is read")
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
        names=None if mapping is None else {name: each.field_id for each in mapping.root for name in each.names},
    )


def _identities(file: Any, spec: Any, columns: Mapping[int, str], types: Mapping[str, pa.DataType]) -> Partitions:
    """The values of columns by which files are divided as they are; of a transformed column nothing is known."""
    found: Partitions = {}
    for place, field in enumerate(spec.fields):
        name = columns.get(field.source_id)
        if str(field.transform) == "identity" and name is not None:
            kind = types[name]
            if not isinstance(kind, pa.BaseExtensionType):  # UUIDs are in the files, too
                found[name] = pa.scalar(file.partition[place], kind)
    return found


def _metadata_file(table: str, path: str) -> str:
    """The metadata file itself, or the newest of a table's folder."""
    if path.endswith((".json", ".json.gz")):
        return path
    system, root = resolve(path, None)
    folder = f"{root.rstrip('/')}/metadata"
    if system.get_file_info(folder).type != pafs.FileType.Directory:
        raise FileNotFoundError(f"{table}: no Iceberg table: there is no folder metadata in it")
    names = [each.base_name for each in system.get_file_info(pafs.FileSelector(folder))]
    numbered = {name: int(match[1]) for name in names if (match := _METADATA.fullmatch(name))}
    if "version-hint.text" in names:
        with open_file(FileRef.from_path(system, f"{folder}/version-hint.text")) as file:
            newest = int(json.loads(file.read()))
    else:
        newest = max(numbered.values(), default=-1)
    found = [name for name, number in numbered.items() if number == newest]
    if len(found) != 1:
        what = f"{len(found)} metadata files of number {newest}" if found else "no metadata file"
        raise SchemaError(f"{table}: {what}: give the file itself, which the table's catalog knows")
    return f"{path.rstrip('/')}/metadata/{found[0]}"


def _listed(table: str, version: str, paths: Sequence[str], partitions: Sequence[Partitions]) -> FileList:
    if not paths:
        raise SchemaError(f"{table}: {version}: has no files")
    systems: list[pafs.FileSystem] = []
    order = sorted(range(len(paths)), key=lambda number: paths[number])

    def found() -> Iterator[tuple[pafs.FileSystem, str, tuple[int, int, int]]]:
        for number in order:
            system, path = resolve(paths[number], None)
            system = next((each for each in systems if each.equals(system)), system)
            if system not in systems:
                systems.append(system)
            local = isinstance(system, pafs.LocalFileSystem)
            yield system, path, _version_of(table, version, path) if local else UNKNOWN

    return FileList.from_entries(found(), partitions=[partitions[number] for number in order])


def _version_of(table: str, version: str, path: str) -> tuple[int, int, int]:
    try:
        return local_version(path)
    except FileNotFoundError as error:
        raise gone(table, version, path) from error


def gone(table: str, version: str, what: str) -> FileNotFoundError:
    """A file of the version is not there."""
    return FileNotFoundError(
        f"{table}: {version}: a file of it is gone: {what}. Vacuum or the expiry of snapshots removes files of old "
        "versions: open a later one"
    )
