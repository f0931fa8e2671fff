"""Composes what reads rows: files of all kinds, joined tables, decoders, read-ahead, and their kernels.

Extensions are imported inside functions, where an argument of the loader asks for them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from fsdata.catalog.listing.hosts import Hosts
from fsdata.catalog.retry import Retrying
from fsdata.compose import installed
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.decode import ColumnDecoder
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.readers.given_rows import GivenRows
from fsdata.decode.readers.open_files import ExpectedFile, OpenParquet, RemoteReads
from fsdata.decode.readers.row_reader import SmallGroups
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.source_checks import wanted_fields
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
    seed: int = 0,
) -> OpenSource:
    """Find the files, read their footers, check them against the schema and load joined tables.

    Args:
        index: the source's position in the loader, for messages.
        threads: number of footers that are read concurrently.
        retry: repeats reads of remote files; None: as `source.retry` states.
        pool: memory to which the values of all rows are copied, for rows that are retained long.
        show: show a progress bar if reading footers takes long. hosts: share reading footers among hosts.
        notes: list to which faults of files and rows are added; None raises the first. Rows read with it are not valid
            samples.
        seed: of the numbers that `Sequence(sample=...)` draws.

    Raises:
        FileNotFoundError, PermissionError: a path that cannot be opened.
        CorruptFileError: a file that is not Parquet, under `on_error="raise"`.
        SchemaError: all contradictions of the files to the schema, in one message.
        DataError: a joined table with duplicate keys.
    """
    label = f"source {index} ({source.label})"
    retry = retry or Retrying(source.retry)
    wanted = wanted_fields(source, schema, label)
    extra = {} if source.events is None else {source.join[0]: source.events.lists(source, wanted)}
    options: dict[str, Any] = {"threads": threads, "retry": retry, "notes": notes}
    tables = [partial(open_joined, join, schema, label, extra.get(join, {}), **options) for join in source.join]
    if source.rows is not None:
        main = partial(GivenRows, source, wanted, index=index, label=label, notes=notes)
        files, *attached = _all_or_errors([main, *tables])
    elif source.events is None:
        main = partial(files_of, source, wanted, index=index, label=label, lists=True, pool=pool, **options)
        files, *attached = _all_or_errors([partial(main, show=show, hosts=hosts), *tables])
    else:
        from fsdata.histories.event_rows import EventRows

        attached = _all_or_errors(tables)
        files = EventRows(source, wanted, attached, index=index, label=label, notes=notes)
    stages = _stages(attached, schema, index)
    if schema.is_sampled:
        from fsdata.sampling.sampled_rows import SampledRows

        stages.append(SampledRows(schema, source, files, seed=seed, pool=pool or Pool()))
    return OpenSource(source, schema, files, attached, stages, index=index, label=label, retry=retry)


def files_of(source: ParquetSource, *args: Any, lists: bool = False, pool: Pool | None = None, **options: Any) -> Any:
    """The bound files of a source: a `SourceFiles`, which takes the same arguments except decoders and remote reads.

    lists: lists of the rows may stay encoded in their pages.
    """
    pages: ColumnDecoder | None = None
    together: Callable[[SourceFiles], SmallGroups] | None = None
    remote: Callable[[Callable[[ExpectedFile], OpenParquet]], RemoteReads] | None = None
    # With decoder="pages" a missing extension is an error; without the option pyarrow takes its place.
    if lists and source.uses_pages and (source.only_pages or installed("pages")):
        from fsdata.pages.page_decoder import PageDecoder

        pages = PageDecoder(pool or Pool())
    if installed("pages"):
        from fsdata.pages import small_groups

        together = small_groups.SmallGroups
    if installed("remote"):
        from fsdata.remote.row_group import RemoteFiles

        remote = RemoteFiles
    return _class_of_files(source)(source, *args, pool=pool, pages=pages, together=together, remote=remote, **options)


def _class_of_files(source: ParquetSource) -> Any:
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
    join: Any, schema: Schema, rows: str, extra: Mapping[str, bool] = MappingProxyType({}), **options: Any
) -> Attached:
    """Open and read the table of a join. Blocks.

    join: a `Joined`. rows: name of the main table in messages. extra: lists that rows are made of, see
    `EventSource.lists`. options: see `files_of`.
    """
    label = join.label(rows)
    open_files = partial(files_of, join.source, index=0, label=label, **options)
    if join.kind == "histories":
        from fsdata.histories.history_table import load_histories

        return load_histories(join, schema, open_files, label=label, extra=extra)
    if join.kind == "lookup table":
        from fsdata.histories.lookup_table import load_lookup

        return load_lookup(join, schema, open_files)
    from fsdata.tables.side_table import load_side_table

    return load_side_table(join, schema, open_files)


def _stages(attached: Sequence[Any], schema: Schema, source: int) -> list[Stage]:
    """The stages that complete decoded rows by joined tables. source: its position in the loader."""
    stages: list[Stage] = []
    histories = [table for table in attached if table.join.kind == "histories"]
    lookups = [table for table in attached if table.join.kind == "lookup table"]
    for table in attached:
        if table.join.kind == "side table" and table.source.follow is not None:
            from fsdata.growing.late_side import LateSide

            stages.append(LateSide(table))
        elif table.join.kind == "side table":
            stages.append(table)
    if histories:
        from fsdata.histories.histories import Histories

        stages.append(Histories(histories, lookups, schema, source))
    if lookups:
        from fsdata.histories.lookup_table import Lookups

        stages.append(Lookups(lookups))
    return stages


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


def read_ahead_of(most: int) -> Any:
    """Read-ahead of row groups of remote files, up to `most` bytes."""
    from fsdata.remote.read_ahead import ReadAhead

    return ReadAhead(most)


def kernels_of(sources: Sequence[ParquetSource], world_size: int, *, sampled: bool = False) -> list[Any]:
    """The kernels that reading the sources may call. With several ranks also the rare ones: while one rank compiles a
    kernel, the others would wait in an exchange.

    sampled: with those of `Sequence(sample=...)`.
    """
    kinds = {join.kind for source in sources for join in source.join}
    reading, rare = list(READING), list(RARE)
    if installed("pages"):
        from fsdata.pages.kernels import called

        reading, rare = [*called.READING, *READING], [*called.RARE, *RARE]
    joined = _kernels_of_joined(kinds, world_size)
    if sampled:
        from fsdata.sampling.kernels.chosen import SAMPLING

        joined += SAMPLING
    return [*joined, *reading, *(rare if world_size > 1 else ())]


def _kernels_of_joined(kinds: Collection[str], world_size: int) -> list[Any]:
    """The kernels of joined tables, by `Joined.kind`. Side tables have no kernels of their own."""
    if not {"histories", "lookup table"} & set(kinds):
        return []
    from fsdata.histories.kernels import histories, lookups, resolve

    kernels = [resolve.gather_fields, *([resolve.gather_samples] if world_size > 1 else [])]
    kernels += histories.KERNELS if "histories" in kinds else ()
    kernels += [lookups.fill_places] if "lookup table" in kinds else []
    return kernels


def all_kernels() -> list[Any]:
    """The kernels of any loader, with those of the installed extensions. Kernels that take long to compile come first,
    see `fsdata.kernels.warm`."""
    kernels = [*READING]
    if installed("balance"):
        from fsdata.balance.kernels import called as of_balance

        kernels += of_balance.BALANCING
    if installed("pages"):
        from fsdata.pages.kernels import called

        kernels = [*called.READING, *kernels, *called.RARE]
    if installed("histories"):
        kernels = [*_kernels_of_joined(("histories", "lookup table"), 2), *kernels]
    if installed("sampling"):
        from fsdata.sampling.kernels.chosen import SAMPLING

        kernels += SAMPLING
    return [*kernels, *RARE]
