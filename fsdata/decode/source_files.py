"""The files of one source, found and bound: decoding slices of them with retries and the policy for damage."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.binding.bind import FileKind, bind, encrypted_reads
from fsdata.catalog.binding.column_paths import leaves_at
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog, open_catalog
from fsdata.catalog.listing.file_list import UNKNOWN, FileList, Version
from fsdata.catalog.listing.find_files import discover, found_now, local_version
from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.prune import may_have_rows, pruned
from fsdata.catalog.retry import Retrying
from fsdata.decode.arrow.record_batches import GroupRows, MapFailed, Paths
from fsdata.decode.decode_piece import Pages, decode, decode_batch
from fsdata.decode.open_files import ExpectedFile, OpenFiles, OpenParquet, RemoteGroup, RemoteReads
from fsdata.decode.piece import DecodedPiece
from fsdata.decode.piece_plan import PiecePlan
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_groups import RowGroup, RowGroups
from fsdata.decode.row_reader import RowReader
from fsdata.errors import CorruptFileError, DataError, Fault
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource
from fsranks.machine.cores import usable_cores

_LOG = logging.getLogger("fsdata")
_REMOTE_THREADS = 16
_MOST_ROWS, _MOST_BYTES = 8192, 256 << 10  # of small row groups that are decoded at once
_SMALL = "small row groups, decoded together"
_MORE_OPEN = 32  # local files, beside those of the decode threads


class Together(Protocol):
    """What reads small row groups of a file at once: `fsdata.pages.small_groups`."""

    def readable(self, kind: pa.DataType) -> bool:
        """Whether a column of this type may be among those that are read."""

    def read(
        self,
        file: pq.ParquetFile,
        source: Any,
        chunks: np.ndarray,
        groups: Sequence[int],
        leaves: Sequence[int],
        rows: int,
    ) -> pa.RecordBatch:
        """All rows of the row groups; see there."""


class SourceFiles(RowReader):
    """Files of a source, bound to the fields that are wanted. Thread-safe after construction.

    Attributes:
        wanted: the fields that are served.
        pruned: files that are not read, because `filter` leaves out all of their folder.
        seconds: what opening took, by phase: listing (or reading a catalog), footers, binding.

    Args:
        wanted: the fields to serve, or what names them when the schemas of the files are known.
        index: the source's position in the loader.
        label: how messages call the source.
        threads: footers read at a time, and files kept open.
        show: a progress bar, if reading footers takes long. hosts: that share this work.
        pages: decodes lists, so that rows refer to values that are not decoded yet; None leaves all to pyarrow.
        together: reads small row groups at once; None: none are.
        remote: makes what reads files that are not local, of what opens one.
        notes: where faults are noted, see `fsdata.errors.Fault`; None raises the first.

    Raises:
        FileNotFoundError, PermissionError, CorruptFileError, SchemaError: see `open_source`.
    """

    groups: RowGroups
    samples = 0  # of the files, the first ones, that only say how the others are bound
    advice = "Start the job again, with files that are not written any more"  # if one is replaced

    def __init__(
        self,
        source: ParquetSource,
        wanted: Sequence[Field] | Callable[[Catalog], Sequence[Field]],
        *,
        index: int,
        label: str,
        threads: int | None,
        retry: Retrying,
        pool: Pool | None = None,
        show: bool = False,
        hosts: Hosts | None = None,
        pages: Pages | None = None,
        together: Together | None = None,
        remote: Callable[[Callable[[ExpectedFile], OpenParquet]], RemoteReads] | None = None,
        notes: list[Fault] | None = None,
    ) -> None:
        super().__init__(source, label, notes)
        self.retry = retry
        self._leaves: dict[int, Callable[[Paths], tuple[int, ...]]] = {}
        self._last_known: tuple[int, ExpectedFile] | None = None
        self._coalesced = Counter[str]()  # column chunks of lists
        self._show = show
        self._hosts = hosts
        self._threads = at_once = threads or usable_cores()
        self.pruned = 0
        self._before: np.ndarray | None = None
        self.seconds: dict[str, float] = {}
        self.catalog = self._opened()
        begin = time.perf_counter()
        self.wanted = wanted(self.catalog) if callable(wanted) else wanted
        readable = self._readable(self.catalog)
        self.kinds, self._kind_of = bind(source, self.wanted, self.catalog, label, notes=notes)
        self.seconds["binding"] = time.perf_counter() - begin
        self._keep = may_have_rows(self.catalog, source) & readable
        self._keep[: self.catalog.first[self.samples]] = False
        self._index = index
        self._look_at_files()
        self.groups = self._groups()
        self._pool = pool
        self._pages = pages
        self._small = together
        self._open_files = OpenFiles(keep=max(at_once, 2) + 1, advice=self.advice, more=_MORE_OPEN)
        self._remote = None if remote is None else remote(self._open_files.open)

    @property
    def pruned_groups(self) -> int:
        """Row groups that are not read, because by the bounds of their columns `filter` leaves them out."""
        return int((~self._keep[self.catalog.first[self.samples] :]).sum())

    def open_more(
        self, files: FileList, bounds_of: Sequence[str] = ()
    ) -> tuple[Catalog, list[tuple[str, CorruptFileError]]]:
        """See `open_catalog`; the bounds of the filter's columns are there, too."""
        condition = self.source.condition
        wanted = dict.fromkeys([*(() if condition is None else condition.columns), *bounds_of])
        return open_catalog(
            files,
            threads=self._at_once(files),
            retry=self.retry,
            label=self.label,
            bounds_of=list(wanted),
            show=self._show,
            hosts=self._hosts,
        )

    def _groups(self) -> RowGroups:
        return RowGroups(self._index, self.catalog, self._keep, self._before, self.source.skip, self.source.limit)

    def _opened(self) -> Catalog:
        """Find the files and read what planning needs of them."""
        begin = time.perf_counter()
        files = self._listed()
        if not self._counted:
            files = files.without(self._pruned(files))
        listed = time.perf_counter()
        catalog, faults = self.open_more(files)
        self._skip_files(faults, len(files))
        self.seconds = {"listing": listed - begin, "footers": time.perf_counter() - listed}
        return self._without_pruned(catalog) if self._counted else catalog

    def _listed(self) -> FileList:
        return discover(self.source.path_list, self.source.filesystem, label=self.label)

    def _without_pruned(self, catalog: Catalog) -> Catalog:
        kept = np.ones(len(catalog), bool)
        kept[self._pruned(catalog.files)] = False
        read, before = np.repeat(kept, np.diff(catalog.first)), np.cumsum(catalog.rows) - catalog.rows
        self._check_pruned(catalog, kept, read, before)
        self._before = before[read]
        return catalog.without(np.flatnonzero(~kept).tolist())

    def _check_pruned(self, catalog: Catalog, kept: np.ndarray, read: np.ndarray, before: np.ndarray) -> None:
        """Check files of which only the number of rows counts.

        Args:
            kept: bool [files]. read: bool [row groups]. before: int64 [row groups], the rows before each.
        """

    def _look_at_files(self) -> None:
        """Check files that are known, when it is known what of them is read."""

    def _pruned(self, files: FileList) -> list[int]:
        without = pruned(files, self.source)
        self.pruned = len(without)
        return without

    @property
    def _counted(self) -> bool:
        """Whether the rows of all files have to be known, also of those that are not read."""
        return self.source.skip > 0 or self.source.limit is not None

    def _readable(self, catalog: Catalog) -> np.ndarray:
        """bool [row groups], false in files with an encrypted column that is read; they are noted under
        `on_error="skip"`.

        Raises: CorruptFileError under `on_error="raise"`, or if all files are such.
        """
        found = np.ones(len(catalog), bool)
        for number, schema in enumerate(catalog.schemas):
            names = encrypted_reads(self.source, self.wanted, schema)
            for file in np.flatnonzero(catalog.schema_of == number).tolist() if names else ():
                found[file] = False
                reason = (
                    f"{catalog.files.path(file)}: column {', '.join(map(repr, names))} is encrypted, and there is no "
                    "key. Write the file again without encryption, or leave the column out"
                )
                if self.source.on_error == "raise":
                    raise CorruptFileError(f"{self.label}: {reason}")
                self.leave_out(catalog.files.name(file), reason)
        if len(catalog) and not found.any():
            raise CorruptFileError(f"{self.label}: none of its {len(catalog)} files is readable: {reason}")
        return np.repeat(found, np.diff(catalog.first))

    def versions(self) -> list[Version]:
        """Of all files, in order: as they were listed, or as their folders say now. Blocks for listing the folders."""
        files = self.catalog.files
        if (files.versions[:, 0] > 0).all():
            return [(size, modified, inode) for size, modified, inode in files.versions.tolist()]
        return self._versions_now()

    def _versions_now(self) -> list[Version]:
        files = self.catalog.files
        if files[0].local:
            return [local_version(path) for path in map(files.path, range(len(files)))]
        return [each or UNKNOWN for each in found_now(files, threads=self._at_once(files), retry=self.retry)]

    def _at_once(self, files: FileList) -> int:
        """Requests at a time."""
        return self._threads if not files or files[0].local else max(self._threads, _REMOTE_THREADS)

    def _skip_files(self, faults: Sequence[tuple[str, CorruptFileError]], total: int) -> None:
        for name, error in faults:
            if self.source.on_error == "raise":
                raise CorruptFileError(
                    f"{self.label}: {error}. Repair or remove the file, or give on_error='skip' to leave such files out"
                ) from error
            self.leave_out(name, str(error))
        if len(faults) == total:
            raise CorruptFileError(f"{self.label}: none of its {total} files is readable: {self.skipped[0].reason}")

    @property
    def remote_reads(self) -> tuple[int, int]:
        """Bytes of row groups that were read from files that are not local, and reads that were not planned."""
        remote = self._remote
        return (0, 0) if remote is None else (remote.bytes_read, remote.unplanned_reads)

    def fetch(self, plans: Sequence[PiecePlan], group: RowGroup) -> RemoteGroup | None:
        """What `decode` needs of a row group, to be read ahead of it; None if the file is local."""
        known, number = self._known(group.file), group.file
        if known.file.local:
            return None
        leaves = self._leaves_of(number)(plans[self._kind_of[number]].batches.paths)
        if self._remote is None:
            raise ModuleNotFoundError(f"{known.file.path}: files that are not local are read by fsdata.remote")
        return self._remote.group(known, group.index, leaves)

    def _known(self, number: int) -> ExpectedFile:
        """What is compared when a file is opened."""
        last = self._last_known  # the next row group mostly is of the same file
        if last is not None and last[0] == number:
            return last[1]
        known = self._expected_file(number)
        self._last_known = number, known
        return known

    def _expected_file(self, number: int) -> ExpectedFile:
        catalog = self.catalog
        return ExpectedFile(catalog.files[number], int(catalog.size[number]), catalog.digest(number))

    def decode(
        self,
        plans: Sequence[PiecePlan],
        group: RowGroup,
        start: int,
        stop: int,
        fetched: RemoteGroup | None = None,
    ) -> DecodedPiece | None:
        """See `RowReader`. A remote row group that was not read ahead is read here."""
        known, number = self._known(group.file), group.file
        remote = fetched or self.fetch(plans, group)
        wanted = GroupRows(
            group=group.index,
            start=start,
            stop=stop,
            to_end=self.source.on_error == "skip",
            schema=int(self.catalog.schema_of[number]),
            faults=self.faults_of(group),
            leaves=self._leaves_of(number),
        )
        read = partial(self._read, plans[self._kind_of[number]], wanted, known, remote)
        failed: Exception
        try:
            return self.retry.call(read, known.file)
        except MapFailed as carrier:
            failed = carrier.error
        except DataError:
            raise
        except (pa.ArrowException, OSError) as error:
            self._damaged(group, error)
            return None
        raise failed

    def _read(
        self, plan: PiecePlan, wanted: GroupRows, known: ExpectedFile, remote: RemoteGroup | None
    ) -> DecodedPiece:
        """One try."""
        with self._open_files.using(known) if remote is None else remote.opened() as file:
            return decode(file, wanted, plan, self._pool, self._pages)

    def decode_at_once(self, plans: Sequence[PiecePlan], groups: Sequence[RowGroup]) -> DecodedPiece:
        """See `RowReader`."""
        number, rows = groups[0].file, sum(group.rows for group in groups)
        plan, places = plans[self._kind_of[number]], [group.index for group in groups]
        leaves = self._leaves_of(number)
        faults = replace(self.faults, notes=None)
        wanted = GroupRows(group=places[0], start=0, stop=rows, to_end=True, schema=0, faults=faults, leaves=leaves)

        assert self._small is not None
        with self._open_files.using(self._known(number)) as file:
            batch = self._small.read(file.parquet, file.source, file.chunks, places, leaves(plan.batches.paths), rows)
        piece = decode_batch(batch, wanted, plan)
        if self._pages is not None and plan.stored:
            with self._lock:
                self._coalesced.update({each.field.name: len(groups) for each in plan.stored})
        return piece

    def small(self, plans: Sequence[PiecePlan]) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [groups], the file of row groups that are decoded together with others of this file, -1 of others;
        float64 [groups], their share in what is decoded at once).

        Decoded bytes are known where rows are flat. Of lists the bytes of the file stand for them: long lists are
        decoded faster from pages, and by several threads.
        """
        rows, files = self.groups.row_counts, self.groups.files
        together = np.array([self._together(*each) for each in zip(self.kinds, plans, strict=True)])
        width = np.array([8 * len(plan.batches.read) if plan.batches.flat else 0 for plan in plans])
        kind, stored = self._kind_of[files], self.catalog.size / np.maximum(np.diff(self.catalog.first), 1)
        size = np.where(width[kind] > 0, rows * width[kind], stored[files])
        share = np.maximum(rows / _MOST_ROWS, size / _MOST_BYTES)
        small = self.groups.whole & (share <= 0.5) & together[kind]
        return np.where(small, files, -1), np.where(small, share, 0.0)

    def _together(self, kind: FileKind, plan: PiecePlan) -> bool:
        """Whether row groups of such files may be decoded together."""
        if self._small is None or plan.batches.map is not None or (self.source.only_pages and plan.stored):
            return False
        return all(self._small.readable(kind.schema.field(name).type) for name in plan.batches.read)

    def _leaves_of(self, file: int) -> Callable[[Paths], tuple[int, ...]]:
        """See `GroupRows.leaves`. The leaf columns are those of the file's own schema: where a column holds nothing but
        nulls, `FileKind.schema` has another type."""
        number = int(self.catalog.schema_of[file])
        if number not in self._leaves:
            self._leaves[number] = cache(partial(leaves_at, self.catalog.schemas[number]))
        return self._leaves[number]

    def describe(self) -> dict[str, Any]:
        """What was found, and what finding it took; JSON-able."""
        return {
            **({} if self.version is None else {"table": self.version}),
            "files": len(self.catalog) - self.samples,
            "pruned_files": self.pruned,
            "pruned_row_groups": self.pruned_groups,
            "row_groups": len(self.groups),
            "rows": int(self.groups.row_counts.sum()),
            "bytes": int(self.catalog.size[self.samples :].sum()),
            "decoder": self._decoder(),
            "schemas": len(set(self.catalog.schema_of.tolist())),
            "skipped": len(self.skipped),
            "seconds": {phase: round(seconds, 4) for phase, seconds in self.seconds.items()},
        }

    def _decoder(self) -> dict[str, Any]:
        """Column chunks so far: how many were decoded from pages, and by field why other lists were left to pyarrow."""
        if self._pages is None:
            return {"name": "pyarrow"}
        left: dict[str, dict[str, int]] = {}
        for (field, reason), chunks in sorted(self._pages.left.items()):
            left.setdefault(field, {})[reason] = chunks
        for field, chunks in self._coalesced.items():
            left.setdefault(field, {})[_SMALL] = chunks
        pages = self._pages
        return {"name": "pages", "chunks": pages.chunks, "skipped_pages": pages.skipped, "pyarrow": left}

    @property
    def counted(self) -> dict[Field, Counted]:
        """What the integers of fields count, of those whose columns have values: in all files the same, as `bind` has
        found."""
        found: dict[Field, Counted] = {}
        for number, kind in enumerate(self.kinds):
            for binding in kind.bindings:
                if binding.unit is not None and binding.field not in found:
                    file = self.catalog.files.name(int(np.argmax(self._kind_of == number)))
                    found[binding.field] = Counted.from_binding(binding, f"{self.label}, {file}")
        return found

    def close(self) -> None:
        self._open_files.close()
