"""A catalog as one Parquet file, made once: with it a job lists no folder and reads no footer before it plans.

A row is a file: folder and name under one root, size, time of modification, digest of its footer, number of its schema,
and the rows of its row groups, with the bounds of columns if there are any. The root and the schemas stand in the
metadata.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import FileList, folder_of
from fsdata.catalog.listing.find_files import resolve
from fsdata.errors import SchemaError

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
_SCHEMES = {"s3": "s3://", "gcs": "gs://"}  # whose URLs say all that their filesystems need


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write it, whole or not at all.

    Raises:
        SchemaError: files of more than one filesystem or bucket.
        OSError: it cannot be written.
    """
    files = catalog.files
    filesystem = files.folders[0].filesystem
    if any(not each.filesystem.equals(filesystem) for each in files.folders):
        raise SchemaError("a catalog holds files of one filesystem: make one for each")
    if filesystem.type_name in _SCHEMES and not files.base:
        raise SchemaError("a catalog holds files of one bucket: make one for each")
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
    half = path.with_name(f".{path.name}.half")
    try:
        pq.write_table(table, half, compression="zstd", write_page_checksum=True)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def read_catalog_file(path: str | Path, filesystem: Any = None) -> Catalog:
    """The catalog as it was written; no file of it is looked at.

    filesystem: of the files, where it is neither that of this machine nor what a plain URL of S3 or GCS says.

    Raises:
        FileNotFoundError: no such catalog.
        SchemaError: not a catalog, a damaged one, or one of another version or filesystem.
    """
    again = "Make it again with `freescale catalog`"
    try:
        system, name = resolve(str(path), None)
        with system.open_input_file(name) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(use_threads=False)
        head = json.loads((table.schema.metadata or {})[_KEY])
        if head["version"] != VERSION:
            raise SchemaError(f"{path}: a catalog of version {head['version']}, this one reads {VERSION}. {again}")
        table = table.cast(_columns(head)).unify_dictionaries()
        pa.default_memory_pool().release_unused()  # decoding needs several times what it gives
        schemas = tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in head["schemas"])
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such catalog. Make it with `freescale catalog`") from error
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{path}: not a whole catalog: {type(error).__name__}: {error}. {again}") from error
    system, root = _opened(path, head, filesystem)
    columns = {name: _whole(table[name]) for name in table.column_names}
    folder, rows = columns["folder"], columns["rows"]
    size, modified = columns["size"].to_numpy(), columns["modified"].to_numpy()
    text, ends = _text(columns["name"])
    return Catalog(
        files=FileList(
            folders=tuple(folder_of(system, root + each) for each in folder.dictionary.to_pylist()),
            folder=folder.indices.to_numpy(),
            text=text,
            ends=ends,
            versions=np.stack([size, modified, np.zeros_like(size)], axis=1),
            base=root,
        ),
        size=size,
        digests=np.frombuffer(columns["digest"].buffers()[1] or b"", np.uint8, 16 * len(size)).reshape(-1, 16),
        schema_of=columns["schema"].to_numpy(),
        schemas=schemas,
        first=rows.offsets.to_numpy().astype(np.int64),
        rows=rows.values.to_numpy(),
        bounds={name: np.stack([columns[end + name].values.to_numpy() for end in _BOUNDS]) for name in head["bounds"]},
    )


def _columns(head: dict[str, Any]) -> pa.Schema:
    bounds = [pa.field(end + name, pa.list_(pa.int64())) for name in head["bounds"] for end in _BOUNDS]
    return pa.schema([*_COLUMNS, *bounds])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array that begins in the first byte of its buffers."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _text(names: pa.Array) -> tuple[bytes, np.ndarray]:
    """(all names, one after another; int64 [N], where each ends)."""
    offsets = np.frombuffer(names.buffers()[1] or bytes(4), np.int32, len(names) + 1)
    text = names.buffers()[2]
    return (text.to_pybytes()[: offsets[-1]] if text else b""), offsets[1:].astype(np.int64)


def _opened(path: str | Path, head: dict[str, Any], filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem, and the root in it."""
    kind, root = head["filesystem"], head["root"]
    if filesystem is None and kind != "local" and kind not in _SCHEMES:
        raise SchemaError(f"{path}: a catalog of files on {kind}: give ParquetSource(filesystem=...), too")
    system, found = resolve(root.partition("://")[2] if filesystem is not None and "://" in root else root, filesystem)
    if filesystem is not None and system.type_name != kind:
        raise SchemaError(f"{path}: a catalog of files on {kind}, and the filesystem given is {system.type_name}")
    return system, (found.rstrip("/") + "/" if found else "")
