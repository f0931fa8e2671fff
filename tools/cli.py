"""The command line: `freescale synth` and `freescale demo`.

Exit status: 0 done, 1 something failed while running, 2 the arguments or the data they name cannot be used.
"""

import enum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
_errors = Console(stderr=True)


class Preset(enum.StrEnum):
    """The sets that `synth` can write."""

    demo = "demo"
    reference = "reference"


@app.callback()
def freescale() -> None:
    """Tools around FreeScale: write test data, see what FreeScale brings."""


@app.command()
def synth(
    preset: Annotated[Preset, typer.Argument(help="demo: two unlike sources and a user table; reference: 67 columns.")],
    folder: Annotated[Path, typer.Argument(help="Where to write; files that are already there are kept.")],
    scale: Annotated[
        float, typer.Option(help="1 is the full set: 24,000 rows (demo), 200,000 rows (reference).")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same values.")] = 0,
) -> None:
    """Write a heavy-tailed Parquet set: history lengths of median 180, p95 1,200, at most 21,000."""
    from . import synth as generator

    if scale <= 0:
        _refuse(f"--scale must be above 0, got {scale}")
    if seed < 0:
        _refuse(f"--seed must be 0 or more, got {seed}")
    try:
        if preset is Preset.demo:
            made = generator.demo_set(folder, rows=max(round(24_000 * scale), 1), seed=seed)
            paths = [*made.site, *made.partner, made.users]
        else:
            paths = generator.reference_set(folder, rows_per_file=max(round(25_000 * scale), 1), seed=seed)
    except OSError as error:
        _fail(f"cannot write to {folder}: {error}")
    for path in paths:
        typer.echo(path)


@app.command()
def demo(
    data: Annotated[
        Path | None, typer.Option(help="A folder of your Parquet files; without it, a synthetic set.")
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(help="Aligned integer list columns, the item first: a,b,c. Default: those of the largest table."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Keep the last so many events. Default: 4096 with --data, else 21000.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a rank and step. Default: by history length.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each of the four runs.")] = 14,
    ranks: Annotated[int, typer.Option(help="Processes that train, one core each.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the synthetic set and the model.")] = 0,
    folder: Annotated[Path, typer.Option(help="Where the synthetic set and the picture go.")] = Path("freescale-demo"),
) -> None:
    """Train a small sequence model plainly, with FreeScale's loader, with its communication, and with both."""
    for name, value in {
        "--max-length": max_length,
        "--batch-size": batch_size,
        "--steps": steps,
        "--ranks": ranks,
    }.items():
        if value is not None and value < 1:
            _refuse(f"{name} must be at least 1, got {value}")
    if sequence is not None and data is None:
        _refuse("--sequence names columns of --data; the synthetic set needs none")

    from .demo import data as demo_data
    from .demo.discover import MAX_LENGTH, DiscoveryError, discover
    from .demo.launch import DemoFailed, Launch
    from .demo.launch import demo as run_demo
    from .synth import Lengths, demo_set

    console = Console()
    try:
        if data is None:
            console.print(f"writing the synthetic set to {folder}", highlight=False)
            files = demo_set(folder, seed=seed)
            described = demo_data.synthetic(files, batch_size=batch_size or 64, max_length=max_length or Lengths().clip)
        else:
            described = discover(
                data,
                sequence=tuple(name.strip() for name in (sequence or "").split(",") if name.strip()),
                max_length=max_length or MAX_LENGTH,
                batch_size=batch_size,
                world_size=ranks,
            )
    except DiscoveryError as error:
        _refuse(str(error))
    except OSError as error:
        _fail(f"cannot write to {folder}: {error}")
    try:
        run_demo(described, Launch(steps=steps, ranks=ranks, seed=seed, picture=folder / "freescale-demo.png"), console)
    except DemoFailed as error:
        _fail(str(error))


def _refuse(message: str) -> NoReturn:
    _errors.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _fail(message: str) -> NoReturn:
    _errors.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)
