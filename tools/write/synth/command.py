"""The command `freescale synth`: reads its options, runs it, and shows the result."""

import enum
import json as to_json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.write.synth.presets import Draws, Measured


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
    folder: Annotated[
        Path, typer.Argument(help="Folder to write to. Files of the same options are kept, others are replaced.")
    ],
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
        from freescale_tools.write.synth import presets

        if seed < 0:
            raise UsageError(f"--seed must be 0 or more, got {seed}")
        tables: Sequence[presets.Table]
        if preset is Preset.sources:
            if scale is not None:
                raise UsageError("--scale is for demo and reference; say --files and --rows")
            of_histories = _lengths(drawn, lengths_from, sequence)
            try:
                given = {name: value for name, value in shape.items() if value is not None}
                tables = presets.source_tables(folder, lengths=of_histories, **given)
            except ValueError as error:
                raise UsageError(f"--{str(error).replace('_', '-')}") from error
        else:
            others = {**shape, **drawn, **profile}
            if not_taken := [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]:
                raise UsageError(
                    f"{', '.join(not_taken)}: only for `synth sources`; {preset} is always the same but for --scale"
                )
            scale = 1.0 if scale is None else scale
            if scale <= 0:
                raise UsageError(f"--scale must be above 0, got {scale}")
            if preset is Preset.demo:
                tables = presets.demo_tables(folder, rows=max(round(24_000 * scale), 1))
            else:
                tables = [presets.reference_table(folder, rows_per_file=max(round(25_000 * scale), 1))]
        total = sum(table.files * table.rows for table in tables)
        try:
            with terminal.progress("writing", rows=total) as progress:
                paths = [
                    path for table in tables for path in table.write(seed, lambda rows: progress.advance(rows=rows))
                ]
            if preset is Preset.sources:
                paths.append(presets.write_schema(folder, len(tables)))
        except OSError as error:
            raise CommandFailed(f"cannot write to {folder}: {error}") from error
        for path in paths:
            terminal.say(str(path))
        terminal.result({"version": 1, "kind": "synth", "rows": total, "files": [str(path) for path in paths]})


def _lengths(options: dict[str, Any], lengths_from: Path | None, sequence: str | None) -> "Draws":
    """The distribution that the options name. Raises UsageError for options that contradict, or that it does not take.

    options: --lengths, --median, --p95 and --max, None if not given.
    """
    from freescale_tools.write.synth.presets import Constant, Lengths

    given = {name: value for name, value in options.items() if value is not None}
    if lengths_from is not None:
        if given:
            extra = ", ".join(f"--{name}" for name in given)
            raise UsageError(f"--lengths-from takes the lengths as they are: leave out {extra}")
        return from_profile(lengths_from, sequence)
    if sequence is not None:
        raise UsageError("--sequence chooses from a profile: give --lengths-from, too")
    name = given.pop("lengths", Distribution.lognormal)
    try:
        if name is Distribution.lognormal:
            return Lengths(**{"clip" if option == "max" else option: value for option, value in given.items()})
        if not_taken := [option for option in ("p95", "max") if option in given]:
            raise UsageError(f"--lengths constant takes --median, not --{not_taken[0]}")
        return Constant(length=round(given["median"])) if given else Constant()
    except ValueError as error:
        words = str(error).replace("clip", "--max").replace("median", "--median").replace("p95", "--p95")
        raise UsageError(f"--lengths {name}: {words}") from error


def from_profile(path: Path, sequence: str | None) -> "Measured":
    """The lengths that `freescale profile` found for one sequence; by default the first.

    Raises UsageError if the file is no profile, lacks the sequence, or was made with --quick.
    """
    from freescale_tools.scan.histogram import LengthHistogram
    from freescale_tools.write.synth.presets import Measured

    file = path / "profile.json" if path.is_dir() else path
    try:
        document = to_json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--lengths-from {file}: {error}") from error
    sequences = document.get("sequences") if isinstance(document, dict) else None
    if not isinstance(sequences, dict) or not sequences:
        raise UsageError(f"--lengths-from {file}: not a profile with sequences: write it with freescale profile")
    name = sequence or next(iter(sequences))
    if name not in sequences:
        raise UsageError(f"--lengths-from {file}: no sequence {name!r}; there are {', '.join(sequences)}")
    histogram = sequences[name].get("histogram")
    if not histogram:
        raise UsageError(f"--lengths-from {file}: a quick profile has no histogram: profile again without --quick")
    return Measured(histogram=LengthHistogram.from_dict(histogram), of=name)
