"""The Parquet files of one source: found, bound to fields, and decoded with retries and the policy for damage."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fsdata.catalog.binding.bind import bind, encrypted_reads
from fsdata.catalog.binding.counted import Counted
from fsdata.catalog.catalog import Catalog, open_catalog
from fsdata.catalog.listing.file_list import UNKNOWN, FileList, Version
from fsdata.catalog.listing.find_files import discover, found_now, local_version
from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.prune import may_have_rows, pruned
from fsdata.catalog.retry import Retrying
from fsdata.decode.decode import ColumnDecoder, decode_rows
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.plan import DecodePlan
from fsdata.decode.readers.open_files import ExpectedFile, OpenFiles, OpenParquet, RemoteGroup, RemoteReads
from fsdata.decode.readers.row_groups import RowGroup, RowGroups
from fsdata.decode.readers.row_reader import DamagePolicy, Plans, RowReader, SmallGroups
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import CorruptFileError, Fault
from fsdata.kernels.footer import STORED
from fsdata.schema import Field
from fsdata.sources.source import ParquetSource
from fsranks.machine.cores import usable_cores

_REMOTE_THREADS = 16
_SMALL = "small row groups, decoded together"
_MORE_OPEN = 32  # local files, beside those of the decode threads


class SourceFiles(RowReader):
    """Files of a source, bound to the fields that are wanted. Thread-safe after construction.

    Attributes:
        wanted: the fields that are bound.
        pruned: number of files that are not read, because `filter` excludes their `key=value` folder.
        seconds: duration of opening by phase: listing (or reading a catalog), footers, binding.
        kind_of: int32 [files], index into `kinds`.

    Args:
        wanted: the fields to bind, or a function that names them given the catalog.
        index: the source's position in the loader.
        label: name of the source in messages.
        threads: number of footers that are read concurrently, and of files that are kept open.
        show: show a progress bar if reading footers takes long. hosts: share reading footers among hosts.
        pages: decodes lists in place of pyarrow, lazily: values stay encoded until they are copied to a batch.
        together: factory of the decoder for small row groups; None decodes each separately.
        remote: factory of the reader for files that are not local, given a function that opens one.
        notes: list to which faults are added, see `fsdata.errors.Fault`; None raises the first fault.

    Raises:
        FileNotFoundError, PermissionError, CorruptFileError, SchemaError: see `open_source`.
    """

    groups: RowGroups
    samples = 0  # number of leading files that are not read: they only have the schema of later files
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
        pages: ColumnDecoder | None = None,
        together: "Callable[[SourceFiles], SmallGroups] | None" = None,
        remote: Callable[[Callable[[ExpectedFile], OpenParquet]], RemoteReads] | None = None,
        notes: list[Fault] | None = None,
    ) -> None:
        super().__init__(source, label, notes)
        self.retry = retry
        self._last_known: tuple[int, ExpectedFile] | None = None
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
        self.kinds, self.kind_of = bind(source, self.wanted, self.catalog, label, notes=notes)
        self.seconds["binding"] = time.perf_counter() - begin
        self._keep = may_have_rows(self.catalog, source) & readable
        self._keep[: self.catalog.first[self.samples]] = False
        self._index = index
        self._look_at_files()
        self.groups = self._groups()
        self._pool = pool
        self.pages = pages
        self.open_files = OpenFiles(keep=max(at_once, 2) + 1, advice=self.advice, more=_MORE_OPEN)
        self._remote = None if remote is None else remote(self.open_files.open)
        self.small_groups = None if together is None else together(self)

    @property
    def pruned_groups(self) -> int:
        """Number of row groups that are not read, because their statistics exclude a match of `filter`."""
        return int((~self._keep[self.catalog.first[self.samples] :]).sum())

    def open_more(
        self, files: FileList, bounds_of: Sequence[str] = ()
    ) -> tuple[Catalog, list[tuple[str, CorruptFileError]]]:
        """See `open_catalog`; with the bounds of the filter's columns."""
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
        """List the files and read their footers."""
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
        """Check pruned files, of which only the number of rows is used. For subclasses.

        Args:
            kept: bool [files]. read: bool [row groups]. before: int64 [row groups], the rows before each.
        """

    def _look_at_files(self) -> None:
        """Check files when kinds and kept row groups are set. For subclasses."""

    def _pruned(self, files: FileList) -> list[int]:
        without = pruned(files, self.source)
        self.pruned = len(without)
        return without

    @property
    def _counted(self) -> bool:
        """Whether `skip` or `limit` count rows, so that row counts of pruned files are needed, too."""
        return self.source.skip > 0 or self.source.limit is not None

    def _readable(self, catalog: Catalog) -> np.ndarray:
        """bool [row groups], false in files that have an encrypted column among those read; under `on_error="skip"`
        these files are added to `skipped`.

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
        """Version of every file: from listing, or from a new listing of their folders, which blocks."""
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
        """Number of concurrent requests."""
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
        """(bytes of row groups read from remote files, number of reads that were not planned)."""
        remote = self._remote
        return (0, 0) if remote is None else (remote.bytes_read, remote.unplanned_reads)

    def fetch(self, plans: Plans, group: RowGroup) -> RemoteGroup | None:
        """See `RowReader`; None if the file is local."""
        known, number = self.expected_file(group.file), group.file
        if known.file.local:
            return None
        leaves = plans[self.kind_of[number]].leaves
        if self._remote is None:
            raise ModuleNotFoundError(f"{known.file.path}: files that are not local are read by fsdata.remote")
        return self._remote.group(known, group.index, leaves)

    def expected_file(self, number: int) -> ExpectedFile:
        """Path, size and digest of a file, which are compared when it is opened."""
        last = self._last_known  # the next row group is mostly of the same file
        if last is not None and last[0] == number:
            return last[1]
        known = self._expect(number)
        self._last_known = number, known
        return known

    def _expect(self, number: int) -> ExpectedFile:
        catalog = self.catalog
        return ExpectedFile(catalog.files[number], int(catalog.size[number]), catalog.digest(number))

    def decode(
        self, plans: Plans, group: RowGroup, rows: range | None = None, fetched: RemoteGroup | None = None
    ) -> DecodedRows | None:
        """See `RowReader`. Reads the bytes of a remote row group that was not read ahead."""
        known, plan = self.expected_file(group.file), plans[self.kind_of[group.file]]
        remote = fetched or self.fetch(plans, group)
        rows, faults = group.range if rows is None else rows, self.faults_of(group)
        with DamagePolicy(self, group) as damage:
            for attempt in self.retry.attempts(known.file):
                with attempt, self.open_files.using(known) if remote is None else remote.opened() as file:
                    self.count_read(file, group.index, plan)
                    return decode_rows(file, group.index, rows, plan, faults, pool=self._pool, pages=self.pages)
        damage.raise_of_map()
        return None

    def count_read(self, file: OpenParquet, groups: int | Sequence[int], plan: DecodePlan) -> None:
        """Add the chunks of the plan's columns in some row groups to `bytes_read`."""
        if plan.rows_only:  # the footer has all that is needed
            return
        # Every chunk is read as a whole, also if only some of its rows or pages are decoded.
        stored = int(file.chunks[groups][..., plan.leaves, STORED].sum())
        with self._lock:
            self.bytes_read += stored

    def describe(self) -> dict[str, Any]:
        """See `RowReader`."""
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
        """Column chunks of lists so far: number decoded from pages, and per field the reasons for pyarrow."""
        if self.pages is None:
            return {"name": "pyarrow"}
        left: dict[str, dict[str, int]] = {}
        for (field, reason), chunks in sorted(self.pages.left.items()):
            left.setdefault(field, {})[reason] = chunks
        for field, chunks in ({} if self.small_groups is None else self.small_groups.counted()).items():
            left.setdefault(field, {})[_SMALL] = chunks
        pages = self.pages
        return {"name": "pages", "chunks": pages.chunks, "skipped_pages": pages.skipped, "pyarrow": left}

    @property
    def counted(self) -> dict[Field, Counted]:
        """See `RowReader`; of fields whose columns have values. `bind` has checked that all files agree."""
        found: dict[Field, Counted] = {}
        for number, kind in enumerate(self.kinds):
            for binding in kind.bindings:
                if binding.unit is not None and binding.field not in found:
                    file = self.catalog.files.name(int(np.argmax(self.kind_of == number)))
                    found[binding.field] = Counted.from_binding(binding, f"{self.label}, {file}")
        return found

    def close(self) -> None:
        self.open_files.close()
