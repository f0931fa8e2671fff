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
from fsdata.catalog.footers import open_file
from fsdata.catalog.listing.file_list import FileList, FileRef, folder_of
from fsdata.catalog.listing.find_files import resolve
from fsdata.catalog.retry import Retrying, unreachable
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
_MOST_ROWS = 1 << 62
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


def read_catalog_file(path: str | Path, filesystem: Any = None, retry: Retrying | None = None) -> Catalog:
    """The catalog as it was written; no file of it is looked at. Everything in it that is relied on is checked.

    filesystem: of the files, where it is neither that of this machine nor what a plain URL of S3 or GCS says.

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
        pa.default_memory_pool().release_unused()  # decoding needs several times what it gives
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such catalog. Make it with `freescale catalog`") from error
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, SchemaError) or unreachable(error):
            raise
        raise SchemaError(f"{path}: not a whole catalog: {type(error).__name__}: {error}. {again}") from error
    return catalog


def _read(file: FileRef) -> pa.Table:
    with open_file(file) as handle:
        return pq.ParquetFile(handle, page_checksum_verification=True).read(use_threads=False)


def _catalog(path: str | Path, head: dict[str, Any], table: pa.Table, filesystem: Any) -> Catalog:
    """Raises ValueError and others, where it is not what `write_catalog` writes."""
    table = table.cast(_columns(head)).unify_dictionaries()
    schemas = tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in head["schemas"])
    columns = {name: _whole(table[name]) for name in table.column_names}
    system, root = _opened(path, head, filesystem)
    folder, rows = columns["folder"], columns["rows"]
    size, modified, schema_of = (columns[name].to_numpy() for name in ("size", "modified", "schema"))
    text, ends = _text(columns["name"])
    folders = folder.dictionary.to_pylist()
    bounds = {name: [columns[end + name] for end in _BOUNDS] for name in head["bounds"]}
    _check(
        {
            "a folder that is none": all(not each or each[-1] == "/" for each in folders),
            "a name with a zero": "\0" not in "".join([root, *folders]) and b"\0" not in text,
            "a file of less than no bytes": size.min(initial=0) >= 0,
            "a number of no schema": schema_of.min(initial=0) >= 0 and schema_of.max(initial=-1) < len(schemas),
            "row groups of less than no rows, or of too many": _are_rows(rows.values.to_numpy()),
            "bounds of other row groups": all(
                each.offsets.equals(rows.offsets) for ends_of in bounds.values() for each in ends_of
            ),
        }
    )
    return Catalog(
        files=FileList(
            folders=tuple(folder_of(system, root + each) for each in folders),
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
        rows=rows.values.to_numpy(),
        bounds={name: np.stack([each.values.to_numpy() for each in of]) for name, of in bounds.items()},
    )


def _check(found: dict[str, bool]) -> None:
    for what, good in found.items():
        if not good:
            raise ValueError(what)


def _are_rows(rows: np.ndarray) -> bool:
    """Whether none is negative, and all together can be counted."""
    return bool(rows.min(initial=0) >= 0 and rows.astype(np.float64).sum() < _MOST_ROWS)


def _columns(head: dict[str, Any]) -> pa.Schema:
    bounds = [pa.field(end + name, pa.list_(pa.int64())) for name in head["bounds"] for end in _BOUNDS]
    return pa.schema([*_COLUMNS, *bounds])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array that begins in the first byte of its buffers, without nulls."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    array.validate(full=True)
    inside = array.values if pa.types.is_list(array.type) else getattr(array, "dictionary", array)
    if array.null_count or inside.null_count:
        raise ValueError("a null")
    return array


def _text(names: pa.Array) -> tuple[bytes, np.ndarray]:
    """(all names, one after another; int64 [N], where each ends)."""
    offsets = np.frombuffer(names.buffers()[1] or bytes(4), np.int32, len(names) + 1)
    text = names.buffers()[2]
    return (text.to_pybytes()[: offsets[-1]] if text else b""), offsets[1:].astype(np.int64)


def _opened(path: str | Path, head: dict[str, Any], filesystem: Any) -> tuple[pafs.FileSystem, str]:
    """The filesystem, and the root in it."""
    kind, root = head["filesystem"], head["root"]
    scheme = _SCHEMES.get(kind, "")
    if not isinstance(root, str) or not root.startswith(scheme) or "://" in root[len(scheme) :]:
        raise ValueError(f"a root that is none: {root!r}")
    if filesystem is None and kind != "local" and kind not in _SCHEMES:
        raise SchemaError(f"{path}: a catalog of files on {kind}: give ParquetSource(filesystem=...), too")
    system, found = resolve(root.partition("://")[2] if filesystem is not None and "://" in root else root, filesystem)
    if system.type_name != kind:
        raise SchemaError(f"{path}: a catalog of files on {kind}, and the filesystem given is {system.type_name}")
    return system, (found.rstrip("/") + "/" if found else "")
