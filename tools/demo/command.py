"""The command `freescale demo`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal


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
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 14,
    ranks: Annotated[int, typer.Option(help="Number of training processes, one core each.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic set and of the model.")] = 0,
    folder: Annotated[Path, typer.Option(help="Folder for the synthetic set and the picture.")] = Path(
        "freescale-demo"
    ),
) -> None:
    """Train a small model plainly, with FreeScale's loader, with its communication, and with both."""
    with Terminal() as terminal:
        for name, value in {
            "--max-length": max_length,
            "--batch-size": batch_size,
            "--steps": steps,
            "--ranks": ranks,
        }.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if sequence is not None and data is None:
            raise UsageError("--sequence names columns of --data; the synthetic set needs none")
        names = tuple(name.strip() for name in (sequence or "").split(",") if name.strip())
        _run(terminal, data, names, max_length, batch_size, requests, steps, ranks, seed, folder)


def _run(
    terminal: Terminal,
    data: Path | None,
    sequence: tuple[str, ...],
    max_length: int | None,
    batch_size: int | None,
    requests: bool,
    steps: int,
    ranks: int,
    seed: int,
    folder: Path,
) -> None:
    from rich.console import Console

    from freescale_tools.demo import data as demo_data
    from freescale_tools.demo.discover import MAX_LENGTH, discover
    from freescale_tools.demo.launch import Launch
    from freescale_tools.demo.launch import demo as run_demo
    from freescale_tools.write.synth.histories import Lengths
    from freescale_tools.write.synth.presets import demo_set

    try:
        if data is None:
            terminal.say(f"writing the synthetic set to {folder}")
            files = demo_set(folder, seed=seed)
            described = demo_data.synthetic(files, batch_size=batch_size or 64, max_length=max_length or Lengths().clip)
        else:
            described = discover(
                data,
                sequence=sequence,
                max_length=max_length or MAX_LENGTH,
                batch_size=batch_size,
                world_size=ranks,
                requests=requests,
            )
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error}") from error
    launch = Launch(steps=steps, ranks=ranks, seed=seed, picture=folder / "freescale-demo.png")
    run_demo(described, launch, Console())
