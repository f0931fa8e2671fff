"""The command `freescale collisions`: reads its options, runs it, and shows the result."""

import contextlib
import enum
from dataclasses import asdict
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import check_folder, header
from freescale_tools.console.options import EventTime, Histories, On, ReportFolder, numbers, stored_histories
from freescale_tools.console.terminal import Terminal


class OrderName(enum.StrEnum):
    """Order of the rows in batches."""

    file = "file"
    shuffled = "shuffled"
    time = "time"


def collisions(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    ids: Annotated[str, typer.Option(help="The column of row ids: a list or a single id per sample.")],
    batch_size: Annotated[int, typer.Option(help="Samples of a rank in a step.")] = 128,
    ranks: Annotated[int, typer.Option(help="Ranks that share a global batch.")] = 64,
    max_length: Annotated[int | None, typer.Option(help="Keep only so many last events of a history.")] = None,
    dim: Annotated[int, typer.Option(help="Columns of the embedding table (float32), to compute bytes.")] = 128,
    time: Annotated[
        str | None,
        typer.Option(
            help="The column with the time of a row, for --order time and --ttl. Of a list, the last element counts."
        ),
    ] = None,
    histories: Histories = None,
    on: On = None,
    event_time: EventTime = None,
    order: Annotated[
        list[OrderName] | None,
        typer.Option(
            help="Order of the rows in batches. May be given several times; plots use the first. file: as a loader "
            "that does not shuffle; shuffled: as one that does, in windows of 4 row groups. Default: file, "
            "shuffled, and with --time also time."
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(help="Most pairs of batches to count at a point.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the shuffled order.")] = 0,
    table_rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of an embedding table: predict how many ids share a row of it, by modulo hashing and by "
            "multi-probe zero collision hashing (MPZCH). Ids are hashed first."
        ),
    ] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(help="Rows that MPZCH looks at for an id, at most: one number or several. Default: 8,32,128."),
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            help="Hours after which MPZCH may give the row of an id to another one, if the id does not occur. Needs "
            "--time: timestamps, dates, or integers, which are seconds since 1970."
        ),
    ] = None,
    hash_text: Annotated[
        bool, typer.Option("--hash", help="The ids are text: count hashes of it, as `fsdata.text_key` makes them.")
    ] = False,
    out: ReportFolder = None,
    json: Annotated[bool, typer.Option("--json", help="Print collisions.json instead of tables.")] = False,
) -> None:
    """Count table rows that consecutive global batches share, and predict the bytes that a step exchanges.

    A shared row cannot be prefetched; FreeScale hides the exchange of all other rows. Reads the id column, or
    as much of it as fits into memory. Damaged files and row groups are left out and named. The exit status is
    then 1.

    With --table-rows, also predict how many ids share a row of an embedding table of this size.

    With --histories, every row is a request that sees the ids of its key before its time.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.collisions.estimate import estimate
        from freescale_tools.collisions.report import collisions_report
        from freescale_tools.collisions.table_slots import PROBES, AskedTable
        from freescale_tools.scan.files import open_files
        from freescale_tools.scan.histories import open_requests

        check_folder(out)
        if hash_text and histories is not None:
            raise UsageError("--hash and --histories: the lists of histories hold numbers. Give one of both")
        if seed < 0:
            raise UsageError(f"--seed must be 0 or more, got {seed}")
        alone = [name for name, value in (("--probe", probe), ("--ttl", ttl)) if value is not None]
        if alone and table_rows is None:
            raise UsageError(f"{' and '.join(alone)} without --table-rows: give the rows of the embedding table, too")
        probes = tuple(numbers(probe, "--probe") or PROBES)
        table = None if table_rows is None else AskedTable(rows=table_rows, probes=probes, ttl=ttl)
        orders = [one.value for one in order or ()] or ["file", "shuffled", *(["time"] if time else [])]
        stored = stored_histories(histories, on=on, event_time=event_time, time=time)
        files = open_files(paths)
        opened = contextlib.nullcontext() if stored is None else open_requests(files, stored, [ids], paths=paths)
        with opened as requests, terminal.progress("reading ids", rows=files.rows) as progress:
            found = estimate(
                files,
                ids,
                batch_size=batch_size,
                ranks=ranks,
                max_length=max_length,
                dim=dim,
                orders=list(dict.fromkeys(orders)),
                time=time,
                seed=seed,
                pairs=pairs,
                progress=progress,
                requests=requests,
                table=table,
                hashed=hash_text,
            )
        found["skipped"] = [*map(asdict, files.skipped), *found["skipped"]]
        terminal.skipped(found["skipped"])
        document = {
            **header("collisions"),
            "paths": paths,
            "histories": None if stored is None else asdict(stored),
            "collisions": found,
        }
        terminal.finish(document, collisions_report(document), out, "collisions")
