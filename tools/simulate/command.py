"""`freescale simulate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal
from freescale_tools.report.write import write_report
from freescale_tools.simulate.enough_rows import BATCHES

BENCHMARK = Path("benchmarks/results/exposed.json")
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
        chosen = {"sequence": sequence, "batch_size": batch_size, "max_length": max_length, "dim": dim}
        document = _simulated(profile, hardware, numbers(ranks, "--ranks"), chosen, validate)
        write_report(document, out, "simulation")
        _show(terminal, document["simulation"])
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


def _show(terminal: Terminal, simulation: Mapping[str, Any]) -> None:
    carried = simulation["carried"]
    terminal.table(
        f"A step on {simulation['hardware']['name']}, mean rank, ms",
        ["ranks", "way", "QPS", "step", "straggler", "exposed", "contention", "waits for data"],
        [
            [
                point["ranks"], point["way"], round(point["qps"]), point["step_ms"], *point["bubbles"].values(),
                point["data_wait_ms"],
            ]
            for point in simulation["points"]
        ],
        notes=[
            "sparse dist: only ID exchanges ahead, as TorchRec does. sm-free: prioritized, and exchanges beside "
            "compute leave the streaming multiprocessors alone. all: balanced, too."
        ],
    )  # fmt: skip
    terminal.table(
        "All together over TrainPipelineSparseDist",
        ["ranks", "QPS gain", "enough rows"],
        [
            [point["ranks"], f"{point['qps_gain']:+.1%}", "yes" if point["ranks"] <= (carried["ranks"] or 0) else "no"]
            for point in simulation["gain"]
        ],
        notes=[f"enough rows: the {carried['rows']:,} rows make at least {BATCHES} different global batches."],
    )
    terminal.table(
        "What this rests on",
        ["parameter", "value", "unit", "source"],
        [
            [one["name"], _plain(one["value"]), one["unit"], one["source"]]
            for one in simulation["hardware"]["parameters"]
        ],
    )
    validation = simulation["validation"]
    for title, part in (("the paper", validation["paper"]), ("benchmarks/exposed.py", validation["benchmark"])):
        if part is None:
            terminal.say(f"Not compared with {title}: there is no {BENCHMARK} here; --validate takes another path.")
        else:
            _show_validation(terminal, title, part)


def _show_validation(terminal: Terminal, title: str, part: Mapping[str, Any]) -> None:
    fits = [f"Fitted: {one['name']} = {one['value']:.4g} {one['unit']} on {one['on']}." for one in part["fits"]]
    terminal.table(
        f"Fitted, predicted, measured: {title}",
        ["what", "fitted", "predicted", "measured", "error", "verdict"],
        [
            [
                one["what"],
                *(_amount(one[key], one["unit"]) for key in ("fitted", "predicted", "measured")),
                "-" if one["error"] is None else f"{one['error']:+.1%}",
                _verdict(one),
            ]
            for one in part["rows"]
        ],
        notes=[*fits, *part["notes"], "In brackets: lines that no goal was set for."],
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if unit == "share" else f"{value:.4g} {unit}"


def _verdict(row: Mapping[str, Any]) -> str:
    said = row["verdict"] if row["within"] is None else f"{row['verdict']} ({row['within']:.0%})"
    return said if row["asked"] else f"[{said}]"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.6g}"
