"""Reads from a profile what a rank trains on in a step: events, products, collisions, straggler shares."""

import ast
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.batches import UNPACKED, Samples, Setting, simulate_setting
from fsdata.balance.cost import CostModel, Polynomial, Power

PAPER_COLLISION = 0.12
METHODS = (UNPACKED, "fbs+swap")
CHANNELS, LAYERS, DENSE_PARAMETERS = 512, 4, 50_000_000
# A pair of events takes two products of `channels` multiply-adds forward and twice that backward, in every
# layer.
FLOPS_PER_COST = 12 * CHANNELS * LAYERS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Means per rank and step. Raises ValueError for impossible values."""

    batch_size: int
    events: float
    """Events of the histories after the cut to the maximum length."""
    flops: float
    """Floating-point operations of forward and backward."""
    dim: float
    """Floats exchanged per event: the embedding dimensions of all its fields together."""
    ids: float = 1.0
    """Looked up per event."""
    dense_parameters: float
    stragglers: Mapping[tuple[int, str], float]
    """(ranks, method) -> share, 0 to below 1."""
    compute_ms: float | None = None
    """Of forward and backward of a mean rank, without `fixed_ms`; None: it follows from `flops`."""
    fixed_ms: float = 0.0
    """Of forward and backward, whatever the samples."""
    forward: float | None = None
    """Share of forward in the compute; None: as assumed."""
    lookup_ms: float | None = None
    """Of all rows of a rank; None: it follows from the memory."""
    apply_ms: float | None = None
    balancing_ms: float = 0.0
    """What balancing itself takes of the training thread."""
    collisions: Mapping[int, float]
    """Ranks -> share of the events whose row the batch before uses too, 0 to 1."""
    distinct: float = 1.0
    """Rows of a rank's batch over its events, above 0, at most 1: what is sent if a row is sent once to each rank."""
    colliding_distinct: float = 1.0
    """The same of the events that collide."""
    skews: Mapping[tuple[int, str], float] = dataclasses.field(default_factory=dict)
    """(ranks, method) -> events of the rank that has most, over the mean; 1 where nothing is known."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "events", "flops", "dim"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: above 0 is needed")
        if self.dense_parameters < 0:
            raise ValueError(f"dense_parameters = {self.dense_parameters!r}: 0 or more is needed")
        if not self.collisions or not all(0 <= rate <= 1 for rate in self.collisions.values()):
            raise ValueError(f"collisions = {dict(self.collisions)}: shares of 0 to 1 by ranks are needed")
        for name in ("distinct", "colliding_distinct"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)!r}: above 0, at most 1 is needed")
        if not all(0 <= share < 1 for share in self.stragglers.values()):
            raise ValueError(f"stragglers = {dict(self.stragglers)}: shares of 0 to below 1 are needed")

    def straggler(self, ranks: int, method: str) -> float:
        return self.stragglers[ranks, method]

    def skew(self, ranks: int, method: str) -> float:
        return self.skews.get((ranks, method), 1.0)

    def collision(self, ranks: int) -> float:
        """The rate at `ranks`, interpolated on a logarithmic axis; the nearest rate beyond its ends."""
        known = sorted(self.collisions)
        return float(np.interp(np.log2(ranks), np.log2(known), [self.collisions[at] for at in known]))


def flops(lengths: np.ndarray, counts: np.ndarray) -> float:
    """Mean operations per sample by the default Polynomial: a profile's cost model has no unit."""
    pairs = Polynomial()({"sequence": lengths}).astype(np.float64)
    return FLOPS_PER_COST * float(pairs @ counts) / float(counts.sum())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The settings of a simulation. `sources`: setting -> where its value comes from."""

    sequence: str
    batch_size: int
    max_length: int
    cost: CostModel
    dim: float
    ids: float
    sources: Mapping[str, str]


def choose(
    profile: Mapping[str, Any],
    *,
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | Mapping[str, int] | None = None,
    calibration: Calibration | None = None,
) -> Choice:
    """Take settings that are None from the profile. Raises UsageError if the profile cannot be simulated."""
    sequences = profile["sequences"]
    name = next(iter(sequences), "") if sequence is None else sequence
    if name not in sequences:
        raise UsageError(f"the profile has no sequence {name!r}: it has {', '.join(sequences) or 'none'}")
    histogram = sequences[name].get("histogram")
    if not histogram or not any(histogram["lengths"]):
        raise UsageError(
            f"the profile has no lengths of {name!r}: a quick profile counts them only, and a sequence without events "
            "has none; run `freescale profile` without --quick"
        )
    dims, source = (dim, "given") if dim is not None else (profile.get("dims"), "profile: given")
    grid, advice, collisions = profile.get("stragglers"), profile.get("recommended"), profile.get("collisions")
    found = {
        "batch_size": _first(
            (batch_size, "given"), (_of(grid, "batch_size"), "profile: its grid"), (128, "paper, Fig. 8")
        ),
        "max_length": _first(
            (max_length, "given"),
            (advice and advice["max_length"], "profile: recommended"),
            (_of(grid, "max_length"), "profile: its grid"),
            (max(histogram["lengths"]), "profile: its longest history"),
        ),
        "cost": _first(
            (calibration and repr(calibration.cost), calibration.source if calibration else ""),
            (advice and advice["cost_model"], "profile: recommended"),
            (_of(grid, "cost"), "profile: its grid"),
            ("Polynomial()", "fsdata's default"),
        ),
        "dim": _first(
            (None if isinstance(dims, Mapping) else dims, source),
            (calibration and calibration.dim, f"{calibration.source}, embeddings" if calibration else ""),
            (collisions and collisions["dim"], "profile: collisions"),
            (128, "assumed"),
        ),
    }
    ids = 1.0
    if isinstance(dims, Mapping):
        each = _per_event(profile, name, found["max_length"][0], dims)
        found["dim"] = sum(share * dims[column] for column, share in each.items()), f"{source}, by column"
        ids = sum(each.values())
    return Choice(
        sequence=name,
        batch_size=found["batch_size"][0],
        max_length=found["max_length"][0],
        cost=cost_model(found["cost"][0]),
        dim=found["dim"][0],
        ids=ids,
        sources={key: source for key, (_, source) in found.items()},
    )


def _per_event(profile: Mapping[str, Any], sequence: str, max_length: int, columns: Iterable[str]) -> dict[str, float]:
    """Column -> its events for each event of `sequence`. Raises UsageError for columns that are not in the profile."""
    means = mean_lengths(profile, max_length)
    unknown = [column for column in columns if column not in means]
    if unknown:
        raise UsageError(
            f"--dim: the profile has no lengths of {', '.join(unknown)}, but of {', '.join(means)}: name list columns "
            "with --sequence and --candidates when you profile"
        )
    return {column: means[column] / means[sequence] for column in columns}


def mean_lengths(profile: Mapping[str, Any], max_length: int | None) -> dict[str, float]:
    """List column -> mean events of a row: of sequences cut to `max_length` (None: whole), of candidates whole.

    Columns of a quick profile, which has no lengths, are left out.
    """
    found = {}
    for part in ("sequences", "candidates"):
        for column, one in profile.get(part, {}).items():
            if one.get("histogram"):
                histogram = LengthHistogram.from_dict(one["histogram"])
                if max_length is not None and part == "sequences":
                    histogram = histogram.clipped(max_length)
                found[column] = histogram.mean
    return found


def _of(grid: Mapping[str, Any] | None, name: str) -> Any:
    return grid["default"][name] if grid else None


def _first(*options: tuple[Any, str]) -> tuple[Any, str]:
    return next((value, source) for value, source in options if value is not None)


def cost_model(text: str) -> CostModel:
    """A `Polynomial(...)` or `Power(...)` from its repr. Raises UsageError for other texts."""
    models = {"Polynomial": Polynomial, "Power": Power}
    call = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if call is None or call[1] not in models:
        raise UsageError(f"the profile's cost model is {text!r}: Polynomial(...) or Power(...) is needed")
    try:
        keywords = ast.parse(text.strip(), mode="eval").body.keywords  # type: ignore[attr-defined]
        return models[call[1]](**{word.arg: ast.literal_eval(word.value) for word in keywords})
    except (SyntaxError, TypeError, ValueError) as error:
        raise UsageError(f"the profile's cost model {text!r} cannot be read: {error}") from error


def workload(
    profile: Mapping[str, Any],
    choice: Choice,
    *,
    ranks: Sequence[int],
    calibration: Calibration | None = None,
    seed: int = 0,
) -> Workload:
    """The workload at all numbers in `ranks`.

    Straggler shares come from the profile's grid if it has the point.
    """
    whole = LengthHistogram.from_dict(profile["sequences"][choice.sequence]["histogram"])
    histogram = whole.clipped(choice.max_length)
    points = {count: _point(profile.get("stragglers"), choice, whole, count, seed) for count in ranks}
    measured = _measured(histogram, choice.batch_size, calibration) if calibration else {}
    return Workload(
        **measured,
        batch_size=choice.batch_size,
        events=choice.batch_size * histogram.mean,
        flops=choice.batch_size * flops(histogram.lengths, histogram.counts),
        dim=choice.dim,
        ids=choice.ids,
        dense_parameters=DENSE_PARAMETERS,
        stragglers=_by_method(points, "straggler"),
        skews=_by_method(points, "skew"),
        collisions=collision_rates(profile.get("collisions")),
        **_distinct(profile.get("collisions")),
    )


def _measured(histogram: LengthHistogram, batch_size: int, calibration: Calibration) -> dict[str, Any]:
    """What the calibration says of a rank's step."""
    costs = calibration.cost({"sequence": histogram.lengths}).astype(np.float64)
    cost = batch_size * float(costs @ histogram.counts) / histogram.rows
    rows = 1e3 * batch_size * histogram.mean
    return {
        "compute_ms": 1e3 * calibration.seconds_per_cost * cost,
        "fixed_ms": 1e3 * calibration.constant_s,
        "forward": calibration.forward,
        "lookup_ms": None if calibration.lookup_s is None else rows * calibration.lookup_s,
        "apply_ms": None if calibration.update_s is None else rows * calibration.update_s,
        "balancing_ms": 1e3 * (calibration.balancing_s or 0.0),
    }


def _by_method(points: Mapping[int, Mapping[str, Any]], name: str) -> dict[tuple[int, str], float]:
    return {(count, method): point[name][method] for count, point in points.items() for method in METHODS}


def _point(
    grid: Mapping[str, Any] | None, choice: Choice, histogram: LengthHistogram, ranks: int, seed: int
) -> Mapping[str, Any]:
    """Of the profile's grid if it has this point, else simulated."""
    setting = Setting(ranks=ranks, batch_size=choice.batch_size, max_length=choice.max_length, cost=choice.cost)
    wanted = {**dataclasses.asdict(setting), "cost": repr(choice.cost), "planned_by": repr(choice.cost)}
    for point in grid["points"] if grid else ():
        if wanted.items() <= point.items() and "skew" in point:
            return dict(point)
    return simulate_setting(Samples(histogram=histogram, seed=seed), setting, methods=METHODS[1:])


def _distinct(document: Mapping[str, Any] | None) -> dict[str, float]:
    """Rows over events, from the bytes that the profile counted."""
    sent = document.get("bytes") if document else None
    if not sent:
        return {}
    colliding, rest = ("collision_rows", "collision_gradients"), ("exclusive_rows", "exclusive_gradients")
    rows, gradients = (sent[colliding[at]] + sent[rest[at]] for at in (0, 1))
    found = {"distinct": rows / gradients if gradients else 1.0}
    return found | {"colliding_distinct": sent[colliding[0]] / sent[colliding[1]] if sent[colliding[1]] else 1.0}


def collision_rates(document: Mapping[str, Any] | None) -> dict[int, float]:
    """Ranks -> collision rate by occurrence, from the profile; the rate of the paper if it has none."""
    if document is None:
        return {1: PAPER_COLLISION}
    return {
        point["ranks"]: point["by_occurrence"]["mean"]
        for point in document["points"]
        if point["axis"] in ("ranks", "default")
    }
