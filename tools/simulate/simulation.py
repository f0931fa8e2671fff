"""Simulates training steps from a profile and hardware: bubbles, samples per second and gains."""

from collections.abc import Mapping, Sequence
from typing import Any

from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.simulate.enough_rows import most_ranks
from freescale_tools.simulate.hardware.parameters import Hardware
from freescale_tools.simulate.schedule.durations import APPLY, FIELDS, FORWARD, LOOKUP, OPTIMIZER, work
from freescale_tools.simulate.schedule.step import PARTS, PIPELINED, WAYS, timeline
from freescale_tools.simulate.workload import CHANNELS, DENSE_PARAMETERS, LAYERS, Choice, Workload, choose, workload


def simulate(
    profile: Mapping[str, Any],
    hardware: Hardware,
    *,
    ranks: Sequence[int] = RANKS,
    way_names: Sequence[str] | None = None,
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The `simulation` of a profile document, without a validation.

    Arguments that are None come from the profile: its first sequence, the recommended maximum length, the
    batch size of its grid. `way_names`: some of WAYS, all by default. Times are milliseconds per step; `qps`
    is samples of all ranks per second. `qps_gain` is the gain of `all` over `over` (TorchRec's pipelined
    loop) as a share: 0.5 is half as many again. `carried`: the largest of `ranks` that the rows of the
    profile are enough for, or None.

    Raises UsageError for a profile without lengths, unknown ways and sequences, and numbers out of range.
    """
    wanted = _known_ways(way_names)
    _check_numbers(ranks, {"batch size": batch_size, "maximum length": max_length, "dim": dim})
    counts = sorted(set(ranks))
    choice = choose(profile, sequence=sequence, batch_size=batch_size, max_length=max_length, dim=dim)
    rows = sum(profile["sequences"][choice.sequence]["histogram"]["counts"])
    load = workload(profile, choice, ranks=counts, seed=seed)
    points = predict(hardware, load, ranks=counts, way_names=wanted)
    return {
        "hardware": {
            "name": hardware.name,
            "parameters": [*hardware.parameters(), *_parameters(profile, choice, load)],
        },
        "ways": wanted,
        "points": points,
        "validation": None,
        "over": PIPELINED,
        "gain": gains(points),
        "carried": {
            "ranks": most_ranks(rows, counts, choice.batch_size),
            "rows": rows,
            "batch_size": choice.batch_size,
        },
    }


def _known_ways(asked: Sequence[str] | None) -> list[str]:
    """The ways asked for, or all ways, in the order of WAYS."""
    names = [way.name for way in WAYS]
    if unknown := [name for name in asked or () if name not in names]:
        raise UsageError(f"no way {', '.join(unknown)}: there are {', '.join(names)}")
    return [name for name in names if asked is None or name in asked]


def _check_numbers(ranks: Sequence[int], others: Mapping[str, int | None]) -> None:
    if not ranks or min(ranks) < 1:
        raise UsageError(f"ranks = {list(ranks)}: one or more numbers of 1 or more are needed")
    for name, value in others.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} = {value}: 1 or more is needed")


def predict(
    hardware: Hardware, load: Workload, *, ranks: Sequence[int], way_names: Sequence[str]
) -> list[dict[str, Any]]:
    """One point for each number of ranks and each way."""
    points = []
    for count in ranks:
        for way in WAYS:
            if way.name in way_names:
                step = timeline(work(hardware, load, way, ranks=count), way)
                qps = 1e3 * load.batch_size * count / step["step_ms"]
                points.append({"ranks": count, "way": way.name, "qps": qps, **step})
    return points


def gains(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The gain in QPS of `all` over TorchRec's pipelined loop, as a share, by ranks."""
    qps = {(point["ranks"], point["way"]): point["qps"] for point in points}
    return [
        {"ranks": ranks, "qps_gain": qps[ranks, "all"] / qps[ranks, PIPELINED] - 1}
        for ranks, way in qps
        if way == "all" and (ranks, PIPELINED) in qps
    ]


def _parameters(profile: Mapping[str, Any], choice: Choice, load: Workload) -> list[dict[str, Any]]:
    """The parameters that come from the profile, and those that are assumed."""
    products = "assumed: in every layer, attention takes two products per pair of events"
    return [
        _parameter("sequence", choice.sequence, "", "profile"),
        _parameter("batch_size", choice.batch_size, "samples per rank", choice.sources["batch_size"]),
        _parameter("max_length", choice.max_length, "events", choice.sources["max_length"]),
        _parameter("cost", repr(choice.cost), "", choice.sources["cost"]),
        _parameter("dim", choice.dim, "floats per event", choice.sources["dim"]),
        _parameter("events", load.events, "per rank and step", "profile: its lengths, cut to max_length"),
        _collision(profile.get("collisions"), load),
        _parameter("channels", CHANNELS, "", products),
        _parameter("layers", LAYERS, "", products),
        _parameter("forward", FORWARD, "share of compute", "assumed: the backward pass takes twice the products"),
        _parameter("dense_parameters", DENSE_PARAMETERS, "", "assumed"),
        _parameter("optimizer", OPTIMIZER, "bytes per dense parameter", "assumed: Adam with two moments"),
        _parameter("lookup", LOOKUP, "passes over memory", "assumed: a row is read and written"),
        _parameter("apply", APPLY, "passes over memory", "assumed: gradient and row are read, the row is written"),
        _parameter("fields", FIELDS, "ids per event", "assumed: what balancing moves between hosts"),
        _parameter("all_reduce_parts", PARTS, "of the backward pass", "assumed: each part's gradients follow it"),
    ]


def _collision(collisions: Mapping[str, Any] | None, load: Workload) -> dict[str, Any]:
    least, most = min(load.collisions), max(load.collisions)
    if collisions is None:
        source = "paper, section 2 (Fig. 3): about 12 %; the profile counted none"
    else:
        source = (
            f"profile: at {most} ranks; counted at {least} to {most}, between them by logarithm, beyond the nearest"
        )
    return _parameter("collision", load.collisions[most], "share of events", source)


def _parameter(name: str, value: Any, unit: str, source: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "source": source}
