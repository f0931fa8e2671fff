"""The command `freescale synth`: reads its options, runs it, and shows the result."""

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.write.synth.presets import Table


class Preset(enum.StrEnum):
    """The sets that `synth` can write."""

    demo = "demo"
    reference = "reference"
    sources = "sources"


class Distribution(enum.StrEnum):
    """Distributions of history lengths."""

    lognormal = "lognormal"
    constant = "constant"


def synth(
    preset: Annotated[
        Preset,
        typer.Argument(
            help="demo: two unlike sources and a user table. reference: 67 columns. sources: as the options below say."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Folder to write to. Finished files in it are kept.")],
    scale: Annotated[
        float | None, typer.Option(help="Size of the set; 1 is 24,000 rows (demo) or 200,000 rows (reference).")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same values.")] = 0,
    sources: Annotated[int | None, typer.Option(help="Number of sources. Default: 1.")] = None,
    files: Annotated[int | None, typer.Option(help="Files of a source. Default: 4.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of a file. Default: 4,000.")] = None,
    row_group_rows: Annotated[int | None, typer.Option(help="Rows of a row group. Default: 512.")] = None,
    lengths: Annotated[
        Distribution | None, typer.Option(help="Distribution of history lengths. Default: lognormal.")
    ] = None,
    median: Annotated[float | None, typer.Option(help="Median of the lengths. Default: 180.")] = None,
    p95: Annotated[float | None, typer.Option(help="95th percentile of the lengths. Default: 1,200.")] = None,
    longest: Annotated[
        int | None, typer.Option("--max", help="Largest length; longer ones are cut. Default: 21,000.")
    ] = None,
    lengths_from: Annotated[
        Path | None, typer.Option(help="Draw lengths with the frequencies of this profile.json (or its folder).")
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="A sequence of the profile. Default: the first.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of file names.")] = False,
) -> None:
    """Write Parquet files with histories of uneven length.

    Lengths of demo and reference have median 180, p95 1,200 and maximum 21,000.
    """
    shape = {"sources": sources, "files": files, "rows": rows, "row_group_rows": row_group_rows}
    drawn = {"lengths": lengths, "median": median, "p95": p95, "max": longest}
    profile = {"lengths_from": lengths_from, "sequence": sequence}
    with Terminal(json=json) as terminal:
        if seed < 0:
            raise UsageError(f"--seed must be 0 or more, got {seed}")
        if preset is Preset.sources:
            if scale is not None:
                raise UsageError("--scale is for demo and reference; say --files and --rows")
            tables = _sources(folder, shape, drawn, profile)
        else:
            _refuse_others({**shape, **drawn, **profile}, preset)
            tables = _preset(preset, folder, 1.0 if scale is None else scale)
        _write(terminal, preset, folder, tables, seed)


def _write(terminal: Terminal, preset: Preset, folder: Path, tables: Sequence["Table"], seed: int) -> None:
    from freescale_tools.write.synth.presets import write_schema

    total = sum(table.files * table.rows for table in tables)
    try:
        with terminal.progress("writing", rows=total) as progress:
            paths = [path for table in tables for path in table.write(seed, lambda rows: progress.advance(rows=rows))]
        if preset is Preset.sources:
            paths.append(write_schema(folder, len(tables)))
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error}") from error
    for path in paths:
        terminal.say(str(path))
    terminal.result({"version": 1, "kind": "synth", "rows": total, "files": [str(path) for path in paths]})


def _preset(preset: Preset, folder: Path, scale: float) -> Sequence["Table"]:
    from freescale_tools.write.synth.presets import demo_tables, reference_table

    if scale <= 0:
        raise UsageError(f"--scale must be above 0, got {scale}")
    if preset is Preset.demo:
        return demo_tables(folder, rows=max(round(24_000 * scale), 1))
    return [reference_table(folder, rows_per_file=max(round(25_000 * scale), 1))]


def _sources(folder: Path, shape: dict[str, Any], drawn: dict[str, Any], profile: dict[str, Any]) -> Sequence["Table"]:
    from freescale_tools.write.synth.histories import Draws, from_profile, named
    from freescale_tools.write.synth.presets import source_tables

    lengths: Draws
    if profile["lengths_from"] is not None:
        extra = [f"--{name}" for name, value in drawn.items() if value is not None]
        if extra:
            raise UsageError(f"--lengths-from takes the lengths as they are: leave out {', '.join(extra)}")
        lengths = from_profile(profile["lengths_from"], profile["sequence"])
    elif profile["sequence"] is not None:
        raise UsageError("--sequence chooses from a profile: give --lengths-from, too")
    else:
        name = drawn["lengths"] or Distribution.lognormal
        lengths = named(name, median=drawn["median"], p95=drawn["p95"], longest=drawn["max"])
    try:
        return source_tables(
            folder, lengths=lengths, **{name: value for name, value in shape.items() if value is not None}
        )
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from error


def _refuse_others(options: dict[str, Any], preset: Preset) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: only for `synth sources`; {preset} is always the same but for --scale")
