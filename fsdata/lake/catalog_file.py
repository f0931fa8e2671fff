"""A catalog as one Parquet file, written once: a job that reads it plans without listing folders or reading footers.

Each row of it is a file: folder and name under one root, size, time of modification, digest of the footer, number of
the schema, the rows of each row group, and bounds of columns if they were requested. The root and the schemas are in
the key-value metadata.

A catalog may be out of date or damaged, so nothing in it is trusted: `read_catalog_file` checks what planning relies
on, `CatalogFiles` compares files that are not opened with their folders, and `OpenFiles` compares the others with their
footers.
"""

import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fsdata.catalog.catalog import Catalog
from fsdata.catalog.footers import open_file
from fsdata.catalog.listing.file_list import FileList, FileRef, Version, folder_of
from fsdata.catalog.listing.find_files import found_now, resolve
from fsdata.catalog.retry import Retrying, unreachable
from fsdata.decode.readers.open_files import ExpectedFile
from fsdata.decode.readers.row_groups import left_out
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.errors import CorruptFileError, SchemaError

VERSION = 2
_KEY = b"freescale.catalog"
_COLUMNS = pa.schema(
    [
        ("folder", pa.dictionary(pa.int32(), pa.string())),
        ("name", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.int64()),
        ("digest", pa.binary(16)),
        ("schema", pa.int32()),
        ("rows", pa.list_(pa.int64())),
    ]
)
_BOUNDS = ("least of ", "greatest of ")
_MOST_ROWS = 1 << 62
_SCHEMES = {"s3": "s3://", "gcs": "gs://"}  # a URL is enough to open these filesystems


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write the file atomically.

    Raises:
        SchemaError: files of more than one filesystem or bucket.
        OSError: it cannot be written.
    """
    files = catalog.files
    filesystem = files.folders[0].filesystem
    if any(not folder.filesystem.equals(filesystem) for folder in files.folders):
        raise SchemaError("a catalog has files of one filesystem: make one for each")
    if filesystem.type_name in _SCHEMES and not files.base:
        raise SchemaError("a catalog has files of one bucket: make one for each")
    folders = pa.array([folder.path[len(files.base) :] for folder in files.folders], pa.string())
    names = pa.array([file.path.rpartition("/")[2] for file in files], pa.string())
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(files.folder), folders),
        names,
        pa.array(catalog.size),
        pa.array(files.versions[:, 1]),
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(files), [None, pa.py_buffer(catalog.digests.tobytes())]
        ),
        pa.array(catalog.schema_of),
        pa.ListArray.from_arrays(pa.array(catalog.first, pa.int32()), pa.array(catalog.rows)),
        *(
            pa.ListArray.from_arrays(pa.array(catalog.first, pa.int32()), pa.array(end))
            for bounds in catalog.bounds.values()
            for end in bounds
        ),
    ]
    head = {
        "version": VERSION,
        "root": _SCHEMES.get(filesystem.type_name, "") + files.base,
        "filesystem": filesystem.type_name,
        "bounds": list(catalog.bounds),
        "schemas": [base64.b64encode(schema.serialize()).decode() for schema in catalog.schemas],
    }
    table = pa.Table.from_arrays(columns, schema=_columns(head).with_metadata({_KEY: json.dumps(head).encode()}))
    # A running job may be reading the old catalog: replacing the file leaves that one whole.
    half = path.with_name(f".{path.name}.half")
    try:
        pq.write_table(table, half, compression="zstd", write_page_checksum=True)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def read_catalog_file(path: str | Path, filesystem: Any = None, retry: Retrying | None = None) -> Catalog:
    """The catalog as it was written, checked for consistency. Its files are not opened.

    filesystem: of the files; not needed for local files and for plain URLs of S3 and GCS.

    Raises:
        FileNotFoundError: no such catalog. PermissionError, ConnectionError: it cannot be reached.
        SchemaError: not a catalog, a damaged one, or one of another version or filesystem.
    """
    again = "Make it again with `freescale catalog`"
    file = FileRef.from_path(*resolve(str(path), None))
    try:
        table = (retry or Retrying()).call(lambda: _read(file), file)
        head = json.loads((table.schema.metadata or {})[_KEY])
        if head["version"] != VERSION:
            raise SchemaError(f"{path}: a catalog of version {head['version']}, this one reads {VERSION}. {again}")
        catalog = _catalog(path, head, table, filesystem)
        pa.default_memory_pool().release_unused()  # decoding needs several times the memory of its result
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such catalog. Make it with `freescale catalog`") from error
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, SchemaError) or unreachable(error):
            raise
        raise SchemaError(f"{path}: not a whole catalog: {type(error).__name__}: {error}. {again}") from error
    return catalog


class CatalogFiles(SourceFiles):
    """Files of `ParquetSource(catalog=...)`."""

    advice = "Bring the catalog up to date: `freescale catalog --update`"

    def _opened(self) -> Catalog:
        assert self.source.catalog is not None
        begin = time.perf_counter()
        catalog = read_catalog_file(self.source.catalog, self.source.filesystem, self.retry)
        if not len(catalog):
            raise SchemaError(f"{self.label}: the catalog has no files")
        catalog = self._without_pruned(catalog)
        self.seconds = {"catalog": time.perf_counter() - begin}
        return catalog

    def versions(self) -> list[Version]:
        """The present versions, from listings of their folders: those of the catalog may be out of date."""
        return self._versions_now()

    def _check_pruned(self, catalog: Catalog, kept: np.ndarray, read: np.ndarray, before: np.ndarray) -> None:
        if self._counted:
            files = left_out(catalog, read, before, self.source.skip, self.source.limit)
            self._replaced(catalog, files[~kept[files]])

    def _expect(self, number: int) -> ExpectedFile:
        """With the row groups and the schema of the catalog, which are compared with the footer."""
        catalog = self.catalog
        rows = catalog.rows[catalog.first[number] : catalog.first[number + 1]]
        return replace(super()._expect(number), rows=rows, schema=catalog.schema(number))

    def _look_at_files(self) -> None:
        """Check that files with skipped row groups were not replaced; all other files are compared when they are
        opened."""
        catalog = self.catalog
        assert self._before is not None
        files = left_out(catalog, self._keep, self._before, self.source.skip, self.source.limit)
        for number in self._replaced(catalog, files):
            self._keep[catalog.first[number] : catalog.first[number + 1]] = False

    def _replaced(self, catalog: Catalog, numbers: np.ndarray) -> list[int]:
        """Those of the files `numbers` whose size or time has changed; they are recorded as skipped under
        `on_error="skip"`.

        Raises: FileNotFoundError; CorruptFileError under `on_error="raise"`.
        """
        replaced = []
        files = catalog.files.without(np.delete(np.arange(len(catalog)), numbers).tolist())
        now = found_now(files, threads=self._at_once(files), retry=self.retry)
        for number, listed, version in zip(numbers.tolist(), files.versions[:, :2].tolist(), now, strict=True):
            path = catalog.files.path(number)
            if version is None:
                raise FileNotFoundError(f"{self.label}: {path}: no such file. {self.advice}")
            if listed[0] != version[0] or 0 < listed[1] != version[1] > 0:  # a time of 0 is unknown
                reason = f"{path}: replaced after it was listed: its size or time is another. {self.advice}"
                if self.source.on_error == "raise":
                    raise CorruptFileError(f"{self.label}: {reason}")
                self.leave_out(catalog.files.name(number), reason)
                replaced.append(number)
        return replaced


def _read(file: FileRef) -> pa.Table:
    with open_file(file) as handle:
        return pq.ParquetFile(handle, page_checksum_verification=True).read(use_threads=False)


def _catalog(path: str | Path, head: dict[str, Any], table: pa.Table, filesystem: Any) -> Catalog:
    """Raises ValueError and other errors if `write_catalog` did not write it so."""
    # The cast rejects other columns. Parquet has a dictionary of folders per row group, a `FileList` has one list.
    table = table.cast(_columns(head)).unify_dictionaries()
    schemas = tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in head["schemas"])
    columns = {name: _whole(table[name]) for name in table.column_names}
    system, root = _opened(path, head, filesystem)
    folder, rows = columns["folder"], columns["rows"]
    row_counts = rows.values.to_numpy()
    size, modified, schema_of = (columns[name].to_numpy() for name in ("size", "modified", "schema"))
    text, ends = _text(columns["name"])
    folders = folder.dictionary.to_pylist()
    bounds = {name: [columns[end + name] for end in _BOUNDS] for name in head["bounds"]}
    checks = {
        "a folder without its slash": all(not path or path[-1] == "/" for path in folders),
        "a name with a zero byte": "\0" not in "".join([root, *folders]) and b"\0" not in text,
        "a negative size": size.min(initial=0) >= 0,
        "a schema number out of range": schema_of.min(initial=0) >= 0 and schema_of.max(initial=-1) < len(schemas),
        # As float64: damaged numbers may overflow the sum.
        "numbers of rows out of range": row_counts.min(initial=0) >= 0
        and row_counts.astype(np.float64).sum() < _MOST_ROWS,
        "bounds of other row groups": all(
            column.offsets.equals(rows.offsets) for columns_of_name in bounds.values() for column in columns_of_name
        ),
    }
    failed = [what for what, passed in checks.items() if not passed]
    if failed:
        raise ValueError(", ".join(failed))
    return Catalog(
        files=FileList(
            folders=tuple(folder_of(system, root + path) for path in folders),
            folder=folder.indices.to_numpy(),
            text=text,
            ends=ends,
            versions=np.stack([size, modified, np.zeros_like(size)], axis=1),
            base=root,
        ),
        size=size,
        digests=np.frombuffer(columns["digest"].buffers()[1] or b"", np.uint8, 16 * len(size)).reshape(-1, 16),
        schema_of=schema_of,
        schemas=schemas,
        first=rows.offsets.to_numpy().astype(np.int64),
        rows=row_counts,
        bounds={name: np.stack([end.values.to_numpy() for end in columns]) for name, columns in bounds.items()},
    )


def _columns(head: dict[str, Any]) -> pa.Schema:
    bounds = [pa.field(end + name, pa.list_(pa.int64())) for name in head["bounds"] for end in _BOUNDS]
    return pa.schema([*_COLUMNS, *bounds])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array without nulls, at offset 0 of its buffers."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    array.validate(full=True)
    inside = array.values if pa.types.is_list(array.type) else getattr(array, "dictionary", array)
    if array.null_count or inside.null_count:
        raise ValueError("a null")
    return array


def _text(names: pa.Array) -> tuple[bytes, np.ndarray]:
    """(all names, concatenated; int64 [N], the end of each)."""
    offsets = np.frombuffer(names.buffers()[1] or bytes(4), np.int32, len(names) + 1)
    text = names.buffers()[2]
    return (text.to_pybytes()[: offsets[-1]] if text else b""), offsets[1:].astype(np.int64)


def _opened(path: str | Path, head: dict[str, Any], filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem, and the path of the root in it."""
    kind, root = head["filesystem"], head["root"]
    scheme = _SCHEMES.get(kind, "")
    if not isinstance(root, str) or not root.startswith(scheme) or "://" in root[len(scheme) :]:
        raise ValueError(f"not a root: {root!r}")
    if filesystem is None and kind != "local" and kind not in _SCHEMES:
        raise SchemaError(f"{path}: a catalog of files on {kind}: give ParquetSource(filesystem=...), too")
    system, folder = resolve(root.partition("://")[2] if filesystem is not None and "://" in root else root, filesystem)
    if system.type_name != kind:
        raise SchemaError(f"{path}: a catalog of files on {kind}, and the filesystem given is {system.type_name}")
    return system, (folder.rstrip("/") + "/" if folder else "")
