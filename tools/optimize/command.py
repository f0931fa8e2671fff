"""`freescale optimize`."""

from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal


def optimize(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (hive partitions, too) or URLs.")],
    out: Annotated[Path, typer.Option(help="Where to write: a local folder that holds none of the inputs.")],
    sort: Annotated[
        str | None, typer.Option(help="Sort the rows of every file by this column. Default: order untouched.")
    ] = None,
    row_group_rows: Annotated[
        int | None, typer.Option(help="Rows of a row group. Default: as many as --unit-bytes hold, a power of two.")
    ] = None,
    unit_bytes: Annotated[int | None, typer.Option(help="Decoded bytes of a row group. Default: 32 MiB.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Rewrite Parquet files for fast loading, and prove that every value is still there.

    Columns and lists without nulls become required, integers are stored as deltas where that is not larger, row groups
    hold one unit of the loader, pages get checksums. Files that are already done are left alone: a run that was
    interrupted is resumed by the same command.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, paths, out, sort, row_group_rows, unit_bytes)


def _run(
    terminal: Terminal,
    paths: list[str],
    out: Path,
    sort: str | None,
    row_group_rows: int | None,
    unit_bytes: int | None,
) -> None:
    from freescale_tools.optimize.layout import UNIT_BYTES, Settings
    from freescale_tools.optimize.rewrite import jobs, optimize_all, summary
    from freescale_tools.optimize.tables import show
    from freescale_tools.scan.files import open_files

    if row_group_rows is not None and unit_bytes is not None:
        raise UsageError("--row-group-rows and --unit-bytes are two ways to say the same: give one of them")
    try:
        size = UNIT_BYTES if unit_bytes is None else unit_bytes
        settings = Settings(sort=sort, row_group_rows=row_group_rows, unit_bytes=size)
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from error
    files = open_files(paths)
    for skipped in files.skipped:
        terminal.finding(f"{skipped.file}: {skipped.reason}")
    todo = jobs(files, out, settings)
    with terminal.progress("rewriting", rows=files.rows, bytes=files.bytes) as progress:
        done = optimize_all(todo, settings, progress, terminal.finding)
    document = summary(done, files, out=out, settings=settings)
    show(terminal, document)
    terminal.result(document)
