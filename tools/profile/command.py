"""The command `freescale profile`: reads its options, runs it, and shows the result."""

import contextlib
import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import check_folder
from freescale_tools.console.options import (
    RANKS,
    CalibrationFile,
    Dim,
    EventTime,
    Histories,
    On,
    ReportFolder,
    StoredHistories,
    floats,
    numbers,
    stored_histories,
)  # fmt: skip
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.profile.measure import Columns, Settings
    from freescale_tools.scan.files import FileSet


class EngineName(enum.StrEnum):
    """What reads the files."""

    local = "local"
    ray = "ray"


def profile(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    sequence: Annotated[
        list[str] | None,
        typer.Option(
            help="A list column of history events. May be given several times; what is computed follows the first. "
            "Default: the only list column."
        ),
    ] = None,
    candidates: Annotated[str | None, typer.Option(help="The list column of candidates.")] = None,
    out: ReportFolder = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read footers only: rows, events and means, by file.")] = False,
    time: Annotated[
        str | None,
        typer.Option(help="The column with the time of a row, integers or timestamps. Shows lengths over time."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="The column whose collisions are counted. Default: the first --sequence.")
    ] = None,
    histories: Histories = None,
    on: On = None,
    event_time: EventTime = None,
    share: Annotated[
        str | None,
        typer.Option(help="Predict what Sequence(share=KEY) saves; KEY is that of --on."),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="local: threads of this process. ray: a Ray cluster.")
    ] = EngineName.local,
    batch_size: Annotated[int, typer.Option(help="Samples of a rank in a step.")] = 128,
    dim: Dim = None,
    calibration: CalibrationFile = None,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Simulate steps of more ranks than the rows are enough for, too."),
    ] = False,
    ranks: Annotated[
        list[str] | None,
        typer.Option(help="Numbers of ranks, such as 8,64,512. Default: the powers of two from 8 to 1024."),
    ] = None,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(help="What an hour of a GPU costs, in any currency: the trade-off table shows money."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print profile.json instead of tables.")] = False,
) -> None:
    """Measure history lengths and predict what FreeScale brings: stragglers, settings, collisions, speed.

    Reads the lengths of the named list columns once; with --quick, only footers. Damaged files and row groups
    are left out, counted and named. The exit status is then 1.

    With --histories, every row is a request that sees the events of its key before its time: lengths,
    collisions and predictions are those of these windows, which no file holds.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.calibrate.calibration import load_calibration
        from freescale_tools.profile.measure import Columns, Settings
        from freescale_tools.profile.report import profile_report
        from freescale_tools.scan.columns import only_list
        from freescale_tools.scan.files import open_files

        columns = Columns(sequences=tuple(sequence or ()), candidates=candidates, time=time)
        settings = Settings(
            ranks=tuple(numbers(ranks, "--ranks") or RANKS),
            batch_size=batch_size,
            ids=ids,
            share=share,
            dims=floats(dim),
            calibration=load_calibration(calibration) if calibration else None,
            extrapolate=extrapolate,
            gpu_hour_price=gpu_hour_price,
        )
        check_folder(out)
        stored = stored_histories(histories, on=on, event_time=event_time, time=time)
        if share and stored is None:
            raise UsageError(f"--share {share} needs histories that are stored once: name them with --histories")
        if share and stored and share != stored.on:
            said = f"samples share the histories of the key of --on, and that is {stored.on}"
            raise UsageError(f"--share {share}: {said}")
        if stored and quick:
            said = "windows of histories are found by the time of each row: leave out --quick"
            raise UsageError(f"--quick reads no rows, and {said}")
        if stored and engine is EngineName.ray:
            said = "all of them are in the memory of this process. Leave out --engine"
            raise UsageError(f"--engine ray cannot read --histories: {said}")
        if quick and (time or ids or calibration or gpu_hour_price):
            raise UsageError(
                "--quick reads no rows and predicts nothing: leave out --time, --ids, --calibration and "
                "--gpu-hour-price, or --quick"
            )
        files = open_files(paths)
        if not columns.sequences:
            if stored is not None:
                raise UsageError("--histories needs --sequence, a list column of the table of histories")
            columns = dataclasses.replace(columns, sequences=(only_list(files),))
        document, notes = _profiled(terminal, paths, files, columns, settings, stored, None if quick else engine)
        terminal.finish(document, profile_report(document), out, "profile", notes=notes)


def _profiled(
    terminal: Terminal,
    paths: list[str],
    files: "FileSet",
    columns: "Columns",
    settings: "Settings",
    stored: StoredHistories | None,
    engine: EngineName | None,
) -> tuple[dict[str, Any], list[str]]:
    """(profile.json, why parts of it are null). Only footers are read if `engine` is None."""
    from freescale_tools.profile import measure
    from freescale_tools.scan.columns import bind
    from freescale_tools.scan.engines import REMOTE_THREADS, Threads, cluster
    from freescale_tools.scan.histories import open_requests

    lists = list(dict.fromkeys([*columns.sequences, *([settings.ids] if settings.ids else [])]))
    histories = contextlib.nullcontext() if stored is None else open_requests(files, stored, lists, paths=paths)
    with histories as requests:
        if settings.ids is not None:
            bind(requests.table if requests else files, [settings.ids], "ids")  # before all lengths are read
        if engine is None:
            document = measure.quick(files, columns, paths=paths)
            terminal.skipped(document["skipped"])
            return document, []
        from freescale_tools.profile.predict import predict  # late: --quick needs nothing of it

        threads = Threads(None if files.footers[0].file.local else REMOTE_THREADS)
        with (
            cluster() if engine is EngineName.ray else contextlib.nullcontext(threads) as where,
            terminal.progress("reading lengths", rows=files.rows) as progress,
        ):
            document = measure.full(files, columns, paths=paths, engine=where, progress=progress, requests=requests)
        terminal.skipped(document["skipped"])
        return document, predict(document, files, columns, settings, bar=terminal.progress, requests=requests)
