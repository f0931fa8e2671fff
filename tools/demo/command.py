"""The command `freescale demo`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal
from fsdata.errors import FreeScaleError

if TYPE_CHECKING:
    from freescale_tools.demo.data import DemoData
    from freescale_tools.demo.results import Outcome


def demo(
    data: Annotated[
        Path | None, typer.Option(help="A folder with your Parquet files. Default: a synthetic set.")
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            help="Aligned columns of integer lists, the item first: a,b,c. Default: those of the largest table."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Most events of a history; the last ones are kept. Default: 4096 with --data, else 21000."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a rank in a step. Default: depends on history lengths.")
    ] = None,
    requests: Annotated[
        bool, typer.Option(help="Train on the rows of a table of requests with histories as of their time, if any.")
    ] = True,
    parts: Annotated[
        int, typer.Option(help="Train twice more, with each step computed in so many parts, at most 64. 1: do not.")
    ] = 1,
    zch: Annotated[
        bool, typer.Option("--zch", help="Train twice more, with tables behind managed collision, and evictions.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 14,
    ranks: Annotated[int, typer.Option(help="Number of training processes, one core each.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic set and of the model.")] = 0,
    folder: Annotated[Path, typer.Option(help="Folder for the synthetic set and the picture.")] = Path(
        "freescale-demo"
    ),
) -> None:
    """Train a small model plainly, with FreeScale's loader, with its communication, and with both.

    --parts computes steps in parts besides, and says what that brings here. --zch also trains with fewer rows than ids.
    """
    with Terminal() as terminal:
        numbers = {
            "--max-length": max_length,
            "--batch-size": batch_size,
            "--parts": parts,
            "--steps": steps,
            "--ranks": ranks,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if sequence is not None and data is None:
            raise UsageError("--sequence names columns of --data; the synthetic set needs none")

        from freescale_tools.demo.data import synthetic
        from freescale_tools.demo.discover import MAX_LENGTH, discover
        from freescale_tools.write.synth.presets import Lengths, demo_set
        from fscomm.plan.number_of_parts import MOST_PARTS

        if parts > MOST_PARTS:
            raise UsageError(f"--parts must be at most {MOST_PARTS}, got {parts}: each is one more pass of the model")
        if data is None:
            terminal.say(f"writing the synthetic set to {folder}")
            try:
                files = demo_set(folder, seed=seed)
            except OSError as error:
                raise CommandFailed(f"cannot write to {folder}: {error}") from error
            found = synthetic(files, batch_size=batch_size or 64, max_length=max_length or Lengths().clip)
        else:
            fields = tuple(name.strip() for name in (sequence or "").split(",") if name.strip())
            try:
                found = discover(
                    data,
                    sequence=fields,
                    max_length=max_length or MAX_LENGTH,
                    batch_size=batch_size,
                    world_size=ranks,
                    requests=requests,
                )
            except (FreeScaleError, OSError) as error:
                raise UsageError(f"{data}: {error}") from error
        if parts > found.batch_size:
            raise UsageError(
                f"--parts {parts} cuts the samples that a rank has in a step, which are {found.batch_size} here: "
                f"give --batch-size {parts} or more, or fewer parts"
            )
        run(terminal, found, folder, steps=steps, ranks=ranks, seed=seed, parts=parts, zch=zch)


def run(
    terminal: Terminal,
    data: "DemoData",
    folder: Path,
    *,
    steps: int = 14,
    ranks: int = 2,
    seed: int = 0,
    parts: int = 1,
    zch: bool = False,
) -> "Outcome":
    """Train on processes of this machine, print what came out, and draw the picture into `folder`.

    With `parts` above 1 it trains twice more, and computes each step in so many parts. With `zch` it trains twice more
    with tables behind managed collision.

    Raises UsageError if `zch` has too few steps, and CommandFailed if a rank fails, if runs differ that must be equal,
    or if `zch` evicts nothing.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from freescale_tools.demo.data import some_lengths
    from freescale_tools.demo.results import STEPS_PER_HOUR, draw, parts_verdict, show, show_maps, verdict
    from freescale_tools.demo.train import compare

    steps = min(steps, data.rows // (ranks * data.batch_size))
    if zch and steps < 2 * STEPS_PER_HOUR:
        raise UsageError(
            f"--zch needs {2 * STEPS_PER_HOUR} steps, the data and --steps give {steps}: ids expire when an hour is "
            f"over, {STEPS_PER_HOUR} steps; give more --steps or a smaller --batch-size"
        )
    terminal.say(f"{data.name}: {data.rows:,} samples, {steps} steps of {ranks} x {data.batch_size}")
    for note in data.notes:
        terminal.say(f"  {note}")
    launch = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id="freescale-demo", max_restarts=0, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
    )  # fmt: skip
    try:
        outcome: Outcome = elastic_launch(launch, compare)(data, steps, seed, parts, zch)[0]
    except ChildFailedError as error:
        raise CommandFailed(
            f"training failed on rank {error.get_first_failure()[0]}; its error stands above"
        ) from error
    picture = folder / f"{data.picture}.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw(outcome, picture, title=f"Time of every rank and step, {data.name}")
    except OSError as error:
        terminal.finding(f"cannot write {picture}: {error}")
    show(outcome, some_lengths(data), data.batch_size, terminal)
    if zch:
        show_maps(outcome, terminal)
    terminal.say(f"picture: {picture}")
    terminal.say(verdict(outcome))
    if parts > 1:
        terminal.say(parts_verdict(outcome))
    return outcome
