"""The command `freescale optimize`: reads its options, runs it, and shows sizes and times before and after."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal

_SHOWN = 20
_NAMED = 12


def optimize(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    out: Annotated[Path, typer.Option(help="Folder to write to: local, and without any of the inputs.")],
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
        from freescale_tools.scan.files import open_files
        from freescale_tools.write.optimize.layout import UNIT_BYTES, Settings
        from freescale_tools.write.optimize.rewrite import optimize_all

        if row_group_rows is not None and unit_bytes is not None:
            raise UsageError("--row-group-rows and --unit-bytes are two ways to say the same: give one of them")
        try:
            size = UNIT_BYTES if unit_bytes is None else unit_bytes
            settings = Settings(row_group_rows=row_group_rows, unit_bytes=size)
        except ValueError as error:
            raise UsageError(f"--{str(error).replace('_', '-')}") from error
        files = open_files(paths)
        for skipped in files.skipped:
            terminal.finding(f"{skipped.file}: {skipped.reason}")
        with terminal.progress("rewriting", rows=files.rows, bytes=files.bytes) as progress:
            document = optimize_all(files, out, settings, progress, terminal.finding)
        _show(terminal, document)
        terminal.result(document)


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    files, total = document["files"], document["totals"]
    shown = files[:_SHOWN]
    if len(files) > 1:
        shown = [*shown, {"file": "all", "status": "", **total}]
    notes = []
    if len(files) > _SHOWN:
        notes.append(f"{len(files) - _SHOWN} more files; --json lists all.")
    seconds, size = total["decode_s"], total["bytes"]
    if seconds and seconds["before"]:
        change = size["after"] / size["before"] - 1 if size["before"] else 0.0
        notes.append("decode s: processor time for all columns, taken while the new file was compared with its source.")
        notes.append(f"Decoding {seconds['after'] / seconds['before'] - 1:+.0%}, size {change:+.0%}.")
    for what, meaning in (("required", "no nulls, now required"), ("delta", "stored as deltas")):
        names = document["layout"][what]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        notes += [f"{meaning}: {', '.join(names[:_NAMED])}{more}"] if names else []

    def change_of(values: dict[str, Any] | None, form: Callable[[float], str]) -> str:
        if values is None:
            return "-"
        return " > ".join("-" if values[when] is None else form(values[when]) for when in ("before", "after"))

    rows = [
        [
            one["file"],
            one["status"],
            f"{one['rows']:,}",
            change_of(one["row_groups"], str),
            change_of(one["bytes"], lambda count: f"{count / 1e6:,.1f}"),
            change_of(one["decode_s"], lambda value: f"{value:.3g}"),
        ]
        for one in shown
    ]
    terminal.table(
        f"Written to {document['out']}", ["file", "", "rows", "row groups", "MB", "decode s"], rows, notes=notes
    )
