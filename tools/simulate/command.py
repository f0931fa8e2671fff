"""The command `freescale simulate`: reads its options, runs it, and shows the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import created
from freescale_tools.console.options import RANKS, numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report.write import write_report
from freescale_tools.simulate.tables import BENCHMARK, show

VERSION = 1


def simulate(
    profile: Annotated[Path, typer.Option(help="profile.json of `freescale profile`, or its folder.")],
    hardware: Annotated[
        str, typer.Option(help="h100-ib, h200-nvl, or a TOML file with the parameters of your hardware.")
    ] = "h100-ib",
    ranks: Annotated[
        list[str] | None,
        typer.Option(help="Numbers of ranks, such as 8,64,512. Default: the powers of two from 8 to 1024."),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(help="Floats exchanged per event, all its fields together. Default: as in the profile, else 128."),
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="A sequence of the profile. Default: the first.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a rank in a step. Default: as in the profile, else 128.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most events of a history. Default: as the profile recommends.")
    ] = None,
    validate: Annotated[
        Path | None,
        typer.Option(help=f"Results of benchmarks/exposed.py to compare with. Default: {BENCHMARK}, if it exists."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for simulation.json and simulation.html.")] = Path(
        "freescale-report"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Predict a training step with and without balancing, prioritized and SM-free communication.

    The lengths come from a profile. Every parameter is listed with its source, known or assumed. The
    predictions are compared with the measurements of the paper and, if its results exist, of the benchmark.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.simulate.page import simulation_page

        chosen = {"sequence": sequence, "batch_size": batch_size, "max_length": max_length, "dim": dim}
        document = _simulated(profile, hardware, numbers(ranks, "--ranks"), chosen, validate)
        write_report(document, simulation_page(document), out, "simulation")
        show(terminal, document["simulation"])
        terminal.say(f"written: {out / 'simulation.json'}, {out / 'simulation.html'}")
        terminal.result(document)


def _simulated(
    path: Path,
    hardware: str,
    ranks: Sequence[int] | None,
    chosen: Mapping[str, Any],
    benchmark: Path | None,
) -> dict[str, Any]:
    """The document of the simulation."""

    from freescale_tools.simulate.hardware.parameters import load_hardware
    from freescale_tools.simulate.simulation import simulate as run
    from freescale_tools.simulate.validation.against_benchmark import against_benchmark
    from freescale_tools.simulate.validation.against_paper import against_paper

    profile = _profile(path)
    simulation = run(profile, load_hardware(hardware), ranks=ranks or RANKS, **chosen)
    file = benchmark or (BENCHMARK if BENCHMARK.is_file() else None)
    simulation["validation"] = {
        # The paper measured on its own cluster, so this comparison does not use the simulated hardware.
        "paper": against_paper(load_hardware("h100-ib")),
        "benchmark": against_benchmark(file) if file else None,
    }
    return {
        "version": VERSION,
        "kind": "simulate",
        "created": created(),
        "profile": str(path),
        "simulation": simulation,
    }


def _profile(path: Path) -> dict[str, Any]:
    import json

    file = path / "profile.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no profile at {file}: write one with `freescale profile PATHS --sequence COL --out DIR`")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is no JSON document: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "profile":
        raise UsageError(f"{file} is no profile: write one with `freescale profile`")
    if document.get("version") != VERSION:
        raise UsageError(
            f"{file} has version {document.get('version')!r}, this program reads {VERSION}: profile the data again"
        )
    return document
