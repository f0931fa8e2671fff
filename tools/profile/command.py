"""The command `freescale profile`, and its old name `simulate`: reads options, runs it, and shows the result."""

import contextlib
import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import check_folder
from freescale_tools.console.options import (
    CalibrationFile,
    Dim,
    EventTime,
    HardwareName,
    Histories,
    On,
    ProfileFile,
    ReportFolder,
    StoredHistories,
    floats,
    numbers,
    stored_histories,
)  # fmt: skip
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.profile.measure import Settings


class EngineName(enum.StrEnum):
    """What reads the files."""

    local = "local"
    ray = "ray"


def profile(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")
    ] = None,
    sequence: Annotated[
        list[str] | None,
        typer.Option(
            help="A list column of history events. May be given several times; what is computed follows the first. "
            "Default: found by names and lengths, as by `freescale init`; so is --time then."
        ),
    ] = None,
    candidates: Annotated[str | None, typer.Option(help="The list column of candidates.")] = None,
    out: ReportFolder = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--from", help="profile.json of an earlier run, or its folder, in place of files: predict anew."),
    ] = None,
    whole: Annotated[bool, typer.Option("--full", help="Print all tables of the page.")] = False,
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
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks of the job. Default: the most, up to 1024, that the rows are enough for."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a rank in a step. Default: 128, or fewer where rows are few.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Most events of a history. Default: as recommended.")] = None,
    stochastic_length: Annotated[
        float | None,
        typer.Option(
            metavar="ALPHA",
            help="Compare Sequence(sample=StochasticLength(alpha=ALPHA)) with truncation, in a table of --full. ALPHA "
            "is above 1 and at most 2.",
        ),
    ] = None,
    hardware: HardwareName = "h100-ib",
    dim: Dim = None,
    calibration: CalibrationFile = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            help="Numbers of parts that a step is computed in, such as 1,2,4,8: predict such steps, and which is best."
        ),
    ] = None,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Also more ranks than the rows are enough for, or than were calibrated."),
    ] = False,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(help="What an hour of a GPU costs, in any currency: the trade-off table shows money."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print profile.json instead of tables.")] = False,
) -> None:
    """Measure history lengths and say what FreeScale brings: one answer, code to paste, and a page with the rest.

    Reads the lengths of the named list columns once; with --quick, only footers. Damaged files and row groups
    are left out, counted and named. The exit status is then 1.

    With --histories, every row is a request that sees the events of its key before its time: lengths,
    collisions and predictions are those of these windows, which no file holds.

    With --from nothing is read: the lengths and collisions of an earlier run are predicted from again, for other
    ranks, batch sizes, lengths, hardware, or a calibration.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.calibrate.calibration import load_calibration
        from freescale_tools.profile.measure import Settings
        from freescale_tools.profile.report import profile_report

        settings = Settings(
            ranks=ranks,
            batch_size=batch_size,
            max_length=max_length,
            hardware=hardware,
            ids=ids,
            share=share,
            dims=floats(dim),
            calibration=load_calibration(calibration) if calibration else None,
            extrapolate=extrapolate,
            gpu_hour_price=gpu_hour_price,
            parts=tuple(numbers(parts, "--parts") or ()),
            stochastic_length=stochastic_length,
        )
        check_folder(out)
        if earlier is not None:
            of_files = {
                "PATHS": paths, "--sequence": sequence, "--candidates": candidates, "--quick": quick, "--time": time,
                "--ids": ids, "--histories": histories, "--on": on, "--event-time": event_time, "--share": share,
            }  # fmt: skip
            if given := [name for name, value in of_files.items() if value]:
                raise UsageError(f"--from {earlier} reads no files: leave out {', '.join(given)}")
            document, notes = _predicted_anew(terminal, earlier, settings)
        elif not paths:
            raise UsageError("name the files to profile, or an earlier profile by --from")
        else:
            asked = Asked(
                sequences=tuple(sequence or ()), candidates=candidates, time=time,
                stored=stored_histories(histories, on=on, event_time=event_time, time=time), quick=quick,
                ray=engine is EngineName.ray,
            )  # fmt: skip
            asked.check(settings)
            document, notes = _profiled(terminal, paths, asked, settings)
        if document["answer"] and not whole:
            notes = [*notes, "--full prints the tables of the page, too."]
        whole = whole or not document["answer"]
        terminal.finish(document, profile_report(document), out, "profile", notes=notes, whole=whole)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of the files is read, and how."""

    sequences: tuple[str, ...]
    candidates: str | None
    time: str | None
    stored: StoredHistories | None
    quick: bool
    ray: bool

    def check(self, settings: "Settings") -> None:
        """Raise UsageError for what does not go together."""
        share, stored = settings.share, self.stored
        if share and stored is None:
            raise UsageError(f"--share {share} needs histories that are stored once: name them with --histories")
        if share and stored and share != stored.on:
            said = f"samples share the histories of the key of --on, and that is {stored.on}"
            raise UsageError(f"--share {share}: {said}")
        if stored and self.quick:
            said = "windows of histories are found by the time of each row: leave out --quick"
            raise UsageError(f"--quick reads no rows, and {said}")
        if stored and self.ray:
            said = "all of them are in the memory of this process. Leave out --engine"
            raise UsageError(f"--engine ray cannot read --histories: {said}")
        if stored and not self.sequences:
            raise UsageError("--histories needs --sequence, a list column of the table of histories")
        predicting = (settings.ids, settings.calibration, settings.gpu_hour_price, settings.stochastic_length)
        if self.quick and (self.time or any(predicting)):
            raise UsageError(
                "--quick reads no rows and predicts nothing: leave out --time, --ids, --calibration, "
                "--gpu-hour-price and --stochastic-length, or --quick"
            )


def _predicted_anew(terminal: Terminal, earlier: Path, settings: "Settings") -> tuple[dict[str, Any], list[str]]:
    from freescale_tools.model.profiles import read_profile
    from freescale_tools.profile.predict import predict

    document = read_profile(earlier)
    if document["mode"] != "full":
        raise UsageError(f"{earlier} is of a quick profile, which has no lengths: profile the files without --quick")
    return document, predict(document, settings, bar=terminal.progress)


def _profiled(
    terminal: Terminal, paths: list[str], asked: Asked, settings: "Settings"
) -> tuple[dict[str, Any], list[str]]:
    """(profile.json, why parts of it are null)."""
    from freescale_tools.profile import measure
    from freescale_tools.scan.columns import bind
    from freescale_tools.scan.discover import discover
    from freescale_tools.scan.engines import REMOTE_THREADS, Threads, cluster
    from freescale_tools.scan.files import open_files
    from freescale_tools.scan.histories import open_requests

    # Refused before files are opened, if they can be.
    columns = measure.Columns(sequences=asked.sequences, candidates=asked.candidates, time=asked.time)
    files, stored = open_files(paths), asked.stored
    found: list[str] = []
    if not columns.sequences:
        guess = discover(files)
        found = list(guess.notes)
        columns = dataclasses.replace(columns, sequences=guess.sequences, time=asked.time or guess.time)
    lists = list(dict.fromkeys([*columns.sequences, *([settings.ids] if settings.ids else [])]))
    histories = contextlib.nullcontext() if stored is None else open_requests(files, stored, lists, paths=paths)
    with histories as requests:
        if settings.ids is not None:
            bind(requests.table if requests else files, [settings.ids], "ids")  # before all lengths are read
        if asked.quick:
            document = measure.quick(files, columns, paths=paths)
            terminal.skipped(document["skipped"])
            return document, found
        from freescale_tools.profile.predict import Data, predict  # late: --quick needs nothing of it

        threads = Threads(None if files.footers[0].file.local else REMOTE_THREADS)
        with (
            cluster() if asked.ray else contextlib.nullcontext(threads) as where,
            terminal.progress("reading lengths", rows=files.rows) as progress,
        ):
            document = measure.full(files, columns, paths=paths, engine=where, progress=progress, requests=requests)
        terminal.skipped(document["skipped"])
        data = Data(files=files, time=columns.time, requests=requests)
        return document, [*found, *predict(document, settings, data, bar=terminal.progress)]


def simulate(
    profile_: ProfileFile,
    hardware: HardwareName = "h100-ib",
    ranks: Annotated[list[str] | None, typer.Option(help="The largest of them is taken.")] = None,
    dim: Dim = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    max_length: Annotated[int | None, typer.Option()] = None,
    calibration: CalibrationFile = None,
    extrapolate: Annotated[bool, typer.Option("--extrapolate")] = False,
    parts: Annotated[list[str] | None, typer.Option()] = None,
    out: ReportFolder = None,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """The old name of `freescale profile --from`, for one more version."""
    typer.echo("simulate is now `freescale profile --from PROFILE`; this name goes with the next version", err=True)
    with Terminal(json=json):
        asked = numbers(ranks, "--ranks")
    profile(
        paths=None, earlier=profile_, hardware=hardware, ranks=asked[-1] if asked else None, dim=dim,
        batch_size=batch_size, max_length=max_length, calibration=calibration, extrapolate=extrapolate, parts=parts,
        out=out, json=json, whole=True,
    )  # fmt: skip
