"""What rows are read with: files of all kinds, joined tables, decoders, read-ahead, and their kernels.

Extensions are imported inside functions, where an argument of the loader asks for them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.retry import Retrying
from fsdata.compose import is_there
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.decode import ColumnDecoder
from fsdata.decode.given_rows import GivenRows
from fsdata.decode.open_files import ExpectedFile, OpenParquet, RemoteReads
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_reader import SmallGroups
from fsdata.decode.source_checks import wanted_fields
from fsdata.decode.source_files import SourceFiles
from fsdata.errors import Fault, SchemaError
from fsdata.kernels.warm import RARE, READING
from fsdata.schema import Schema
from fsdata.sources.source import ParquetSource


def open_source(
    source: ParquetSource,
    schema: Schema,
    *,
    index: int = 0,
    threads: int | None = None,
    retry: Retrying | None = None,
    pool: Pool | None = None,
    show: bool = False,
    hosts: Hosts | None = None,
    notes: list[Fault] | None = None,
) -> OpenSource:
    """Find the files, read their footers, check them against the schema and load joined tables.

    Args:
        index: the source's position in the loader, for messages.
        threads: how many footers are read at a time.
        retry: repeats reads of remote files; None: as `source.retry` says.
        pool: where the values of all rows are copied to, for rows that stay long.
        show: a progress bar, if reading footers takes long. hosts: that share this work.
        notes: where the faults of files and rows are noted; None to raise the first. What is read then is of no use.

    Raises:
        FileNotFoundError, PermissionError: a path that cannot be opened.
        CorruptFileError: a file that is not Parquet, under `on_error="raise"`.
        SchemaError: everything in which the files differ from the schema, in one message.
        DataError: a joined table with duplicate keys.
    """
    label = f"source {index} ({source.label})"
    retry = retry or Retrying(source.retry)
    wanted = wanted_fields(source, schema, label)
    also = {} if source.events is None else {source.join[0]: source.events.lists(source, wanted)}
    options: dict[str, Any] = {"threads": threads, "retry": retry, "notes": notes}
    tables = [partial(open_joined, join, schema, label, also.get(join, {}), **options) for join in source.join]
    if source.rows is not None:
        main = partial(GivenRows, source, wanted, index=index, label=label, notes=notes)
        files, *attached = _all_or_errors([main, *tables])
    elif source.events is None:
        main = partial(files_of, source, wanted, index=index, label=label, lists=True, pool=pool, **options)
        files, *attached = _all_or_errors([partial(main, show=show, hosts=hosts), *tables])
    else:
        attached = _all_or_errors(tables)
        files = _events_of(source, wanted, attached, index=index, label=label, notes=notes)
    stages = _stages(attached, schema, index)
    return OpenSource(source, schema, files, attached, stages, index=index, label=label, retry=retry)


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
        from fsdata.growing.growing_files import GrowingFiles

        return GrowingFiles
    if source.table is not None:
        from fsdata.lake.tables import TableFiles

        return TableFiles
    if source.catalog is not None:
        from fsdata.lake.catalog_file import CatalogFiles

        return CatalogFiles
    return SourceFiles


def open_joined(
    join: Any, schema: Schema, rows: str, also: Mapping[str, bool] = MappingProxyType({}), **options: Any
) -> Attached:
    """The table of a join, read. Blocks.

    join: a `Joined`. rows: how messages call the rows. also: lists that the table has to have, see `EventSource.lists`.
    options: see `files_of`.
    """
    label = join.label(rows)
    open_files = partial(files_of, join.source, index=0, label=label, **options)
    if join.kind == "histories":
        from fsdata.histories.history_table import load_histories

        return load_histories(join, schema, open_files, label=label, also=also)
    if join.kind == "lookup table":
        from fsdata.histories.lookup_table import load_lookup

        return load_lookup(join, schema, open_files)
    from fsdata.tables.side_table import load_side_table

    return load_side_table(join, schema, open_files)


def _events_of(source: ParquetSource, *args: Any, **options: Any) -> Any:
    """Events of a joined table as rows, in place of `SourceFiles`."""
    from fsdata.histories.event_rows import EventRows

    return EventRows(source, *args, **options)


def _stages(attached: Sequence[Any], schema: Schema, source: int) -> list[Stage]:
    """What the joined tables of a source do to its pieces. source: its position in the loader."""
    sides = [table for table in attached if table.join.kind == "side table"]
    histories = [table for table in attached if table.join.kind == "histories"]
    lookups = [table for table in attached if table.join.kind == "lookup table"]
    stages = [side if side.source.follow is None else _late(side) for side in sides]
    if histories:
        from fsdata.histories.histories import Histories

        stages.append(Histories(histories, lookups, schema, source))
    if lookups:
        from fsdata.histories.lookup_table import Lookups

        stages.append(Lookups(lookups))
    return stages


def _late(side: Any) -> Stage:
    """Of a side table whose rows come while it is read."""
    from fsdata.growing.late_side import LateSide

    return LateSide(side)


def _all_or_errors(opens: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result of every call, or one SchemaError with the messages of all that raised it."""
    results, errors = [], []
    for attempt in opens:
        try:
            results.append(attempt())
        except SchemaError as error:
            errors.append(error)
    if errors:
        raise SchemaError("\n".join(str(error) for error in errors)) from errors[0]
    return results


def followed_data(opened: OpenSource, source: ParquetSource, schema: Schema, **order: Any) -> Any:
    """The rows of a source that is followed: a `Dataset`, which takes the same `order`."""
    from fsdata.growing.followed_data import FollowedData

    return FollowedData(opened, source, schema, **order)


def page_decoder(source: ParquetSource, pool: Pool | None) -> ColumnDecoder | None:
    """What decodes lists from pages, where the source wants that, or does not say and it is there."""
    if not source.uses_pages or not (source.only_pages or is_there("pages")):
        return None
    from fsdata.pages.page_decoder import PageDecoder

    return PageDecoder(pool or Pool())


def small_groups() -> Callable[[SourceFiles], SmallGroups] | None:
    """What decodes small row groups of a source together, if it is there."""
    if not is_there("pages"):
        return None
    from fsdata.pages.small_groups import SmallGroups

    return SmallGroups


def remote_files(open_one: Callable[[ExpectedFile], OpenParquet]) -> RemoteReads:
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
    kinds = {join.kind for source in sources for join in source.join}
    reading, rare = list(READING), list(RARE)
    if is_there("pages"):
        from fsdata.pages.kernels import called

        reading, rare = [*called.READING, *READING], [*called.RARE, *RARE]
    joined = _kernels_of_joined(kinds, world_size)
    return [*joined, *reading, *(rare if world_size > 1 else ())]


def _kernels_of_joined(kinds: Collection[str], world_size: int) -> list[Any]:
    """Those of tables of these kinds; see `Joined.kind`. Those of side tables are the same as of rows."""
    if not {"histories", "lookup table"} & set(kinds):
        return []
    from fsdata.histories.kernels import histories, lookups, resolve

    found = [resolve.gather_fields, *([resolve.gather_samples] if world_size > 1 else [])]
    found += histories.KERNELS if "histories" in kinds else ()
    found += [lookups.fill_places] if "lookup table" in kinds else []
    return found


def all_kernels() -> list[Any]:
    """Those of loaders, with those of the extensions that are there."""
    found = [*READING]
    if is_there("balance"):
        from fsdata.balance.kernels import called as of_balance

        found += of_balance.BALANCING
    if is_there("pages"):
        from fsdata.pages.kernels import called

        found = [*called.READING, *found, *called.RARE]
    if is_there("histories"):
        found = [*_kernels_of_joined(("histories", "lookup table"), 2), *found]
    return [*found, *RARE]
