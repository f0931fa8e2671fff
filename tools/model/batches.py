"""How long ranks wait for each other, in simulated global batches: shares by packing method.

Nothing is trained: the time of a rank is the cost of its samples. Straggler share = 1 - mean / max of rank
time. Sparsity = share of padding if every rank padded its samples to its longest one (the paper, section 1,
Figures 2 and 8). Batches are drawn row by row from a length histogram. The same seed gives the same batches.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CANDIDATES, CostModel, Polynomial
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share

METHODS = ("fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")
UNPACKED = "none"
BATCHES = 5  # different global batches that rows should make: batches of more ranks would repeat rows
WELL = 20  # of them, a verdict does not hang on a few
_NODE = 8  # ranks that share a host, for `hierarchical`
_SAMPLES = 16 * 8192  # of a point: small global batches get more steps
_STEPS = (3, 128)
_SEQUENCE = "sequence"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One simulated configuration."""

    max_length: int
    """Most events of a history."""
    ranks: int
    batch_size: int
    """Samples of a rank."""
    cost: CostModel = dataclasses.field(default_factory=Polynomial)
    """The true cost of a sample."""
    planned_by: CostModel | None = None
    """The cost model of the plan; None is `cost`."""

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


def simulate_setting(
    samples: Samples,
    setting: Setting,
    *,
    methods: Sequence[str] = METHODS,
    max_tokens: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """One point of the document: means over `setting.steps` global batches; shares are 0 to 1.

    `straggler`, `straggler_error`, `skew`, `fullest`: by method. The error is the standard error of the share; the skew
    is the events of the rank that has most, over the mean; the fullest rank of all steps has so many tokens.
    `max_tokens`: method -> the cap of its plans; without a cap by default. Raises OverCapError where no plan keeps it.
    """
    home = np.repeat(np.arange(setting.ranks), setting.batch_size)
    shares: dict[str, list[float]] = {method: [] for method in (UNPACKED, *methods)}
    skews: dict[str, list[float]] = {method: [] for method in shares}
    fullest = dict.fromkeys(shares, 0)
    options = {method: balance_options(method, setting, (max_tokens or {}).get(method)) for method in methods}
    bounds, padding = [], []
    planned_by = setting.planned_by or setting.cost
    for step in range(setting.steps):
        lengths = samples.lengths(setting, step)
        tokens = np.sum(list(lengths.values()), axis=0)
        true, planned = setting.cost(lengths), planned_by(lengths)
        ranks = {UNPACKED: home}
        of_rank = lengths[_SEQUENCE].reshape(setting.ranks, -1)
        longest = of_rank.max(axis=1)
        some = longest > 0  # ranks without events do not count
        padding.append(float(np.mean(1 - of_rank[some].mean(axis=1) / longest[some])) if some.any() else 0.0)
        for method in methods:
            ranks[method] = pack(planned, setting.ranks, home=home, tokens=tokens, **options[method]).rank
        for method, rank in ranks.items():
            held = _by_rank(tokens, rank, setting.ranks)
            shares[method].append(rank_share(true, rank, setting.ranks))
            skews[method].append(1 / (1 - straggler_share(held)))
            fullest[method] = max(fullest[method], int(held.max()))
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
        "straggler_error": {
            method: float(np.std(found, ddof=1) / setting.steps**0.5) for method, found in shares.items()
        },
        "skew": {method: float(np.mean(found)) for method, found in skews.items()},
        "fullest": fullest,
    }


def balance_options(method: str, setting: Setting, max_tokens: int | None = None) -> dict[str, Any]:
    """The options of `fsdata.Balance` for a method, but for the cost model. Plans are simulated with the same."""
    return {
        "method": method,
        **({} if max_tokens is None else {"max_tokens": max_tokens}),
        **({"ranks_per_node": setting.node} if method == "hierarchical" else {}),
    }


def rank_share(cost: np.ndarray, rank: np.ndarray, ranks: int) -> float:
    """1 - mean / max of the cost that each of `ranks` has. `rank`: of each sample."""
    return straggler_share(_by_rank(cost, rank, ranks))


def _by_rank(amount: np.ndarray, rank: np.ndarray, ranks: int) -> np.ndarray:
    """int64[W]: the sum of the samples of each rank."""
    load = np.zeros(ranks, np.int64)
    np.add.at(load, rank, amount)
    return load


def enough_for(rows: int, ranks: int, batch_size: int, *, batches: int = BATCHES) -> bool:
    """Whether `rows` make `batches` different global batches of `ranks` times `batch_size` samples."""
    return ranks * batch_size * batches <= rows


def fitting(rows: int, ranks: int, batch_size: int) -> tuple[int, int]:
    """(ranks, batch size), halved until the rows are enough; ranks are halved first."""
    while ranks > 1 and not enough_for(rows, ranks, batch_size):
        ranks = (ranks + 1) // 2
    while batch_size > 1 and not enough_for(rows, ranks, batch_size):
        batch_size //= 2
    return ranks, batch_size
