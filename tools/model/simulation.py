"""Simulates training steps from a profile and hardware: bubbles, samples per second and gains."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.model.batches import BATCHES, WELL, enough_for
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
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | Mapping[str, int] | None = None,
    calibration: Calibration | None = None,
    beyond: Beyond = "show",
) -> dict[str, Any]:
    """The `simulation` of a profile document.

    Arguments that are None come from the profile: its first sequence, the recommended maximum length, the
    batch size of its grid, its `dims`. `dim`: floats exchanged per event, or by list column. Times are milliseconds
    per step; `qps` is samples of all ranks per second. `gain`: shares over `over`, TorchRec's pipelined loop: 0.5 is
    half as many again; `balance` and `communication` are its two parts, below and above `over_balanced`. `verdict`: see
    there. `carried`: the largest of `ranks` that the rows of the profile are enough for, or None. `calibration` stands
    in for the cost model, the computation, look-ups, updates and exchanges that hardware and profile would give.

    `beyond`: what becomes of `ranks` that the rows are not enough for, or that are more than the calibration's: they
    are shown, left out, or refused. If all are left out, the fewest are shown. The verdict is for the most ranks that
    the rows make 20 global batches for, else for the most shown that they are enough for, else for the fewest.

    Raises UsageError for a profile without lengths, unknown sequences, and numbers out of range.
    """
    if not ranks or min(ranks) < 1:
        raise UsageError(f"ranks = {list(ranks)}: one or more numbers of 1 or more are needed")
    for name, value in (("batch size", batch_size), ("maximum length", max_length), ("dim", dim)):
        if isinstance(value, int) and value < 1:
            raise UsageError(f"{name} = {value}: 1 or more is needed")
    load = workload(
        profile, sequence=sequence, batch_size=batch_size, max_length=max_length, dim=dim, calibration=calibration
    )
    hardware = calibrated(hardware, calibration) if calibration else hardware
    histogram = LengthHistogram.from_dict(profile["sequences"][load.sequence]["histogram"])
    counts, rows = sorted(set(ranks)), histogram.rows
    if beyond != "show":
        counts = within_reach(counts, rows, load.batch_size, calibration, refuse=beyond == "refuse")
    load = at_ranks(load, profile, counts)
    points = predict(hardware, load, ranks=counts)
    most, well = (
        max((one for one in counts if enough_for(rows, one, load.batch_size, batches=batches)), default=None)
        for batches in (BATCHES, WELL)
    )
    counted = profile.get("collisions") is not None
    answer = verdict(hardware, load, ranks=well or most or counts[0], collisions=counted)
    if load.max_length is not None and (cut := 1 - histogram.kept_share(load.max_length)) > _CUT:
        answer["why"].insert(0, f"Histories are cut to {load.max_length:,} events: {cut:.0%} of all events are lost.")
    return {
        "verdict": answer,
        "hardware": {
            "name": hardware.name,
            "parameters": [*parameters(hardware), *load.parameters(), *assumed(load)],
        },
        "ways": [way.name for way in WAYS],
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


def predict(hardware: Hardware, load: Workload, *, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """One point for each number of ranks and each of WAYS."""
    return [
        {"ranks": count, "way": way.name, "qps": 1e3 * load.batch_size * count / found["step_ms"], **found}
        for count in ranks
        for way in WAYS
        for found in [step(hardware, load, way.name, ranks=count)]
    ]


def gains(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Gains in QPS as shares, by ranks.

    `qps_gain`: of `all` over TorchRec's pipelined loop. `balance`: of that loop when balanced. `communication`: of
    `all` over that.
    """
    qps = {(point["ranks"], point["way"]): point["qps"] for point in points}
    found = []
    for ranks in dict.fromkeys(point["ranks"] for point in points):
        pipelined, balanced, every = (qps[ranks, way] for way in (PIPELINED, BALANCED, "all"))
        found.append({
            "ranks": ranks, "qps_gain": every / pipelined - 1, "balance": balanced / pipelined - 1,
            "communication": every / balanced - 1,
        })  # fmt: skip
    return found
