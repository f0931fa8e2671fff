"""The command `freescale simulate`: reads its options, runs it, and shows the result."""

from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.files import check_folder, header, read_document
from freescale_tools.console.options import (
    RANKS,
    BatchSize,
    CalibrationFile,
    Dim,
    HardwareName,
    MaxLength,
    ProfileFile,
    ReportFolder,
    floats,
    numbers,
)  # fmt: skip
from freescale_tools.console.terminal import Terminal


def simulate(
    profile: ProfileFile,
    hardware: HardwareName = "h100-ib",
    ranks: Annotated[
        list[str] | None,
        typer.Option(
            help="Numbers of ranks, such as 8,64,512. Default: of 8, 16, 32 ... 1024, as the rows are enough for."
        ),
    ] = None,
    dim: Dim = None,
    sequence: Annotated[str | None, typer.Option(help="A sequence of the profile. Default: the first.")] = None,
    batch_size: BatchSize = None,
    max_length: MaxLength = None,
    calibration: CalibrationFile = None,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Show more ranks than the rows are enough for, or than were calibrated."),
    ] = False,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            help="Numbers of parts that a step is computed in, such as 1,2,4,8: predict such steps, and which is best."
        ),
    ] = None,
    out: ReportFolder = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Predict a training step with and without balancing, prioritized and SM-free communication.

    The lengths come from a profile. Every parameter is listed with its source, known or assumed.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.calibrate.calibration import load_calibration
        from freescale_tools.model.hardware import load_hardware
        from freescale_tools.model.report import simulation_report
        from freescale_tools.model.simulation import simulate as run

        check_folder(out)
        asked = numbers(ranks, "--ranks")
        document = {
            **header("simulate"),
            "profile": str(profile),
            "simulation": run(
                read_profile(profile),
                load_hardware(hardware),
                ranks=asked or RANKS,
                sequence=sequence,
                batch_size=batch_size,
                max_length=max_length,
                dim=floats(dim),
                calibration=load_calibration(calibration) if calibration else None,
                parts=numbers(parts, "--parts") or (),
                beyond="show" if extrapolate else "refuse" if asked else "leave out",
            ),
        }
        terminal.finish(document, simulation_report(document), out, "simulation")


def read_profile(path: Path) -> dict[str, Any]:
    """The document of `freescale profile` at `path`, a file or its folder. Raises UsageError for other files."""
    file = path / "profile.json" if path.is_dir() else path
    make = "write one with `freescale profile PATHS --sequence COL --out DIR`"
    return read_document(file, "profile", make=make, needs=("sequences",))
