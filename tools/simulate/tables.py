"""Shows a simulation: steps, gains, parameters, and the comparison with measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freescale_tools.console.terminal import Terminal
from freescale_tools.simulate.enough_rows import BATCHES

BENCHMARK = Path("benchmarks/results/exposed.json")


def show(terminal: Terminal, simulation: Mapping[str, Any]) -> None:
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
