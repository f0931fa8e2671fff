"""What rows are read with: files of all kinds, decoders, read-ahead, and the kernels of all of them.

What the user says by an object of an extension (`AsOf`, `Follow`) needs nothing here: it opens itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fsdata.catalog.listing.hosts import Hosts
from fsdata.compose import is_there
from fsdata.decode.decode_piece import Pages
from fsdata.decode.open_files import Known, OpenParquet, RemoteReads
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.source_files import SourceFiles, Together
from fsdata.errors import Fault
from fsdata.kernels.warm import JOINS, RARE, READING
from fsdata.schema import Schema
from fsdata.sources.source import ParquetSource


def open_source(
    source: ParquetSource,
    schema: Schema,
    *,
    index: int = 0,
    threads: int | None = None,
    pool: Pool | None = None,
    show: bool = False,
    hosts: Hosts | None = None,
    notes: list[Fault] | None = None,
) -> OpenSource:
    """Find the files, read their footers, check them against the schema and load side tables.

    Args:
        index: the source's position in the loader, for messages.
        threads: how many footers are read at a time.
        pool: where the values of all rows are copied to, for rows that stay long.
        show: a progress bar, if reading footers takes long. hosts: that share this work.
        notes: where the faults of files and rows are noted; None to raise the first. What is read then is of no use.

    Raises:
        FileNotFoundError, PermissionError: a path that cannot be opened.
        CorruptFileError: a file that is not Parquet, under `on_error="raise"`.
        SchemaError: everything in which the files differ from the schema, in one message.
        DataError: a side table with duplicate keys.
    """
    return OpenSource(
        source,
        schema,
        index=index,
        open_files=files_of,
        threads=threads,
        pool=pool,
        show=show,
        hosts=hosts,
        notes=notes,
    )


def files_of(source: ParquetSource, *args: Any, lists: bool = False, pool: Pool | None = None, **options: Any) -> Any:
    """The files of a source, bound: a `SourceFiles`, which takes the same arguments but the decoders.

    lists: rows may refer to lists that are not decoded yet.
    """
    return _kind_of_files(source)(
        source,
        *args,
        pool=pool,
        pages=page_decoder(source, pool) if lists else None,
        together=small_groups(),
        remote=remote_files if is_there("remote") else None,
        **options,
    )


def _kind_of_files(source: ParquetSource) -> Any:
    if source.follow is not None:
        return source.follow.files
    if source.table is not None:
        from fsdata.lake.table_files import TableFiles

        return TableFiles
    if source.catalog is not None:
        from fsdata.lake.catalog_files import CatalogFiles

        return CatalogFiles
    return SourceFiles


def page_decoder(source: ParquetSource, pool: Pool | None) -> Pages | None:
    """What decodes lists from pages, where the source wants that, or does not say and it is there."""
    if not source.uses_pages or not (source.only_pages or is_there("pages")):
        return None
    from fsdata.pages.page_decoder import PageDecoder

    return PageDecoder(pool or Pool())


def small_groups() -> Together | None:
    """What reads small row groups at once, if it is there."""
    if not is_there("pages"):
        return None
    from fsdata.pages import small_groups

    return small_groups


def remote_files(open_one: Callable[[Known], OpenParquet]) -> RemoteReads:
    """What reads files that are not local."""
    from fsdata.remote.row_group import RemoteFiles

    return RemoteFiles(open_one)


def read_ahead_of(most: int) -> Any:
    """What reads row groups of such files ahead, up to `most` bytes."""
    from fsdata.remote.read_ahead import ReadAhead

    return ReadAhead(most)


def kernels_of(sources: Sequence[ParquetSource], world_size: int) -> list[Any]:
    """Those that reading the sources may call. Other ranks would wait where one is compiled later, so rare ones count,
    too."""
    joins = [join for source in sources for join in source.join]
    joined = [*(JOINS if joins else ()), *dict.fromkeys(each for join in joins for each in join.kernels())]
    reading, rare = list(READING), list(RARE)
    if is_there("pages"):
        from fsdata.pages.kernels import called

        reading, rare = [*called.READING, *READING], [*called.RARE, *RARE]
    return [*joined, *reading, *(rare if world_size > 1 else ())]


def all_kernels() -> list[Any]:
    """Those of loaders, with those of the extensions that are there."""
    found = [*JOINS, *READING]
    if is_there("balance"):
        from fsdata.balance.kernels import called as of_balance

        found += of_balance.BALANCING
    if is_there("pages"):
        from fsdata.pages.kernels import called

        found = [*called.READING, *found, *called.RARE]
    if is_there("histories"):
        from fsdata.histories.kernels import histories, lookups

        found += [*histories.KERNELS, lookups.fill_places]
    return [*found, *RARE]
