"""What fscomm counts while a sharded model trains: collisions, bytes, steps, what runs plainly.

Only integers and texts. Tables and outputs are sums of floats, whose last bits follow the CPU; that fscomm leaves them
as they are without it is what the exactness tests compare.
"""

from pathlib import Path
from typing import Any

from exact import train
from exact_configs import CONFIGS
from exact_loops import base
from worlds import shared_world

MODELS = {"several": (1, 2), "row": (1, 2), "half rowwise": (2,), "tiny": (2,)}
"""Model -> numbers of ranks."""


def reports(folder: Path) -> dict[str, Any]:
    """By model and number of ranks: the reports of all ranks."""
    return {
        name: {str(size): shared_world(size).run(_report, name) for size in sizes} for name, sizes in MODELS.items()
    }


def _report(rank: int, size: int, name: str) -> dict[str, Any]:
    config = CONFIGS[name]
    run = train(rank, size, config.but(steps=min(config.steps, 8)), base, "fscomm")
    report = run.reports[-1].report().to_dict()
    steps = [_counted(step) for step in report["steps"]] if name == "several" else []
    kept = {key: report[key] for key in ("version", "rank", "num_steps", "fallbacks", "transport", "buffer_bytes")}
    return {**kept, "total": _counted(report["total"]), "steps": steps}


def _counted(step: dict[str, Any]) -> dict[str, Any]:
    """A step without its times; every count of a module in one line."""
    collisions = {module: _line(counts) for module, counts in step["collisions"].items()}
    sent = {
        module: {kind: _line(traffic) for kind, traffic in kinds.items()} for module, kinds in step["bytes"].items()
    }
    return {"step": step["step"], "collisions": collisions, "bytes": sent}


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
