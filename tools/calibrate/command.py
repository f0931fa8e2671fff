"""The command `freescale calibrate`: reads its options, runs it, and shows the result."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            help="run.json that BubbleMeter.save wrote, or a CSV with step,rank,seconds,lengths (optional: candidates)."
        ),
    ],
    sequence: Annotated[
        str | None, typer.Option(help="A sequence of the run. Default: the one with most events.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks of the simulated balancing. Default: as many as were measured.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the calibration there, as JSON for --calibration of other commands.")
    ] = None,
    fscomm: Annotated[
        Path | None, typer.Option(help="A run of the same training with fscomm: what fscomm itself takes of a step.")
    ] = None,
    balanced: Annotated[
        Path | None, typer.Option(help="A run of the same training with balanced batches: what balancing itself takes.")
    ] = None,
    skip: Annotated[int, typer.Option(help="How many first steps to leave out (warm-up).")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Fit to measured steps what a step costs, and print the cost model to paste.

    A run of a BubbleMeter also gives the cost of an exchange by its size, and of a look-up and an update by row.

    A row is one step of one rank: the seconds of forward and backward without waiting for other ranks, and
    the lengths of its batch as length:count;length:count. For example, 128:3;256:1 is three samples of 128
    events and one of 256. Exit status: 0 if lengths explain the seconds, 1 if they do not (R2 below 0.9), 2
    for wrong usage.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.calibrate.calibration import advice, doubt
        from freescale_tools.calibrate.fits import calibrate as fit
        from freescale_tools.calibrate.measured_steps import read_steps
        from freescale_tools.calibrate.report import calibrate_blocks
        from freescale_tools.console.files import plain, write_whole

        if ranks is not None and ranks < 2:
            raise UsageError(f"--ranks must be at least 2, got {ranks}")
        if skip < 0:
            raise UsageError(f"--skip must be 0 or more, got {skip}")
        steps = read_steps(measured, sequence, skip=skip)
        same = sequence or (steps[0].sequence if steps else None) or None
        with_fscomm, with_balancing = (read_steps(path, same, skip=skip) if path else [] for path in (fscomm, balanced))
        document = fit(steps, ranks=ranks, fscomm=with_fscomm, balanced=with_balancing)
        doubtful = doubt(document)
        terminal.show(calibrate_blocks(document, advice(document), usable=doubtful is None))
        if doubtful is not None:
            terminal.finding(doubtful)
        elif out is not None:
            write_whole(out, dumps(document, default=plain, allow_nan=False) + "\n")
            terminal.say(f"written: {out}")
        terminal.result(document)
