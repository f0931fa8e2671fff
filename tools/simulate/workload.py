"""Reads from a profile what a rank trains on in a step: events, products, collisions, straggler shares."""

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CostModel, Polynomial, Power
from fsdata.balance.packing import Method, pack

PAPER_COLLISION = 0.12
CHANNELS, LAYERS, DENSE_PARAMETERS = 512, 4, 50_000_000
# A pair of events takes two products of `channels` multiply-adds forward and twice that backward, in every
# layer.
FLOPS_PER_COST = 12 * CHANNELS * LAYERS
METHODS: tuple[str, ...] = ("none", "fbs+swap")
_SAMPLED_RANKS = 5120
_LEAST_STEPS = 10


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
    dense_parameters: float
    stragglers: Mapping[tuple[int, str], float]
    """(ranks, method) -> share, 0 to below 1."""
    collisions: Mapping[int, float]
    """Ranks -> share of the events whose row the batch before uses too, 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "events", "flops", "dim"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: above 0 is needed")
        if self.dense_parameters < 0:
            raise ValueError(f"dense_parameters = {self.dense_parameters!r}: 0 or more is needed")
        if not self.collisions or not all(0 <= rate <= 1 for rate in self.collisions.values()):
            raise ValueError(f"collisions = {dict(self.collisions)}: shares of 0 to 1 by ranks are needed")
        if not all(0 <= share < 1 for share in self.stragglers.values()):
            raise ValueError(f"stragglers = {dict(self.stragglers)}: shares of 0 to below 1 are needed")

    def straggler(self, ranks: int, method: str) -> float:
        return self.stragglers[ranks, method]

    def collision(self, ranks: int) -> float:
        """The rate at `ranks`, interpolated on a logarithmic axis; the nearest rate beyond its ends."""
        known = sorted(self.collisions)
        return float(np.interp(np.log2(ranks), np.log2(known), [self.collisions[at] for at in known]))


def flops(lengths: np.ndarray, counts: np.ndarray) -> float:
    """Mean operations per sample by the default Polynomial: a profile's cost model has no unit."""
    pairs = Polynomial()({"sequence": lengths}).astype(np.float64)
    return FLOPS_PER_COST * float(pairs @ counts) / float(counts.sum())


def straggler_shares(
    histogram: LengthHistogram, *, ranks: int, batch_size: int, cost: CostModel, seed: int = 0
) -> dict[str, float]:
    """Mean straggler share without balancing and with fbs+swap, over drawn global batches."""
    shares: dict[str, list[float]] = {method: [] for method in METHODS}
    for step in range(max(_SAMPLED_RANKS // ranks, _LEAST_STEPS)):
        drawn = histogram.draw(np.random.default_rng((seed, ranks, step)), ranks * batch_size)
        costs = cost({"sequence": drawn})
        for method, found in shares.items():
            found.append(packed(costs, ranks, method))
    return {method: float(np.mean(found)) for method, found in shares.items()}


def packed(costs: np.ndarray, ranks: int, method: str) -> float:
    """Straggler share of one global batch. Method "none" leaves samples on their ranks."""
    if method != "none":
        chosen: Method = method  # type: ignore[assignment]
        return pack(costs, ranks, method=chosen).straggler
    load = costs.reshape(ranks, -1).sum(1)
    return float(1 - load.mean() / load.max()) if load.any() else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The settings of a simulation. `sources`: setting -> where its value comes from."""

    sequence: str
    batch_size: int
    max_length: int
    cost: CostModel
    dim: int
    sources: Mapping[str, str]


def choose(
    profile: Mapping[str, Any],
    *,
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: int | None = None,
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
            (advice and advice["cost_model"], "profile: recommended"),
            (_of(grid, "cost"), "profile: its grid"),
            ("Polynomial()", "fsdata's default"),
        ),
        "dim": _first((dim, "given"), (collisions and collisions["dim"], "profile: collisions"), (128, "assumed")),
    }
    return Choice(
        sequence=name,
        batch_size=found["batch_size"][0],
        max_length=found["max_length"][0],
        cost=cost_model(found["cost"][0]),
        dim=found["dim"][0],
        sources={key: source for key, (_, source) in found.items()},
    )


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


def workload(profile: Mapping[str, Any], choice: Choice, *, ranks: Sequence[int], seed: int = 0) -> Workload:
    """The workload at all numbers in `ranks`.

    Straggler shares come from the profile's grid if it has the point.
    """
    whole = LengthHistogram.from_dict(profile["sequences"][choice.sequence]["histogram"])
    histogram = whole.clipped(choice.max_length)
    shares: dict[tuple[int, str], float] = {}
    for count in ranks:
        known = _grid_point(profile.get("stragglers"), choice, count)
        found = known or straggler_shares(
            histogram, ranks=count, batch_size=choice.batch_size, cost=choice.cost, seed=seed
        )
        shares |= {(count, method): found[method] for method in METHODS}
    return Workload(
        batch_size=choice.batch_size,
        events=choice.batch_size * histogram.mean,
        flops=choice.batch_size * flops(histogram.lengths, histogram.counts),
        dim=choice.dim,
        dense_parameters=DENSE_PARAMETERS,
        stragglers=shares,
        collisions=collision_rates(profile.get("collisions")),
    )


def _grid_point(grid: Mapping[str, Any] | None, choice: Choice, ranks: int) -> dict[str, float] | None:
    wanted = (ranks, choice.batch_size, choice.max_length, repr(choice.cost))
    for point in grid["points"] if grid else ():
        if (point["ranks"], point["batch_size"], point["max_length"], point["cost"]) == wanted:
            return point["straggler"]
    return None


def collision_rates(document: Mapping[str, Any] | None) -> dict[int, float]:
    """Ranks -> collision rate by occurrence, from the profile; the rate of the paper if it has none."""
    if document is None:
        return {1: PAPER_COLLISION}
    return {
        point["ranks"]: point["by_occurrence"]["mean"]
        for point in document["points"]
        if point["axis"] in ("ranks", "default")
    }
