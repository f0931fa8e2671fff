"""The files of a folder that grows: one file gives the schema by which all are bound, and each file is opened in the
segment that reads it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow.fs as pafs

from fsdata.catalog.binding.bind import bind
from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import UNKNOWN, FileList
from fsdata.catalog.listing.find_files import discover, root_of
from fsdata.catalog.prune import may_have_rows
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.errors import CorruptFileError
from fsdata.growing.follow import Follow


class GrowingFiles(SourceFiles):
    """Files of a source that is followed. At first it has one file, of which only the schema is used."""

    samples = 1

    def extend(self, names: Sequence[str], digests: Sequence[str]) -> None:
        """Add files below the root. Earlier files keep their numbers, and their row groups their positions.

        Raises:
            FileNotFoundError: a file is missing.
            CorruptFileError: a file is incomplete, or its footer does not have the digest in `digests`.
            SchemaError: the files cannot be read as the wanted fields, or not in the same way as earlier ones.
        """
        catalog, faults = self.open_more(self.named(names))
        for _, error in faults:
            raise CorruptFileError(f"{self.label}: {error}") from error
        for number, digest in enumerate(digests):
            if catalog.digest(number) != digest:
                raise CorruptFileError(
                    f"{self.label}: {names[number]} was replaced: its footer is not the one that was read when it came"
                )
        readable = self._readable(catalog)
        kinds, kind_of = bind(self.source, self.wanted, catalog, self.label, self.kinds)
        numbers = []
        for kind in kinds:
            if kind not in self.kinds:
                self.kinds = [*self.kinds, kind]
            numbers.append(self.kinds.index(kind))
        # Decoding threads read these attributes without a lock, one after another: entries of earlier files never move.
        self.kind_of = np.concatenate([self.kind_of, np.array(numbers, np.int32)[kind_of]])
        self._keep = np.concatenate([self._keep, may_have_rows(catalog, self.source) & readable])
        self.catalog = self.catalog.plus(catalog)
        self.groups = self._groups()

    def _opened(self) -> Catalog:
        """The catalog of one complete file, for its schema. Blocks until there is one."""
        follow = self.source.follow
        assert isinstance(follow, Follow)
        begin, label = time.monotonic(), cast("str | None", self.label)
        while True:
            names = self._listed_names(label)
            if names:
                label = None  # the warning about entries that are not read is logged once
            for name in names:
                with suppress(FileNotFoundError):  # removed after it was listed
                    catalog, _ = self.open_more(self.named([name]))
                    if len(catalog):
                        return catalog
            if follow.idle_s is not None and time.monotonic() - begin > follow.idle_s:
                raise FileNotFoundError(f"{self.label}: no whole file has come for {follow.idle}")
            time.sleep(min(follow.every_s, 1.0))

    def _listed_names(self, label: str | None) -> list[str]:
        """Names of the files below the root; label: see `discover`."""
        try:
            files = discover(self.source.path_list, self.source.filesystem, label=label)
        except FileNotFoundError:
            return []
        return list(files.below(self.root[1]).names())

    @cached_property
    def root(self) -> tuple[pafs.FileSystem, str]:
        """The filesystem and the folder that are followed."""
        return root_of(self.source.path_list[0], self.source.filesystem)

    def named(self, names: Sequence[str]) -> FileList:
        """Files below the root, by name."""
        system, root = self.root
        return FileList.from_entries(((system, root + name, UNKNOWN) for name in names), root)
