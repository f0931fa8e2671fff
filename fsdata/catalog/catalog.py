"""What planning has to know of many files, in arrays: 32 bytes a file beside its name, 8 a row group.

Footers are parsed and dropped; whoever reads a row group parses the footer of its file again. Of footers that describe
the same schema only the first is parsed by pyarrow, the others by `fsdata.kernels.footer`.

Letters: N files, G row groups.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fsdata.catalog.file_list import FileList, FileRef
from fsdata.catalog.footers import Footer, checked, digest, parsed, raw_footer
from fsdata.catalog.retry import Retry
from fsdata.errors import CorruptFileError

_BLOCK = 256  # files that one thread reads at a time


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Files whose footers were read, in order.

    Attributes:
        size: int64 [N], bytes.
        digests: uint8 [N, 16], of the raw footers: the identity of each file.
        schema_of: int32 [N]; schemas: without metadata, each once.
        first: int64 [N + 1], the first row group of each file, and the end.
        rows: int64 [G].
    """

    files: FileList
    size: np.ndarray
    digests: np.ndarray
    schema_of: np.ndarray
    schemas: tuple[pa.Schema, ...]
    first: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.files)

    def digest(self, file: int) -> str:
        return self.digests[file].tobytes().hex()

    def schema(self, file: int) -> pa.Schema:
        return self.schemas[self.schema_of[file]]


def catalog_of(footers: Sequence[Footer]) -> Catalog:
    """The catalog of files whose footers are at hand."""
    schemas: list[pa.Schema] = []
    for footer in footers:
        if not any(footer.schema is each for each in schemas):
            schemas.append(footer.schema)
    number = {id(schema): n for n, schema in enumerate(schemas)}
    first = footers[0].file
    groups = [footer.row_groups for footer in footers]
    return Catalog(
        FileList.of([(each.file.filesystem, each.file.path) for each in footers], first.path[: -len(first.name)]),
        np.array([footer.size for footer in footers]),
        np.frombuffer(bytes.fromhex("".join(footer.digest for footer in footers)), np.uint8).reshape(-1, 16),
        np.array([number[id(footer.schema)] for footer in footers], np.int32),
        tuple(schemas),
        np.cumsum([0, *map(len, groups)]),
        np.array([rows for of_file in groups for rows in of_file], np.int64),
    )


def read_catalog(files: FileList, *, threads: int, retry: Retry) -> tuple[Catalog, list[tuple[str, CorruptFileError]]]:
    """(the catalog of the files that have a usable footer, name and fault of each of the others).

    Raises:
        FileNotFoundError, PermissionError, OSError: a file that cannot be reached.
    """
    schemas = _Schemas()
    blocks = [range(begin, min(begin + _BLOCK, len(files))) for begin in range(0, len(files), _BLOCK)]

    def read(block: range) -> _Block:
        return _Block.read(files, block, schemas, retry)

    if threads <= 1 or len(files) == 1:
        found = [read(block) for block in blocks]
    else:
        with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="fsdata-footer") as pool:
            found = list(pool.map(read, _narrow(blocks, threads)))
    faults = [fault for block in found for fault in block.faults]
    groups = np.concatenate([np.empty(0, np.int64), *(block.groups for block in found)])
    catalog = Catalog(
        files.without([number for number, _ in faults]),
        np.concatenate([np.empty(0, np.int64), *(block.size for block in found)]),
        np.concatenate([np.empty((0, 16), np.uint8), *(block.digests for block in found)]),
        np.concatenate([np.empty(0, np.int32), *(block.schema_of for block in found)]),
        tuple(schemas.found),
        np.concatenate([[0], np.cumsum(groups)]),
        np.concatenate([np.empty(0, np.int64), *(block.rows for block in found)]),
    )
    return catalog, [(files.name(number), error) for number, error in faults]


def _narrow(blocks: Sequence[range], threads: int) -> list[range]:
    """Blocks small enough that all threads have some."""
    size = max(sum(map(len, blocks)) // (4 * threads), 1)
    return [block[at : at + size] for block in blocks for at in range(0, len(block), size)]


@dataclass(slots=True)
class _Block:
    """The entries of some files."""

    size: np.ndarray
    digests: np.ndarray
    schema_of: np.ndarray
    groups: np.ndarray
    rows: np.ndarray
    faults: list[tuple[int, CorruptFileError]]

    @classmethod
    def read(cls, files: FileList, block: range, schemas: "_Schemas", retry: Retry) -> "_Block":
        entries, faults = [], []
        for number in block:
            file = files[number]
            try:
                entries.append(retry.call(lambda file=file: _entry(file, schemas), file))  # type: ignore[misc]
            except CorruptFileError as error:
                faults.append((number, error))
        return cls(
            np.array([entry.size for entry in entries], np.int64),
            np.frombuffer(bytes.fromhex("".join(entry.digest for entry in entries)), np.uint8).reshape(-1, 16),
            np.array([entry.schema for entry in entries], np.int32),
            np.array([len(entry.rows) for entry in entries], np.int64),
            np.concatenate([np.empty(0, np.int64), *(entry.rows for entry in entries)]),
            faults,
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    size: int
    digest: str
    schema: int
    rows: np.ndarray


def _entry(file: FileRef, schemas: "_Schemas") -> _Entry:
    raw, size = raw_footer(file)
    numbers = checked(raw, size, file)
    schema = schemas.number(numbers.described, numbers.by_key, lambda: parsed(raw, size, file, {})[1])
    return _Entry(size, digest(raw), schema, numbers.rows)


@dataclass(slots=True)
class _Schemas:
    """Schemas by the bytes that describe them, each once. Thread-safe."""

    found: list[pa.Schema] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def number(self, described: bytes, by_key: bytes, parse: Callable[[], pa.Schema]) -> int:
        key = digest(len(described).to_bytes(8, "little") + described + by_key)
        number = self._numbers.get(key)
        if number is not None:
            return number
        schema = parse()
        with self._lock:
            number = next((n for n, each in enumerate(self.found) if each.equals(schema, check_metadata=True)), None)
            if number is None:
                number = len(self.found)
                self.found.append(schema)
            self._numbers[key] = number
        return number
