"""The command `freescale calibrate`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            help="CSV with step,rank,seconds,lengths (optional: candidates), or the JSON report of a BubbleMeter."
        ),
    ],
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="Parquet, CSV or NPY with step, rank and --sequence, one row per sample. Required with a report."
        ),
    ] = None,
    sequence: Annotated[
        str, typer.Option(help="Column of --lengths with the length of a sample or the list of its events.")
    ] = "length",
    ranks: Annotated[
        int | None, typer.Option(help="Ranks of the simulated balancing. Default: as many as were measured.")
    ] = None,
    skip: Annotated[int, typer.Option(help="How many first steps to leave out (warm-up).")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Fit a cost model to measured steps and print the line to paste.

    A row is one step of one rank: the seconds of forward and backward without waiting for other ranks, and
    the lengths of its batch as length:count;length:count. For example, 128:3;256:1 is three samples of 128
    events and one of 256. Exit status: 0 if lengths explain the seconds, 1 if they do not (R2 below 0.9), 2
    for wrong usage.
    """
    with Terminal(json=json) as terminal:
        _run(terminal, measured, lengths, sequence, ranks, skip)


def _run(terminal: Terminal, measured: Path, lengths: Path | None, sequence: str, ranks: int | None, skip: int) -> None:
    from freescale_tools.calibrate.cost_model import advice, doubt
    from freescale_tools.calibrate.cost_model import calibrate as fit
    from freescale_tools.calibrate.measured_steps import read_steps
    from freescale_tools.calibrate.tables import show

    if ranks is not None and ranks < 2:
        raise UsageError(f"--ranks must be at least 2, got {ranks}")
    if skip < 0:
        raise UsageError(f"--skip must be 0 or more, got {skip}")
    document = fit(read_steps(measured, lengths, sequence), ranks=ranks, skip=skip)
    show(terminal, document, advice(document))
    doubtful = doubt(document)
    if doubtful is not None:
        terminal.finding(doubtful)
    terminal.result(document)
