"""Lists the Parquet files of a command, reads their footers, and lists the files that cannot be read."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.engines import REMOTE_THREADS
from freescale_tools.scan.footers import Footer, read_footers
from fsdata.catalog.footers import Skipped
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.errors import CorruptFileError, SchemaError
from fsranks.machine.cores import usable_cores

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """Files with a readable footer, in the order of the paths, and the files without one."""

    footers: tuple[Footer, ...]
    skipped: tuple[Skipped, ...]

    @property
    def rows(self) -> int:
        return sum(footer.metadata.num_rows for footer in self.footers)

    @property
    def row_groups(self) -> int:
        return sum(footer.metadata.num_row_groups for footer in self.footers)

    @property
    def bytes(self) -> int:
        """Stored size of all columns."""
        return sum(footer.size for footer in self.footers)


def open_files(paths: Sequence[str]) -> FileSet:
    """Find `paths` (files, globs, folders, hive partitions, URLs) and read all footers.

    Raises UsageError if a path stands for no file, if a store or a file cannot be reached, or if no file is readable.
    """
    try:
        files = discover(paths, None, label=named(paths))
        threads = usable_cores() if files[0].local else REMOTE_THREADS
        results = read_footers(files, threads=threads, retry=Retrying())
    except (FileNotFoundError, SchemaError) as error:
        raise UsageError(str(error)) from error
    except (OSError, pa.ArrowException) as error:
        raise out_of_reach(paths, error) from error
    footers = tuple(result for result in results if isinstance(result, Footer))
    skipped = tuple(
        Skipped(file=file.name, row_group=None, rows=0, reason=str(result))
        for file, result in zip(files, results, strict=True)
        if isinstance(result, CorruptFileError)
    )
    if not footers:
        raise UsageError(f"none of {len(results)} files is readable: {skipped[0].reason}")
    return FileSet(footers=footers, skipped=skipped)


def named(paths: Sequence[str]) -> str:
    """The first few paths, for a message."""
    return ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")


def out_of_reach(paths: Sequence[str], error: Exception) -> UsageError:
    """The error for files, or a store, that cannot be reached."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(
        f"{named(paths)} cannot be read: {reason}. Check the address, the network, the credentials and the permissions"
    )
