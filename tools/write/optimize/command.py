"""The command `freescale optimize`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal


def optimize(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    out: Annotated[Path, typer.Option(help="Folder to write to: local, and without any of the inputs.")],
    sort: Annotated[
        str | None, typer.Option(help="Sort the rows of every file by this column. Default: keep the order.")
    ] = None,
    row_group_rows: Annotated[
        int | None, typer.Option(help="Rows of a row group. Default: a power of two that fills about --unit-bytes.")
    ] = None,
    unit_bytes: Annotated[int | None, typer.Option(help="Decoded bytes of a row group. Default: 32 MiB.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Rewrite Parquet files for fast loading, and compare every value with its source.

    Columns and lists without nulls become required. Integers are stored as deltas if that is not larger. A
    row group holds one unit of the loader, and pages get checksums. Finished files are left alone, so the
    same command resumes an interrupted run.
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
    from freescale_tools.scan.files import open_files
    from freescale_tools.write.optimize.layout import UNIT_BYTES, Settings
    from freescale_tools.write.optimize.rewrite import jobs, optimize_all, summary
    from freescale_tools.write.optimize.tables import show

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
