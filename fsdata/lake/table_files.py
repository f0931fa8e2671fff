"""The files of one version of a Delta Lake or Iceberg table."""

from fsdata.catalog.catalog import Catalog
from fsdata.catalog.listing.file_list import FileList
from fsdata.decode.source_files import SourceFiles
from fsdata.lake.tables import TableVersion, gone, open_table


class TableFiles(SourceFiles):
    """Files of `ParquetSource(table=...)`."""

    _table: TableVersion | None = None

    def _opened(self) -> Catalog:
        try:
            catalog = super()._opened()
        except FileNotFoundError as error:
            if self._table is None:
                raise  # there is no such table
            raise gone(self.label, self._table.version, str(error)) from error
        assert self._table is not None
        self._table.check_files(catalog.files, self._threads, self.label)
        self.version = self._table.version
        return catalog

    def _listed(self) -> FileList:
        assert self.source.table is not None
        self._table = open_table(self.source.table, *self.source.table_parts)
        return self._table.files
