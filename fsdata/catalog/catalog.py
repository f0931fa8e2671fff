"""The numbers of many files that planning needs, in arrays: some 60 bytes a file beside its name, 8 a row group, and 16
more for each column whose bounds are needed.

Footers are parsed and dropped: pyarrow's take 0.8 kB per column chunk. A row group is read with a new parsed footer.
Of footers with the same schema pyarrow parses only the first, `fsdata.kernels.footer` parses the others. The catalog of
many files is made once per host, and the hosts of a job divide the work.

Letters: N files, G row groups.
"""

import io
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fsdata.catalog.bounds import Bounds, BoundsReader, joined, readers
from fsdata.catalog.footers import CheckedFooter, Counter, check_footer, digest, parse_footer, raw_footer
from fsdata.catalog.listing.file_list import FileList, FileRef
from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.retry import Retrying
from fsdata.catalog.shared_arrays import Arrays, SharedArrays
from fsdata.errors import CorruptFileError
from fsranks.machine.cores import usable_cores

SHARED_FROM = 1_000  # files; for fewer, every process makes a catalog of its own
_BLOCK = 256  # files that one thread reads at a time, at most
_VERSION = 3  # of the shared arrays: other versions of fsdata on this host use other names
_BOUNDS = "bounds of "
_ARRAYS = ("size", "schema_of", "first", "rows")


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Files whose footers were read, in order.

    Attributes:
        size: int64 [N], bytes.
        digests: uint8 [N, 16], of the raw footers: the identity of each file.
        schema_of: int32 [N]; schemas: without metadata, each once.
        first: int64 [N + 1], the first row group of each file, and the end.
        rows: int64 [G].
        bounds: of the columns in `bounds_of`.
    """

    files: FileList
    size: np.ndarray
    digests: np.ndarray
    schema_of: np.ndarray
    schemas: tuple[pa.Schema, ...]
    first: np.ndarray
    rows: np.ndarray
    bounds: Bounds = field(default_factory=dict)
    _shared: SharedArrays | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.files)

    def digest(self, file: int) -> str:
        return self.digests[file].tobytes().hex()

    def without(self, numbers: Sequence[int]) -> "Catalog":
        """All files except `numbers`."""
        if not numbers:
            return self
        return _chosen([self], self.files.without(numbers), np.delete(np.arange(len(self)), numbers))

    def plus(self, others: "Catalog") -> "Catalog":
        """The files of this one, under their numbers, then the others."""
        return _chosen([self, others], self.files.plus(others.files), np.arange(len(self) + len(others)))

    def schema(self, file: int) -> pa.Schema:
        return self.schemas[self.schema_of[file]]


EMPTY = Catalog(
    FileList.from_entries([]),
    np.empty(0, np.int64),
    np.empty((0, 16), np.uint8),
    np.empty(0, np.int32),
    (),
    np.zeros(1, np.int64),
    np.empty(0, np.int64),
)

Faults = list[tuple[int, CorruptFileError]]
"""Numbers of the files without a usable footer, and their errors."""


def open_catalog(
    files: FileList,
    *,
    threads: int,
    retry: Retrying,
    label: str,
    bounds_of: Sequence[str] = (),
    show: bool = False,
    hosts: Hosts | None = None,
) -> tuple[Catalog, list[tuple[str, CorruptFileError]]]:
    """(the catalog of the files with a usable footer; name and error of each of the others).

    The catalog of many files is shared: one process of a host reads, the others wait and map the same memory, and each
    host of a job reads shares of the files. Processes find each other by the identity of the listing, which includes
    sizes and times of modification.

    bounds_of: names of columns, see `fsdata.catalog.prune`. show: show a counter if it takes long.

    Raises:
        FileNotFoundError, PermissionError, OSError: a file that cannot be reached.
    """
    shown = f"{label}, its footers" if show else None
    identity = files.identity if len(files) >= SHARED_FROM else ""
    if not identity:
        return _named(files, *_read(files, bounds_of, threads=threads, retry=retry, shown=shown))

    columns = digest(json.dumps(sorted(bounds_of)).encode()) if bounds_of else ""
    name = f"catalog{_VERSION}x{identity}{columns}"

    def make(_: Path | None) -> Arrays:
        # The other processes of this host wait, so all cores are free.
        at_once = max(threads, usable_cores())
        if hosts is None:
            return _packed(*_read(files, bounds_of, threads=at_once, retry=retry, shown=shown))

        def read(share: range) -> bytes:
            return _to_bytes(_packed(*_read(files.share(share), bounds_of, threads=at_once, retry=retry, shown=shown)))

        shares = [_from_bytes(raw) for raw in hosts.shared(name, len(files), read)]
        counts = [len(share["size"]) + len(json.loads(share["faults"].tobytes())) for share in shares]
        ends = np.cumsum([0, *counts]).tolist()
        parts = [
            _unpacked(files.share(range(begin, end)), share)
            for (begin, end), share in zip(pairwise(ends), shares, strict=True)
        ]
        return _packed(*_joined(files, parts))

    shared = SharedArrays(name, make, f"{label}, its footers")
    catalog, faults = _unpacked(files, shared.arrays)
    return _named(files, replace(catalog, _shared=shared), faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The result of `updated`, with the number of files that are new, that have another size or time, and are gone."""

    catalog: Catalog
    faults: list[tuple[str, CorruptFileError]]
    new: int
    changed: int
    gone: int


def updated(old: Catalog, files: FileList, *, threads: int, retry: Retrying, bounds_of: Sequence[str] = ()) -> Update:
    """The catalog of `files`. Opens only files that are not in `old` with the same size and time; or all of them, if
    `old` lacks the bounds of a column in `bounds_of`.

    Raises: as `open_catalog`.
    """
    if set(bounds_of) - set(old.bounds):  # the footers of all files have to be read for these columns
        old = EMPTY
    old_number = {old.files.path(number): number for number in range(len(old))}
    # Index of each file among the entries of `old`, followed by those that are read now.
    entry = np.array([old_number.get(files.path(number), -1) for number in range(len(files))], np.int64)
    listed_before = entry >= 0
    versions = old.files.versions[entry, :2] if len(old) else np.zeros((len(files), 2), np.int64)
    # A time of 0 is unknown: such a file may have changed.
    same = listed_before & (versions == files.versions[:, :2]).all(axis=1) & (versions[:, 1] > 0)
    opened_files = files.without(np.flatnonzero(same).tolist())
    fresh, faults = _read(opened_files, bounds_of, threads=threads, retry=retry)
    opened = np.flatnonzero(~same)
    unusable = [number for number, _ in faults]
    bad = opened[unusable]
    entry[np.delete(opened, unusable)] = len(old) + np.arange(len(fresh))
    kept = np.delete(np.arange(len(files)), bad)
    return Update(
        catalog=_chosen((old, fresh), files.without(bad.tolist()), entry[kept]),
        faults=[(files.name(number), error) for number, (_, error) in zip(bad.tolist(), faults, strict=True)],
        new=int((~listed_before).sum()),
        changed=int((listed_before & ~same).sum()),
        gone=len(old_number) - int(listed_before.sum()),
    )


def _chosen(parts: Sequence[Catalog], files: FileList, entry: np.ndarray) -> Catalog:
    """A catalog of the entries `entry`, int64 [N], of the concatenated parts. files: the files of these entries."""
    all_schemas = [schema for part in parts for schema in part.schemas]
    before = np.cumsum([0, *(len(part.schemas) for part in parts)])
    schema_of = np.concatenate([part.schema_of + first for part, first in zip(parts, before, strict=False)])[entry]
    # Each schema once, in the order of files: parts may have equal schemas as different objects.
    schemas: list[pa.Schema] = []
    numbers = np.zeros(len(all_schemas), np.int32)
    by_object: dict[int, int] = {}  # most parts have the same objects, and comparing many schemas takes long
    for number in schema_of[np.sort(np.unique(schema_of, return_index=True)[1])].tolist():
        schema = all_schemas[number]
        if id(schema) not in by_object:
            by_object[id(schema)] = _number_of(schema, schemas)
        numbers[number] = by_object[id(schema)]
    # The row groups of each entry are consecutive: their numbers are those of the result, shifted entry by entry.
    groups = np.concatenate([np.diff(part.first) for part in parts])
    begins = (np.cumsum(groups) - groups)[entry]
    groups = groups[entry]
    ends = np.cumsum(groups)
    chosen = np.repeat(begins - (ends - groups), groups) + np.arange(int(groups.sum()))
    names = dict.fromkeys(name for part in parts for name in part.bounds)
    bounds = joined([part.bounds for part in parts], [len(part.rows) for part in parts], names)
    return Catalog(
        files=files,
        size=np.concatenate([part.size for part in parts])[entry],
        digests=np.concatenate([part.digests for part in parts])[entry],
        schema_of=numbers[schema_of],
        schemas=tuple(schemas),
        first=np.concatenate([[0], ends]),
        rows=np.concatenate([part.rows for part in parts])[chosen],
        bounds={name: ends[:, chosen] for name, ends in bounds.items()},
    )


def _named(files: FileList, catalog: Catalog, faults: Faults) -> tuple[Catalog, list[tuple[str, CorruptFileError]]]:
    return catalog, [(files.name(number), error) for number, error in faults]


def _packed(catalog: Catalog, faults: Faults) -> Arrays:
    """The catalog and its faults as arrays of one dimension, for `SharedArrays` and for other hosts."""
    messages = json.dumps([(number, str(error)) for number, error in faults]).encode()
    schemas = [np.frombuffer(schema.serialize(), np.uint8) for schema in catalog.schemas]
    return {
        **{name: getattr(catalog, name) for name in _ARRAYS},
        "digests": catalog.digests.reshape(-1),
        **{_BOUNDS + name: ends.reshape(-1) for name, ends in catalog.bounds.items()},
        "schemas": np.concatenate([np.empty(0, np.uint8), *schemas]),
        "schema_ends": np.cumsum([0, *map(len, schemas)]),
        "faults": np.frombuffer(messages, np.uint8),
    }


def _to_bytes(arrays: Arrays) -> bytes:
    raw = io.BytesIO()
    np.savez(raw, allow_pickle=False, **arrays)
    return raw.getvalue()


def _from_bytes(raw: bytes) -> Arrays:
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:  # the bytes come from a peer: never unpickle
        return dict(arrays)


def _joined(files: FileList, parts: Sequence[tuple[Catalog, Faults]]) -> tuple[Catalog, Faults]:
    """The catalog of `files` from those of consecutive shares of them."""
    catalogs = [EMPTY]  # for the types of its arrays, if there are no parts
    faults: Faults = []
    first = 0
    for catalog, of_part in parts:
        catalogs.append(catalog)
        faults += [(first + number, error) for number, error in of_part]
        first += len(catalog) + len(of_part)
    usable = files.without([number for number, _ in faults])
    return _chosen(catalogs, usable, np.arange(len(usable))), faults


def _unpacked(files: FileList, shared: Arrays) -> tuple[Catalog, Faults]:
    faults = [(number, CorruptFileError(text)) for number, text in json.loads(shared["faults"].tobytes())]
    ends = shared["schema_ends"]
    schemas = [shared["schemas"][begin:end] for begin, end in pairwise(ends.tolist())]
    catalog = Catalog(
        files=files.without([number for number, _ in faults]),
        digests=shared["digests"].reshape(-1, 16),
        schemas=tuple(pa.ipc.read_schema(pa.py_buffer(schema.tobytes())) for schema in schemas),
        **{name: shared[name] for name in _ARRAYS},  # type: ignore[arg-type]
        bounds={name[len(_BOUNDS) :]: ends.reshape(2, -1) for name, ends in shared.items() if name.startswith(_BOUNDS)},
    )
    return catalog, faults


def _read(
    files: FileList, bounds_of: Sequence[str], *, threads: int, retry: Retrying, shown: str | None = None
) -> tuple[Catalog, Faults]:
    """(the catalog of the files with a usable footer, the faults of the others). shown: label of the counter.

    Raises:
        FileNotFoundError, PermissionError, OSError: a file that cannot be reached.
    """
    reader = _FooterReader(tuple(bounds_of), retry)
    # Some four blocks per thread, so that all threads end at about the same time.
    size = min(max(len(files) // (4 * threads), 1), _BLOCK)
    blocks = [files.share(range(begin, min(begin + size, len(files)))) for begin in range(0, len(files), size)]

    with Counter(shown or "", len(files), shown=shown is not None) as counter:

        def read(block: FileList) -> tuple[Catalog, Faults]:
            part = reader.read(block)
            counter.advance(len(block))
            return part

        if threads <= 1 or len(files) <= 1:
            parts = [read(block) for block in blocks]
        else:
            with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="fsdata-footer") as pool:
                parts = list(pool.map(read, blocks))
    return _joined(files, parts)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Footers with identical bytes of schema and key-value metadata.

    Attributes:
        schema: its number. leaves: number of leaf columns. readers: by the names in `bounds_of`.
    """

    schema: int
    leaves: int
    readers: Mapping[str, BoundsReader]


class _Entry(NamedTuple):
    """The numbers of one file in a catalog; bounds as in `Catalog`."""

    size: int
    digest: str
    schema: int
    rows: np.ndarray
    bounds: Bounds


class _FooterReader:
    """Reads footers with our own kernel; pyarrow parses only the first footer of each kind. Thread-safe."""

    def __init__(self, bounds_of: tuple[str, ...], retry: Retrying) -> None:
        self._bounds_of = bounds_of
        self._retry = retry
        self._schemas: list[pa.Schema] = []
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def read(self, files: FileList) -> tuple[Catalog, Faults]:
        """The catalog of some files, and the faults of those without a usable footer."""
        entries: list[_Entry] = []
        faults: Faults = []
        for number, file in enumerate(files):
            try:
                entries.append(self._retry.call(partial(self._entry, file), file))
            except CorruptFileError as error:
                faults.append((number, error))
        groups = [len(entry.rows) for entry in entries]
        digests = bytes.fromhex("".join(entry.digest for entry in entries))
        catalog = Catalog(
            files.without([number for number, _ in faults]),
            size=np.array([entry.size for entry in entries], np.int64),
            digests=np.frombuffer(digests, np.uint8).reshape(-1, 16),
            schema_of=np.array([entry.schema for entry in entries], np.int32),
            schemas=tuple(self._schemas),
            first=np.cumsum([0, *groups]),
            rows=np.concatenate([np.empty(0, np.int64), *(entry.rows for entry in entries)]),
            bounds=joined([entry.bounds for entry in entries], groups, self._bounds_of),
        )
        return catalog, faults

    def _entry(self, file: FileRef) -> _Entry:
        raw, size = raw_footer(file)
        footer = check_footer(raw, size, file)
        kind = self._kind(footer, file)
        bounds = {name: reader.read(raw, footer.chunks, kind.leaves) for name, reader in kind.readers.items()}
        return _Entry(size, digest(raw), kind.schema, footer.rows, bounds)

    def _kind(self, footer: CheckedFooter, file: FileRef) -> _Kind:
        length = len(footer.schema_bytes).to_bytes(8, "little")
        encrypted = map(b"%d ".__mod__, footer.encrypted)
        key = digest(b"".join([length, footer.schema_bytes, footer.key_value_bytes, *encrypted]))
        kind = self._kinds.get(key)
        if kind is None:
            # Outside the lock: two threads may parse equal schemas, which then get the same number.
            metadata, schema, _ = parse_footer(footer, file, {})
            by_name = readers(metadata, schema, self._bounds_of)
            with self._lock:
                self._kinds[key] = kind = _Kind(_number_of(schema, self._schemas), metadata.num_columns, by_name)
        return kind


def _number_of(schema: pa.Schema, schemas: list[pa.Schema]) -> int:
    """The number of the schema in the list, to which it is added if it is new."""
    number = next((n for n, other in enumerate(schemas) if other.equals(schema, check_metadata=True)), None)
    if number is None:
        number = len(schemas)
        schemas.append(schema)
    return number
