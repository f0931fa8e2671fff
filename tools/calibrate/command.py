"""`freescale calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            help="CSV with columns step,rank,seconds,lengths and maybe candidates, or the JSON report of a BubbleMeter."
        ),
    ],
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="Parquet, CSV or NPY with step, rank and --sequence, one row per sample. Needed with a report."
        ),
    ] = None,
    sequence: Annotated[
        str, typer.Option(help="Column of --lengths: the length of a sample, or the list of its events.")
    ] = "length",
    ranks: Annotated[int | None, typer.Option(help="Ranks of the simulated balancing. Default: as measured.")] = None,
    skip: Annotated[int, typer.Option(help="Leave out the first steps (warm-up).")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Fit a cost model to measured steps and print the line to paste.

    A row is one step of one rank: seconds of forward and backward without waiting for others, and the lengths of its
    batch as length:count;length:count, such as 128:3;256:1 for three samples of 128 events and one of 256. Exit status
    0: lengths explain the seconds, 1: they do not (R2 below 0.9), 2: wrong usage.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, measured, lengths, sequence, ranks, skip)


def _run(terminal: Terminal, measured: Path, lengths: Path | None, sequence: str, ranks: int | None, skip: int) -> None:
    from freescale_tools.calibrate.cost_model import advice, doubt
    from freescale_tools.calibrate.cost_model import calibrate as fit
    from freescale_tools.calibrate.measured_steps import read_steps

    if ranks is not None and ranks < 2:
        raise UsageError(f"--ranks must be at least 2, got {ranks}")
    if skip < 0:
        raise UsageError(f"--skip must be 0 or more, got {skip}")
    document = fit(read_steps(measured, lengths, sequence), ranks=ranks, skip=skip)
    _show(terminal, document, advice(document))
    doubtful = doubt(document)
    if doubtful is not None:
        terminal.finding(doubtful)
    terminal.result(document)


def _show(terminal: Terminal, document: dict[str, Any], said: list[str]) -> None:
    left = document["simulated"]
    rows = [
        ["samples where they fall", None, None, _percent(left["as_dealt"])],
        ["tokens only", document["r2_tokens"], _percent(document["typical_error_tokens"]), _percent(left["by_tokens"])],
        ["fitted", document["r2"], _percent(document["typical_error"]), _percent(left["by_model"])],
        ["fitted, if it were exact", None, None, _percent(left["model_alone"])],
    ]
    of_ranks = document["measured_straggler"]
    notes = [
        f"From {document['rows']:,} rows: {document['steps']:,} steps, {document['ranks']:,} ranks, "
        f"{document['samples']:,} samples." + ("" if of_ranks is None else f" Straggler as measured: {of_ranks:.1%}."),
        "error: standard deviation of measured / predicted seconds. straggler: mean idle share while ranks wait for "
        f"the slowest, in {left['steps']} simulated steps of {left['ranks']} ranks, each with the error of a row.",
        *said,
    ]
    terminal.table("Cost model", ["planned by", "R2", "error", "straggler"], rows, notes=notes)
    terminal.say(f"\ncost={document['cost_model']}")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}"
