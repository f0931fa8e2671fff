"""The parsed footers of the files of a command. fsdata itself keeps only the numbers of a catalog."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.footers import Schemas, check_footer, digest, parse_footer, raw_footer
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.retry import Retrying
from fsdata.errors import CorruptFileError
from fsdata.kernels import footer as kernel


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file; its numbers are consistent with each other and with the size of the file.

    Attributes:
        digest: hash of the raw footer, the file's identity.
        schema: see `ParsedFooter`.
        null_counts: int64 [row groups, leaf columns], -1 where the footer has none, or more than values.
    """

    file: FileRef
    size: int
    digest: str
    metadata: pq.FileMetaData = field(repr=False)
    schema: pa.Schema = field(repr=False)
    null_counts: np.ndarray = field(repr=False, compare=False)

    @property
    def row_groups(self) -> list[int]:
        """Rows of every row group."""
        return [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]


def read_footers(files: Sequence[FileRef], *, threads: int, retry: Retrying) -> list[Footer | CorruptFileError]:
    """One entry per file, in order: its footer, or the error of an unusable one."""
    schemas: Schemas = {}

    def entry(file: FileRef) -> Footer | CorruptFileError:
        try:
            return retry.call(lambda: read_footer(file, schemas), file)
        except CorruptFileError as error:
            return error

    with ThreadPoolExecutor(min(threads, len(files))) as pool:
        return list(pool.map(entry, files))


def read_footer(file: FileRef, schemas: Schemas) -> Footer:
    """Read and parse one footer. schemas: see `parse_footer`.

    Raises:
        FileNotFoundError, PermissionError: naming the file.
        CorruptFileError: not Parquet, truncated, or a footer that cannot be parsed or contradicts itself.
    """
    raw, size = raw_footer(file)
    metadata, schema, chunks = parse_footer(check_footer(raw, size, file), file, schemas)
    return Footer(file, size, digest(raw), metadata, schema, chunks[:, :, kernel.NULLS].copy())
