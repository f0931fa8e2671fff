"""Finds the Parquet files of a command, reads their footers, and names the files that cannot be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.levels import ListLevels, list_levels
from fsdata.catalog.footers import Footer, Skipped, read_footers
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.errors import CorruptFileError, SchemaError
from fsranks.machine.cores import usable_cores

_REMOTE_THREADS = 16  # reading remote footers is waiting, not computing
_NAMED = 3


class UnusableColumn(Exception):
    """A column cannot be used in one file. Other files may have it in a usable form."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf column of one file.

    Attributes:
        index: position among the leaf columns of the file.
        path: dotted, as Parquet has it (`item_ids.list.element`).
        is_list: whether it has one level of repetition.
        levels: of the list; None if only pyarrow can say its lengths.
    """

    index: int
    path: str
    is_list: bool
    levels: ListLevels | None


def open_files(paths: Sequence[str]) -> FileSet:
    """Find `paths` (files, globs, folders, hive partitions, URLs) and read all footers.

    Raises UsageError as `read_files` does, and if no file is readable.
    """
    found = read_files(paths)
    footers = tuple(answer for _, answer in found if isinstance(answer, Footer))
    skipped = tuple(
        Skipped(file=file.name, row_group=None, rows=0, reason=str(answer))
        for file, answer in found
        if isinstance(answer, CorruptFileError)
    )
    if not footers:
        raise UsageError(f"none of {len(found)} files is readable: {skipped[0].reason}")
    return FileSet(footers=footers, skipped=skipped)


def read_files(paths: Sequence[str], filesystem: Any = None) -> list[tuple[FileRef, Footer | CorruptFileError]]:
    """The files that `paths` stand for, each with its footer or the reason why it has none.

    Raises UsageError if a path stands for no file, or if a store or a file cannot be reached.
    """
    try:
        files = discover(paths, filesystem)
        threads = usable_cores() if files[0].local else _REMOTE_THREADS
        return list(zip(files, read_footers(files, threads=threads, retry=Retrying()), strict=True))
    except (FileNotFoundError, SchemaError) as error:
        raise UsageError(str(error)) from error
    except (OSError, pa.ArrowException) as error:
        names = ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"{names} cannot be read: {reason}. Check the address, the network, the credentials and the permissions"
        ) from error


def leaf(footer: Footer, column: str) -> Leaf | None:
    """The leaf of `column` in this file; None if the file lacks it. Names inside structs are dotted.

    Raises UnusableColumn for a column with several leaves (a struct, a list of structs) or with lists in
    lists.
    """
    schema = footer.metadata.schema
    found = [
        index
        for index in range(len(schema))
        if schema.column(index).path == column or schema.column(index).path.startswith(f"{column}.")
    ]
    if not found:
        return None
    if len(found) > 1:
        paths = ", ".join(schema.column(index).path for index in found[:5])
        raise UnusableColumn(f"{column} has {len(found)} leaf columns: name one of {paths}")
    one = schema.column(found[0])
    if one.max_repetition_level > 1:
        raise UnusableColumn(f"{column} holds lists in lists; a sequence is a list of numbers")
    levels = list_levels(schema, footer.schema, found[0])
    return Leaf(index=found[0], path=one.path, is_list=one.max_repetition_level == 1, levels=levels)
