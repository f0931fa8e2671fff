"""`freescale simulate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report.write import write_report
from freescale_tools.simulate.tables import BENCHMARK, show

VERSION = 1


def simulate(
    profile: Annotated[Path, typer.Option(help="profile.json of `freescale profile`, or the folder it is in.")],
    hardware: Annotated[
        str, typer.Option(help="h100-ib, h200-nvl, or a TOML file with the same parameters.")
    ] = "h100-ib",
    ranks: Annotated[
        list[str] | None, typer.Option(help="Numbers of ranks, as in 8,64,512. Default: 8 to 1024 by doubling.")
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(help="Floats exchanged per event, all its fields together. Default: the profile's, else 128."),
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="Column of the profile. Default: its first sequence.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per rank. Default: the profile's, else 128.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Histories are cut to this. Default: the recommended one of the profile.")
    ] = None,
    validate: Annotated[
        Path | None,
        typer.Option(help=f"Results of benchmarks/exposed.py to predict too. Default: {BENCHMARK}, if it is there."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where simulation.json and simulation.html go.")] = Path("freescale-report"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Predict a training step with and without balancing, prioritized and SM-free communication, and what they bring.

    The lengths are those of a profile; what is known of the hardware and what is assumed is listed with its source.
    The predictions are compared with what the paper and, where its results are given, the benchmark measured.
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
    """The document that is written."""
    import datetime

    from freescale_tools.simulate.hardware.parameters import load_hardware
    from freescale_tools.simulate.simulation import RANKS
    from freescale_tools.simulate.simulation import simulate as run
    from freescale_tools.simulate.validation.against_benchmark import against_benchmark
    from freescale_tools.simulate.validation.against_paper import against_paper

    profile = _profile(path)
    simulation = run(profile, load_hardware(hardware), ranks=ranks or RANKS, **chosen)
    file = benchmark or (BENCHMARK if BENCHMARK.is_file() else None)
    simulation["validation"] = {
        # The paper's figures are those of its own cluster, whatever is simulated.
        "paper": against_paper(load_hardware("h100-ib")),
        "benchmark": against_benchmark(file) if file else None,
    }
    return {
        "version": VERSION,
        "kind": "simulate",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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
