"""The files of a catalog that was made beforehand: nothing is listed, and no footer is read before planning."""

import time
from dataclasses import replace

import numpy as np

from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import Version
from fsdata.catalog.listing.find_files import found_now
from fsdata.decode.open_files import Known
from fsdata.decode.row_groups import left_out
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import CorruptFileError, SchemaError
from fsdata.lake.catalog_file import read_catalog_file


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
        """As their folders say now, whatever the catalog says."""
        return self._versions_now()

    def _check_pruned(self, catalog: Catalog, kept: np.ndarray, read: np.ndarray, before: np.ndarray) -> None:
        if self._counted:
            some = left_out(catalog, read, before, self.source.skip, self.source.limit)
            self._replaced(catalog, some[~kept[some]])

    def _what_is_known(self, number: int) -> Known:
        """With what the catalog says of its row groups: anybody may have written it."""
        catalog, known = self.catalog, super()._what_is_known(number)
        rows = catalog.rows[catalog.first[number] : catalog.first[number + 1]]
        return replace(known, rows=rows, schema=catalog.schema(number))

    def _look_at_files(self) -> None:
        """Check that files of the catalog are still those of which something is left out; the others are compared when
        they are opened."""
        catalog = self.catalog
        assert self._before is not None
        some = left_out(catalog, self._keep, self._before, self.source.skip, self.source.limit)
        for number in self._replaced(catalog, some):
            self._keep[catalog.first[number] : catalog.first[number + 1]] = False

    def _replaced(self, catalog: Catalog, some: np.ndarray) -> list[int]:
        """Which of the files `some` of a catalog have another size or time now; they are noted under
        `on_error="skip"`.

        Raises: FileNotFoundError; CorruptFileError under `on_error="raise"`.
        """
        found = []
        files = catalog.files.without(np.delete(np.arange(len(catalog)), some).tolist())
        now = found_now(files, threads=self._at_once(files), retry=self.retry)
        for number, then, there in zip(some.tolist(), files.versions[:, :2].tolist(), now, strict=True):
            path = catalog.files.path(number)
            if there is None:
                raise FileNotFoundError(f"{self.label}: {path}: no such file. {self.advice}")
            if then[0] != there[0] or 0 < then[1] != there[1] > 0:
                reason = f"{path}: replaced after it was listed: its size or time is another. {self.advice}"
                if self.source.on_error == "raise":
                    raise CorruptFileError(f"{self.label}: {reason}")
                self.leave_out(catalog.files.name(number), reason)
                found.append(number)
        return found
