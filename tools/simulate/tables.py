"""Shows a simulation: steps, gains and parameters."""

from collections.abc import Mapping
from typing import Any

from freescale_tools.console.terminal import Terminal
from freescale_tools.model.batches import BATCHES
from freescale_tools.model.verdict import INTERVAL, REMEDIES


def show(terminal: Terminal, simulation: Mapping[str, Any]) -> None:
    carried = simulation["carried"]
    show_verdict(terminal, simulation)
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
        "QPS gain",
        ["ranks", "balancing", "then fscomm, SM-free", "both", "enough rows"],
        [
            [
                point["ranks"],
                *(f"{point[key]:+.0%}" for key in ("balance", "communication", "qps_gain")),
                "yes" if point["ranks"] <= (carried["ranks"] or 0) else "no",
            ]
            for point in simulation["gain"]
        ],
        notes=[
            "Balancing and both: over TrainPipelineSparseDist. fscomm: over TrainPipelineSparseDist, balanced.",
            f"enough rows: the {carried['rows']:,} rows make at least {BATCHES} different global batches.",
        ],
    )
    terminal.table(
        "What this rests on",
        ["parameter", "value", "unit", "source"],
        [
            [one["name"], _plain(one["value"]), one["unit"], one["source"]]
            for one in simulation["hardware"]["parameters"]
        ],
    )


def show_verdict(terminal: Terminal, simulation: Mapping[str, Any]) -> None:
    """Which remedies pay: the first thing to read."""
    found = simulation["verdict"]
    rows = []
    for key, (name, over) in REMEDIES.items():
        gain = found["gains"][key]
        span = f"{gain['low']:+.0%} to {gain['high']:+.0%}"
        rows.append([name, found["pays"].get(key, ""), f"{gain['value']:+.0%}", span, over])
    carried = simulation["carried"]["ranks"]
    few = "" if carried else " The rows are too few even for these ranks."
    terminal.table(
        f"Verdict for {found['ranks']:,} ranks on {simulation['hardware']['name']}",
        ["remedy", "pays", "gain", "90 %", "over"],
        rows,
        notes=[
            *found["why"],
            f"{INTERVAL}{few}",
        ],
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.6g}"
