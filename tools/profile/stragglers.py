"""Predicts how long ranks wait for each other, with simulated global batches and every packing method.

Nothing is trained: the time of a rank is the cost of its samples. Straggler share = 1 - mean / max of rank
time. Sparsity = share of padding if every rank padded its samples to its longest one (the paper, section 1,
Figures 2 and 8). Batches are drawn row by row from a length histogram. The same seed gives the same batches.
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CANDIDATES, CostModel, Polynomial, Power
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share
from fsdata.catalog.cores import usable_cores

METHODS = ("fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")
UNPACKED = "none"
MAX_LENGTHS = (1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)
BATCH_SIZES = (16, 32, 64, 128, 256, 512)
COSTS: tuple[CostModel, ...] = (Polynomial(), Power(alpha=1), Power(alpha=1.5), Power(alpha=2))

_NODE = 8  # ranks that share a host, for `hierarchical`
_LONGEST_DEFAULT = 21_000  # the paper's
_SAMPLES = 16 * 8192  # of a point: small global batches get more steps
_STEPS = (3, 48)
_TWO_WAY_METHODS = ("fbs", "fbs+swap")
_TWO_WAY_RANKS = (8, 64, 256, 1024)
_SEQUENCE = "sequence"

Task = tuple[str, "Setting", tuple[str, ...]]
"""Axis, setting, methods of one point."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One simulated configuration.

    Attributes:
        max_length: most events of a history.
        ranks: W.
        batch_size: samples of a rank.
        cost: the true cost of a sample.
        planned_by: the cost model of the plan; None is `cost`.
    """

    max_length: int
    ranks: int
    batch_size: int
    cost: CostModel = dataclasses.field(default_factory=Polynomial)
    planned_by: CostModel | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "ranks", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def samples(self) -> int:
        """Samples of a global batch."""
        return self.ranks * self.batch_size

    @property
    def steps(self) -> int:
        """Simulated steps: enough for a steady mean, in about the same time for all sizes."""
        return min(max(_SAMPLES // self.samples, _STEPS[0]), _STEPS[1])

    @property
    def node(self) -> int:
        """Ranks of a host."""
        return math.gcd(self.ranks, _NODE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The lengths that global batches are drawn from. Candidates are drawn independently of histories."""

    histogram: LengthHistogram
    candidates: LengthHistogram | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.histogram.events == 0:
            raise UsageError(
                f"no events in {self.histogram.rows} rows: batches can only be simulated from histories with events"
            )

    def lengths(self, setting: Setting, step: int) -> dict[str, np.ndarray]:
        """int64[N] by sequence, as a cost model takes them.

        Settings of one size draw the same rows in a step.
        """
        generator = np.random.default_rng((self.seed, step))
        drawn = np.minimum(self.histogram.draw(generator, setting.samples), setting.max_length)
        if self.candidates is None or self.candidates.rows == 0:
            return {_SEQUENCE: drawn}
        return {_SEQUENCE: drawn, CANDIDATES: self.candidates.draw(generator, setting.samples)}


def straggler_grid(
    histogram: LengthHistogram,
    *,
    candidates: LengthHistogram | None = None,
    ranks: Sequence[int] = RANKS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    batch_size: int = 128,
    default_ranks: int = 64,
    max_length: int | None = None,
    cost: CostModel | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of all simulated points: one axis at a time around the default, and length against ranks.

    `max_length` belongs to the default; None takes the longest history of the data, at most 21,000. On the
    axis `cost`, plans use the true cost model. Points of `wrong_model` are planned by `planned_by` although
    `cost` is true. `lower_bound` holds for plans with equal counts; `vbs` may get below it. `two-way` may
    lack methods. `progress` counts simulated samples. Takes some seconds on all cores. Raises UsageError
    without events.
    """
    model = cost or Polynomial()
    samples = Samples(histogram=histogram, candidates=candidates, seed=seed)
    lengths = max_lengths(histogram)
    default = Setting(
        max_length=max_length or min(histogram.longest, _LONGEST_DEFAULT),
        ranks=default_ranks,
        batch_size=batch_size,
        cost=model,
    )
    tasks = _tasks(default, lengths, ranks, batch_sizes)
    found = _simulate_all(samples, tasks, progress)
    points = [{"axis": axis, **found[setting]} for axis, setting, _ in tasks]
    return {
        "default": {
            "ranks": default.ranks,
            "batch_size": default.batch_size,
            "max_length": default.max_length,
            "cost": repr(model),
        },
        "max_lengths": lengths,
        "ranks": sorted({*ranks, default_ranks}),
        "batch_sizes": sorted({*batch_sizes, batch_size}),
        "methods": [UNPACKED, *METHODS],
        "points": [point for point in points if point["axis"] != "wrong_model"],
        "wrong_model": [point for point in points if point["axis"] == "wrong_model"],
    }


def max_lengths(histogram: LengthHistogram) -> list[int]:
    """The lengths to cut at: those of the paper below the longest history, and the longest history."""
    return [*(length for length in MAX_LENGTHS if length < histogram.longest), histogram.longest]


def simulate_setting(samples: Samples, setting: Setting, *, methods: Sequence[str] = METHODS) -> dict[str, Any]:
    """One point of the document: means over `setting.steps` global batches; shares are 0 to 1."""
    home = np.repeat(np.arange(setting.ranks), setting.batch_size)
    shares: dict[str, list[float]] = {method: [] for method in (UNPACKED, *methods)}
    bounds, padding = [], []
    planned_by = setting.planned_by or setting.cost
    for step in range(setting.steps):
        lengths = samples.lengths(setting, step)
        tokens = np.sum(list(lengths.values()), axis=0)
        true, planned = setting.cost(lengths), planned_by(lengths)
        shares[UNPACKED].append(_share(true, home, setting.ranks))
        padding.append(_padding(lengths[_SEQUENCE].reshape(setting.ranks, -1)))
        for method in methods:
            plan = pack(planned, setting.ranks, home=home, tokens=tokens, **method_options(method, setting))
            shares[method].append(_share(true, plan.rank, setting.ranks))
        # The bound uses the true cost, even if the plan uses another cost model.
        bounds.append(pack(true, setting.ranks, method="fbs").lower_bound)
    return {
        "max_length": setting.max_length,
        "ranks": setting.ranks,
        "batch_size": setting.batch_size,
        "cost": repr(setting.cost),
        "planned_by": repr(planned_by),
        "steps": setting.steps,
        "sparsity": float(np.mean(padding)),
        "lower_bound": float(np.mean(bounds)),
        "straggler": {method: float(np.mean(found)) for method, found in shares.items()},
    }


def method_options(method: str, setting: Setting) -> dict[str, Any]:
    """The arguments of `pack` for a method, as in `fsdata.Balance`: the counts of `vbs` have no limit."""
    return {"method": method, **({"ranks_per_node": setting.node} if method == "hierarchical" else {})}


def _simulate_all(samples: Samples, tasks: Sequence[Task], progress: Progress | None) -> dict[Setting, dict[str, Any]]:
    """Simulate every setting once, although all axes contain the default.

    Its first task gives the methods.
    """
    methods: dict[Setting, tuple[str, ...]] = {}
    for _, setting, wanted in tasks:
        methods.setdefault(setting, wanted)
    # The largest first: a large setting that starts last would run alone at the end.
    order = sorted(methods, key=lambda setting: -setting.samples * setting.steps * len(methods[setting]))

    def one(setting: Setting) -> dict[str, Any]:
        point = simulate_setting(samples, setting, methods=methods[setting])
        if progress is not None:
            progress.advance(rows=setting.samples * setting.steps)
        return point

    with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-straggler") as pool:
        return dict(zip(order, pool.map(one, order), strict=True))


def _tasks(default: Setting, lengths: Sequence[int], ranks: Sequence[int], batch_sizes: Sequence[int]) -> list[Task]:
    """Every point of the document; each axis contains the default."""

    def at(**changes: Any) -> Setting:
        return dataclasses.replace(default, **changes)

    ranks_axis = sorted({*ranks, default.ranks})
    others = [cost for cost in COSTS if repr(cost) != repr(default.cost)]
    tasks: list[Task] = [
        ("max_length", at(max_length=length), METHODS) for length in sorted({*lengths, default.max_length})
    ]
    tasks += [("ranks", at(ranks=number), METHODS) for number in ranks_axis]
    tasks += [("batch_size", at(batch_size=size), METHODS) for size in sorted({*batch_sizes, default.batch_size})]
    tasks += [("cost", at(cost=cost), METHODS) for cost in (default.cost, *others)]
    tasks += [
        ("two-way", at(max_length=length, ranks=number), _TWO_WAY_METHODS)
        for length in lengths
        for number in ranks_axis
        if number in _TWO_WAY_RANKS
    ]
    tasks += [("wrong_model", at(planned_by=cost), METHODS) for cost in others]
    return tasks


def _share(cost: np.ndarray, rank: np.ndarray, ranks: int) -> float:
    load = np.zeros(ranks, np.int64)
    np.add.at(load, rank, cost)
    return straggler_share(load, None)


def _padding(lengths: np.ndarray) -> float:
    """Share of padding of lengths [W, B], if each rank pads to its longest.

    Ranks without events do not count.
    """
    longest = lengths.max(axis=1)
    some = longest > 0
    if not some.any():
        return 0.0
    return float(np.mean(1 - lengths[some].mean(axis=1) / longest[some]))
