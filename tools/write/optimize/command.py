"""The command `freescale optimize`: reads its options, runs it, and shows sizes and times before and after."""

from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal

_SHOWN = 20
_NAMED = 12
_MEANING = {"required": "no nulls, now required", "delta": "stored as deltas"}


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
        from freescale_tools.write.optimize.rewrite import jobs, optimize_all, summary

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
        todo = jobs(files, out, settings)
        with terminal.progress("rewriting", rows=files.rows, bytes=files.bytes) as progress:
            done = optimize_all(todo, settings, progress, terminal.finding)
        document = summary(done, files, out=out, settings=settings)
        _show(terminal, document)
        terminal.result(document)


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    total = {"file": "all", "status": "", **document["totals"]}
    shown = document["files"][:_SHOWN]
    rows = [_row(one) for one in ([*shown, total] if len(document["files"]) > 1 else shown)]
    notes = []
    if len(shown) < len(document["files"]):
        notes.append(f"{len(document['files']) - len(shown)} more files; --json lists all.")
    seconds, size = total["decode_s"], total["bytes"]
    if seconds and seconds["before"]:
        notes.append("decode s: processor time for all columns, taken while the new file was compared with its source.")
        notes.append(f"Decoding {seconds['after'] / seconds['before'] - 1:+.0%}, size {_change(size):+.0%}.")
    for what, names in document["layout"].items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        notes += [f"{_MEANING[what]}: {', '.join(names[:_NAMED])}{more}"] if names else []
    terminal.table(
        f"Written to {document['out']}", ["file", "", "rows", "row groups", "MB", "decode s"], rows, notes=notes
    )


def _row(one: dict[str, Any]) -> list[Any]:
    groups, size, seconds = one["row_groups"], one["bytes"], one["decode_s"]
    megabytes = {when: None if count is None else f"{count / 1e6:,.1f}" for when, count in size.items()}
    decode = "-" if seconds is None else _arrow({when: f"{value:.3g}" for when, value in seconds.items()})
    return [one["file"], one["status"], f"{one['rows']:,}", _arrow(groups), _arrow(megabytes), decode]


def _arrow(values: dict[str, Any]) -> str:
    return f"{values['before']} > {'-' if values['after'] is None else values['after']}"


def _change(values: dict[str, int]) -> float:
    return values["after"] / values["before"] - 1 if values["before"] else 0.0
