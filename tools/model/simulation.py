"""Simulates training steps from a profile and hardware: idle time, samples per second, gains, and which remedies pay.

A verdict is for one number of ranks. Every remedy is compared with what is there without it (`REMEDIES`): balancing
with TorchRec's pipeline; index dedup, pinned copies and fscomm with that pipeline when balanced. What TorchRec and
PyTorch have themselves comes first: where index dedup pays, fscomm is also compared with a loop that has it, and
`first` of the verdict names it. Intervals hold 90 % of draws in which every uncertain parameter is moved within a
factor that depends on where its number comes from (`FACTORS`), and the time that ranks lose to the slowest as `waiting`
says; they say how far the answer hangs on what was assumed.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.model.batches import PACKED, UNPACKED, Samples
from freescale_tools.model.durations import assumed, batch_bytes, part_cost, step
from freescale_tools.model.hardware import ALL_TO_ALLS, Hardware, calibrated, numbers, parameters
from freescale_tools.model.step import BALANCED, BY_NAME, DEDUP, PAGEABLE, PIPELINED, WAYS
from freescale_tools.model.waiting import Waiting
from freescale_tools.model.workload import Workload, at_ranks, uncounted, workload
from fscomm.parts.number_of_parts import MOST_PARTS

FACTORS = {"assumed": 2.0, "paper": 1.5, "data sheet": 1.2, "measured": 1.1, "calibration": 1.1}
"""Words in a source, and the factor within which its number may be wrong. What all-to-alls of another number of ranks
have shown is as good as assumed."""
MODEL = {False: 1.15, True: 1.35}
"""Prioritized or not -> the factor within which exposed time may be wrong although every number is right: with these,
nine of ten held-out steps of `benchmarks/adviser.py` are inside their interval."""
INTERVAL = (
    "90 %: of draws that move every assumed number within a factor of 2, the paper's within 1.5, those of data sheets "
    "within 1.2, measured ones within 1.1 (links at other ranks: 2), exposed time within 1.15, with priorities 1.35; "
    "that draw the steps of an epoch again, in file order or shuffled; and let a sample cost L to L^2, or what was "
    "measured within its error."
)
REMEDIES = {
    "balance": ("balancing", "TorchRec's pipeline", BALANCED, PIPELINED),
    "dedup": ("index dedup", "the balanced pipeline", DEDUP, BALANCED),
    "pinned": ("pinned, early copies of the input", "the same, copies not pinned", BALANCED, PAGEABLE),
    "prioritized": ("prioritized communication", "the balanced pipeline", "balanced + prioritized", BALANCED),
    "sm_free": ("SM-free transports", "prioritized over NCCL", "all", "balanced + prioritized"),
    "communication": ("fscomm: both of them", "the balanced pipeline", "all", BALANCED),
    "communication_dedup": ("fscomm after index dedup", "the balanced pipeline with it", "all + dedup", DEDUP),
    "all": ("balancing and fscomm", "TorchRec's pipeline", "all", PIPELINED),
    "all_dedup": ("balancing, index dedup and fscomm", "TorchRec's pipeline", "all + dedup", PIPELINED),
}
"""Gains of a verdict, in the order of advice -> what they are called, what they are over, and the ways that are
compared. Those with a way that dedups are left out where it is not known how often ids repeat."""
NOT_COUNTED = "the ids of a rank's batch were not counted"
_OTHER = 1.2
_DRAWS = 40
_WITHIN = (5, 95)
_WORTH = 0.005  # a gain below this is none
_LITTLE = 0.1  # a gain that is seldom worth a change of the training program
_MOSTLY = 0.9  # share of colliding rows that leaves next to nothing to send early
_EVEN = 0.02  # share of time that is next to nothing
_DEAR = 0.03  # share of a step above which a fixed cost is named
_AS_SHORT = 0.01  # steps in fewer parts are best if they are longer by this share at most
_UNCERTAIN = ("dim", "flops", "compute_ms", "dense_parameters")  # of a workload; lengths and rows were counted


def simulate(
    profile: Mapping[str, Any],
    hardware: Hardware,
    samples: Samples,
    *,
    ranks: Sequence[int],
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | Mapping[str, int] | None = None,
    calibration: Calibration | None = None,
    parts: Sequence[int] = (),
    waiting: Waiting | None = None,
) -> dict[str, Any]:
    """The `simulation` of a profile document; its verdict is for the largest of `ranks`.

    Arguments that are None come from the profile: its first sequence, the recommended maximum length, the
    batch size of its grid, its `dims`. `dim`: floats exchanged per event, or by list column. Times are milliseconds
    per step; `qps` is samples of all ranks per second. `gain`: shares over `over`, TorchRec's pipelined loop: 0.5 is
    half as many again; `balance` and `communication` are its two parts, below and above `over_balanced`. `verdict`: see
    there. `calibration` stands in for the cost model, the computation, look-ups, updates and exchanges that hardware
    and profile would give. `waiting`: how sure the time is that is lost to slow ranks, at the ranks of the verdict.

    `parts`: predict steps in so many parts, too, and in one: `parts` of the document, see `in_parts`, a sentence about
    them in the verdict, and the cost of a part among the parameters. Without, the document has none of these.

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
    most_parts = min(load.batch_size, MOST_PARTS)
    if parts and not 1 <= min(parts) <= max(parts) <= most_parts:
        raise UsageError(
            f"--parts {','.join(map(str, parts))}: numbers of 1 to {most_parts} are needed. fscomm computes a step in "
            f"at most {MOST_PARTS} parts, and a rank has {load.batch_size:,} samples in a step; give fewer parts, or a "
            "larger --batch-size"
        )
    hardware = calibrated(hardware, calibration) if calibration else hardware
    counts = sorted(set(ranks))
    load = at_ranks(load, samples, counts, method=(profile.get("recommended") or {}).get("method", "fbs+swap"))
    points = predict(hardware, load, ranks=counts)
    counted = profile.get("collisions") is not None
    answer = verdict(
        hardware,
        load,
        ranks=counts[-1],
        collisions=counted,
        waiting=waiting,
        uncounted=uncounted(profile, load, dim=dim),
    )
    divided = in_parts(hardware, load, ranks=counts, parts=parts) if parts else []
    answer["why"] += [_about_parts(one, part_cost(load)) for one in divided if one["ranks"] == answer["ranks"]]
    return {
        "verdict": answer,
        "hardware": {
            "name": hardware.name,
            "parameters": [
                *parameters(hardware), *load.parameters(), *assumed(load), *([part_cost(load)] if parts else []),
            ],
        },
        "ways": [way.name for way in WAYS],
        "points": points,
        "over": PIPELINED,
        "over_balanced": BALANCED,
        "gain": gains(points),
        "batch_size": load.batch_size,
        **({"parts": divided} if parts else {}),
    }  # fmt: skip


def predict(hardware: Hardware, load: Workload, *, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """One point for each number of ranks and each of WAYS."""
    return [
        {"ranks": count, "way": way.name, "qps": 1e3 * load.batch_size * count / found["step_ms"], **found}
        for count in ranks
        for way in WAYS
        for found in [step(hardware, load, way.name, ranks=count)]
    ]


def in_parts(hardware: Hardware, load: Workload, *, ranks: Sequence[int], parts: Sequence[int]) -> list[dict[str, Any]]:
    """Steps with all remedies in so many parts, and in one: {ranks, best, steps} for each number of ranks.

    `steps`: {parts, step_ms, exposed_ms}, by parts; of the mean rank, exposed with what the parts cost. `best`: the
    fewest parts whose step is at most 1 % longer than the shortest one.
    """
    found = []
    for count in ranks:
        steps = []
        for number in sorted({1, *parts}):
            one = step(hardware, load, "all", ranks=count, parts=number)
            exposed = one["bubbles"]["exposed_ms"]
            steps.append({"parts": number, "step_ms": one["step_ms"], "exposed_ms": exposed})
        longest = (1 + _AS_SHORT) * min(one["step_ms"] for one in steps)
        best = next(one["parts"] for one in steps if one["step_ms"] <= longest)
        found.append({"ranks": count, "best": best, "steps": steps})
    return found


def _about_parts(divided: Mapping[str, Any], cost: Mapping[str, Any]) -> str:
    """A sentence about steps in parts. `divided`: of `in_parts`. `cost`: of `part_cost`."""
    exposed = {one["parts"]: one["exposed_ms"] for one in divided["steps"]}
    costs = f"each further part costs {cost['value']:.2g} ms ({cost['source'].partition(':')[0]})"
    best = divided["best"]
    if best == 1:
        return f"One part is enough: a step in one part has {exposed[1]:.3g} ms exposed, and {costs}."
    return f"{best} parts: {exposed[best]:.3g} ms exposed instead of {exposed[1]:.3g}; {costs}."


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


def verdict(
    hardware: Hardware, load: Workload, *, ranks: int, collisions: bool, waiting: Waiting | None = None,
    uncounted: str = NOT_COUNTED,
) -> dict[str, Any]:  # fmt: skip
    """{ranks, gains, pays, why, touched, duplicates, first, copies}. `collisions`: they were counted, not assumed.
    `uncounted`: why it is not known how often ids repeat within a rank's batch; empty if it is.

    `gains`: REMEDIES -> {value, low, high}, shares of samples per second. `pays`: remedy -> "yes", "no", "little" below
    10 %, "unsure" where the interval holds both 0 and more than that. `why`: sentences about what decides. `touched`:
    shares of a balanced step, {exposed, overlapped}: communication that compute waits for, and what of it fscomm
    overlaps. `duplicates`: {share, unknown}: of the ids of a rank's batch that occur in it before, None where `unknown`
    says why. `first`: "dedup" if index dedup pays; `touched` is then of a step that has it. `copies`: {bytes,
    pageable_ms, pinned_ms} of a rank's batch to its GPU.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        machine, other, errors = moved(hardware, load, generator, ranks=ranks, collisions=collisions)
        if waiting is not None:
            lost = {(ranks, method): share for method, share in waiting.draw(generator).items()}
            other = dataclasses.replace(other, time_lost=lost)
        drawn.append(_gains(machine, other, ranks, errors, dedup=not uncounted))
    gains, pays = {}, {}
    for name, value in _gains(hardware, load, ranks, dict.fromkeys(MODEL, 1.0), dedup=not uncounted).items():
        low, high = np.percentile([one[name] for one in drawn], _WITHIN).tolist()
        low, high = min(low, value), max(high, value)
        gains[name] = {"value": value, "low": low, "high": high}
        pays[name] = _pays(value, low, high)
    first = "dedup" if pays.get("dedup") in ("yes", "little") and gains["dedup"]["value"] > _WORTH else None
    before, after = (DEDUP, "all + dedup") if first else (BALANCED, "all")
    touched = _touched(hardware, load, ranks, before, after)
    size = batch_bytes(load)
    return {
        "ranks": ranks, "gains": gains, "pays": pays, "why": list(_why(hardware, load, ranks, touched, before)),
        "touched": touched, "first": first,
        "duplicates": {"share": None if uncounted else 1 - load.distinct, "unknown": uncounted or None},
        "copies": {"bytes": size, **{
            f"{name}_ms": size / (speed * 1e6)
            for name, speed in (("pageable", hardware.pageable), ("pinned", hardware.pcie))
        }},
    }  # fmt: skip


def _pays(value: float, low: float, high: float) -> str:
    if high < _WORTH or (value < -_WORTH and high < _LITTLE):
        return "no"
    if high < _LITTLE or _WORTH < value < _LITTLE:
        return "little"
    return "yes" if low > _WORTH else "unsure"


def _gains(
    hardware: Hardware, load: Workload, ranks: int, errors: Mapping[bool, float], *, dedup: bool
) -> dict[str, float]:
    """`errors`: prioritized or not -> factor of exposed time. `dedup`: also the gains of ways that dedup."""

    @functools.cache
    def step_ms(name: str) -> float:
        found, error = step(hardware, load, name, ranks=ranks), errors[BY_NAME[name].prioritized]
        return float(found["step_ms"] + (error - 1) * found["bubbles"]["exposed_ms"])

    return {
        remedy: step_ms(before) / step_ms(after) - 1
        for remedy, (_, _, after, before) in REMEDIES.items()
        if dedup or not BY_NAME[after].dedup
    }


def _touched(hardware: Hardware, load: Workload, ranks: int, before: str, after: str) -> dict[str, float]:
    """{exposed, overlapped} of a verdict, as if fscomm itself took no time of the training thread."""
    without = step(hardware, load, before, ranks=ranks)
    found = step(dataclasses.replace(hardware, own_cost=0.0), load, after, ranks=ranks)
    exposed, left = (one["bubbles"]["exposed_ms"] / without["step_ms"] for one in (without, found))
    return {"exposed": exposed, "overlapped": max(exposed - left, 0.0)}


def moved(
    hardware: Hardware, load: Workload, generator: np.random.Generator, *, ranks: int, collisions: bool = True
) -> tuple[Hardware, Workload, dict[bool, float]]:
    """One draw of all that is uncertain: hardware, workload, and prioritized or not -> a factor of exposed time."""

    def within(factor: float) -> float:
        return float(factor ** generator.uniform(-1, 1))

    def by(source: str) -> float:
        if ALL_TO_ALLS in source and not source.endswith(f"{ALL_TO_ALLS} {ranks} ranks"):
            return within(FACTORS["assumed"])
        if source.startswith("calibration:"):  # the name of a file follows, which may be any word
            return within(FACTORS["calibration"])
        return within(next((factor for word, factor in FACTORS.items() if word in source), _OTHER))

    def changes(of: Hardware | Workload, names: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in numbers(of):
            if field.name in names and (value := getattr(of, field.name)) is not None:
                limits = field.metadata
                other = value * by(of.sources.get(field.name, "assumed"))
                found[field.name] = float(np.clip(other, limits["least"], limits["most"]))
        return found

    machine = dataclasses.replace(
        hardware, **changes(hardware, [field.name for field in numbers(hardware) if not field.metadata["whole"]])
    )
    rate = by("measured" if collisions else "paper")
    rates = {at: min(share * rate, 1.0) for at, share in load.collisions.items()}
    other = dataclasses.replace(load, collisions=rates, **changes(load, _UNCERTAIN))
    return machine, other, {prioritized: within(factor) for prioritized, factor in MODEL.items()}


def _why(hardware: Hardware, load: Workload, ranks: int, touched: Mapping[str, float], way: str) -> Iterator[str]:
    """Sentences about what decides, as numbers of this data. `way`: what fscomm is compared with."""
    of_step = "a balanced step with index dedup" if BY_NAME[way].dedup else "a balanced step"
    before, after = load.time_lost[ranks, UNPACKED], load.time_lost[ranks, PACKED]
    if before < _EVEN:
        yield f"Ranks are even already: stragglers cost {before:.1%} of the compute time."
    elif after > _EVEN:
        yield (
            f"Stragglers cost {after:.1%} of the compute time though balanced ({before:.1%} without balancing): single "
            "samples outweigh a rank's share. A lower --max-length cuts them; larger batches amortize them."
        )
    exposed, overlapped = touched["exposed"], touched["overlapped"]
    collision = load.collision(ranks)
    if exposed < _EVEN:
        yield f"Links are fast for these steps: {exposed:.1%} of {of_step} is exposed communication."
    else:
        yield (
            f"{exposed:.1%} of {of_step} is exposed communication, and fscomm can overlap {overlapped:.1%} of "
            "the step: not the dense all-reduce, nor ids, nor rows that collide."
        )
    step_ms = step(hardware, load, way, ranks=ranks)["step_ms"]
    if hardware.own_cost > _DEAR * step_ms:
        yield (
            f"Steps are short: prioritized communication itself takes {hardware.own_cost:g} ms of "
            f"{step_ms:.2g} ms ({hardware.sources['own_cost'].partition(':')[0]}). Larger batches amortize it."
        )
    if collision > _MOSTLY:
        yield (
            f"{collision:.0%} of the events use a row that the batch before used too: next to nothing can be sent "
            "early."
        )
