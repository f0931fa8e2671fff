"""Simulates training steps from a profile and hardware: bubbles, samples per second and gains."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.model.batches import BATCHES, WELL, enough_for, most_ranks
from freescale_tools.model.durations import assumed, step
from freescale_tools.model.hardware import Hardware, calibrated, parameters
from freescale_tools.model.step import BALANCED, PIPELINED, WAYS
from freescale_tools.model.verdict import verdict
from freescale_tools.model.workload import Workload, at_ranks, workload
from freescale_tools.scan.histogram import LengthHistogram

Beyond = Literal["show", "leave out", "refuse"]
_CUT = 0.005  # share of lost events that is worth a sentence


def simulate(
    profile: Mapping[str, Any],
    hardware: Hardware,
    *,
    ranks: Sequence[int] = RANKS,
    way_names: Sequence[str] | None = None,
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | Mapping[str, int] | None = None,
    calibration: Calibration | None = None,
    beyond: Beyond = "show",
    seed: int = 0,
) -> dict[str, Any]:
    """The `simulation` of a profile document.

    Arguments that are None come from the profile: its first sequence, the recommended maximum length, the
    batch size of its grid, its `dims`. `dim`: floats exchanged per event, or by list column. `way_names`: some of
    WAYS, all by default. Times are milliseconds per step; `qps` is samples of all ranks per second. `qps_gain` is
    the gain of `all` over `over` (TorchRec's pipelined loop) as a share: 0.5 is half as many again; `balance` and
    `communication` are its two parts, below and above `over_balanced`. `verdict`: see there. `carried`: the
    largest of `ranks` that the rows of the profile are enough for, or None. `calibration` stands in for the cost
    model, the computation, look-ups, updates and exchanges that hardware and profile would give.

    `beyond`: what becomes of `ranks` that the rows are not enough for, or that are more than the calibration's: they
    are shown, left out, or refused. If all are left out, the fewest are shown. The verdict is for the most ranks that
    the rows make 20 global batches for, else for the most shown that they are enough for, else for the fewest.

    Raises UsageError for a profile without lengths, unknown ways and sequences, and numbers out of range.
    """
    wanted = _known_ways(way_names)
    one_dim = None if isinstance(dim, Mapping) else dim
    _check_numbers(ranks, {"batch size": batch_size, "maximum length": max_length, "dim": one_dim})
    load = workload(
        profile, sequence=sequence, batch_size=batch_size, max_length=max_length, dim=dim, calibration=calibration
    )
    hardware = calibrated(hardware, calibration) if calibration else hardware
    histogram = LengthHistogram.from_dict(profile["sequences"][load.sequence]["histogram"])
    counts, rows = sorted(set(ranks)), histogram.rows
    if beyond != "show":
        counts = within_reach(counts, rows, load.batch_size, calibration, refuse=beyond == "refuse")
    load = at_ranks(load, profile, counts, seed=seed)
    points = predict(hardware, load, ranks=counts, way_names=wanted)
    most, well = (most_ranks(rows, counts, load.batch_size, batches=batches) for batches in (BATCHES, WELL))
    counted = profile.get("collisions") is not None
    answer = verdict(hardware, load, ranks=well or most or counts[0], collisions=counted, seed=seed)
    if load.max_length is not None and (cut := 1 - histogram.kept_share(load.max_length)) > _CUT:
        answer["why"].insert(0, f"Histories are cut to {load.max_length:,} events: {cut:.0%} of all events are lost.")
    return {
        "verdict": answer,
        "hardware": {
            "name": hardware.name,
            "parameters": [*parameters(hardware), *load.parameters(), *assumed(load)],
        },
        "ways": wanted,
        "points": points,
        "over": PIPELINED,
        "over_balanced": BALANCED,
        "gain": gains(points),
        "carried": {"ranks": most, "rows": rows, "batch_size": load.batch_size},
    }


def within_reach(
    ranks: Sequence[int], rows: int, batch_size: int, calibration: Calibration | None, *, refuse: bool
) -> list[int]:
    """Those of `ranks` that data and calibration speak for: `rows` are enough, and as many ranks measured.

    `refuse`: raises UsageError if some are not; else the fewest stay if all are not.
    """
    most = calibration.ranks if calibration else max(ranks)
    if calibration and most < min(ranks) and not refuse:
        ranks = [most]
    kept = [one for one in ranks if one <= most and enough_for(rows, one, batch_size)]
    if refuse and len(kept) < len(ranks):
        few = [one for one in ranks if not enough_for(rows, one, batch_size)]
        said = []
        if few:
            said.append(
                f"the {rows:,} rows make less than {BATCHES} global batches of {few[0]:,} x {batch_size:,} samples"
            )
        if max(ranks) > most:
            said.append(f"the calibration is of {most:,} ranks")
        named = ", ".join(str(one) for one in ranks if one not in kept)
        raise UsageError(f"--ranks {named}: {' and '.join(said)}. --extrapolate shows such ranks all the same")
    return kept or [min(ranks)]


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
    return [
        {"ranks": count, "way": name, "qps": 1e3 * load.batch_size * count / found["step_ms"], **found}
        for count in ranks
        for name in way_names
        for found in [step(hardware, load, name, ranks=count)]
    ]


def gains(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Gains in QPS as shares, by ranks, where these ways were simulated.

    `qps_gain`: of `all` over TorchRec's pipelined loop. `balance`: of that loop when balanced. `communication`: of
    `all` over that.
    """
    qps = {(point["ranks"], point["way"]): point["qps"] for point in points}

    def gain(ranks: int, way: str, over: str) -> float:
        return float(qps[ranks, way] / qps[ranks, over] - 1)

    return [
        {
            "ranks": ranks,
            "qps_gain": gain(ranks, "all", PIPELINED),
            "balance": gain(ranks, BALANCED, PIPELINED),
            "communication": gain(ranks, "all", BALANCED),
        }
        for ranks, way in qps
        if way == "all" and {(ranks, PIPELINED), (ranks, BALANCED)} <= qps.keys()
    ]
