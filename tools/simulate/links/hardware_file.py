"""Turns measured exchanges into the hardware that steps are simulated on. Pure.

What was not measured comes from hardware that is known, and its source says so.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.run_costs import latency_and_inverse
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.parameters import numbers

Points = Sequence[Mapping[str, Any]]
"""{ranks, bytes, seconds} of all-to-alls."""


def fits(points: Points) -> list[dict[str, Any]]:
    """By number of ranks: {ranks, latency_s, bytes_per_s, error}; bytes that a rank gives, its own part included."""
    found = []
    for ranks in sorted({point["ranks"] for point in points}):
        size, seconds = np.array([(p["bytes"], p["seconds"]) for p in points if p["ranks"] == ranks], np.float64).T
        latency, inverse = latency_and_inverse(size, seconds)
        found.append({
            "ranks": ranks, "latency_s": float(latency), "bytes_per_s": 1 / inverse if inverse > 0 else None,
            "error": float(np.median(np.abs((latency + inverse * size) / seconds - 1))),
        })  # fmt: skip
    return found


def measured_hardware(
    points: Points, like: Hardware, *, name: str, ranks_per_host: int, reduce_bytes: int, reduce_s: float,
    alone_s: float, beside_s: float, where: str,
) -> Hardware:  # fmt: skip
    """`like` with everything that was measured. `where`: the ranks and what they run on, for the sources.

    Bandwidths are what exchanges reach, so `exchange_efficiency` becomes 1 and other bandwidths are multiplied with
    that of `like`.
    """
    found = fits(points)
    changes: dict[str, Any] = {"gpus_per_host": ranks_per_host, "gpus_per_nvlink": ranks_per_host}
    sources = dict(like.sources)
    changes |= {link: getattr(like, link) * like.exchange_efficiency for link in ("nvlink", "pcie", "network")}
    for link in ("nvlink", "pcie", "network"):
        sources[link] = f"{like.name}, times its exchange_efficiency: {like.sources[link]}"
    inside = [one for one in found if one["ranks"] <= ranks_per_host and one["bytes_per_s"]]
    across = [one for one in found if one["ranks"] > ranks_per_host and one["bytes_per_s"]]
    measured = f"measured: all-to-alls, {where}"
    if inside:
        widest = inside[-1]
        changes["nvlink"] = widest["bytes_per_s"] * (widest["ranks"] - 1) / widest["ranks"] / 1e9
        sources["nvlink"] = f"{measured}, {widest['ranks']} ranks of a host"
    if across:
        widest = across[-1]
        changes["network"] = widest["bytes_per_s"] * (widest["ranks"] - ranks_per_host) / widest["ranks"] / 1e9
        sources["network"] = f"{measured}, {widest['ranks']} ranks of several hosts"
    first, each = _latencies(found)
    changes |= {"exchange_efficiency": 1.0, "exchange_latency": 1e6 * first, "peer_latency": 1e6 * each}
    sources |= dict.fromkeys(("exchange_efficiency", "exchange_latency"), measured)
    sources["peer_latency"] = (
        measured if len(found) > 1 else f"{measured}; one number of ranks: within exchange_latency"
    )
    speed = min(changes["nvlink"], changes["network"] * ranks_per_host if across else math.inf)
    ranks = max(one["ranks"] for one in found)
    reached = 2 * reduce_bytes * (ranks - 1) / ranks / reduce_s / 1e9
    changes["allreduce_efficiency"] = float(np.clip(reached / speed, 0.01, 1.0))
    sources["allreduce_efficiency"] = f"measured: all-reduce of {reduce_bytes:,} bytes, {where}"
    changes["contention"] = float(np.clip(beside_s / alone_s - 1, 0.0, 1.0))
    sources["contention"] = f"measured: matrix product beside all-to-alls, {where}"
    for field in ("gpus_per_host", "gpus_per_nvlink"):
        sources[field] = f"measured: {where}"
    return dataclasses.replace(like, name=name, sources=sources, **changes)


def as_toml(hardware: Hardware) -> str:
    """The text of a file that `load_hardware` reads back."""
    lines = [f"name = {json.dumps(hardware.name)}"]
    for field in numbers(hardware):
        value = getattr(hardware, field.name)
        lines += [
            "",
            f"[{field.name}]",
            f"value = {value if isinstance(value, int) else float(value)!r}",
            f"unit = {json.dumps(field.metadata['unit'])}",
            f"source = {json.dumps(hardware.sources[field.name])}",
        ]
    return "\n".join(lines) + "\n"


def _latencies(found: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds of an exchange, and of each other rank in it; both 0 or more."""
    others = np.array([one["ranks"] - 1 for one in found], np.float64)
    latency = np.array([one["latency_s"] for one in found])
    if len(found) == 1:
        return float(latency[0]), 0.0
    each, first = np.polyfit(others, latency, 1)
    if each < 0:
        return float(latency.mean()), 0.0
    if first < 0:
        return 0.0, float(others @ latency / (others @ others))
    return float(first), float(each)
