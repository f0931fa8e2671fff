"""How long ranks wait for each other in the global batches of an epoch, by packing method.

Nothing is trained: the time of a rank is the cost of its samples. Two figures of the same steps, both 0 to 1:

- *straggler %*, as the paper defines it (section 1, Figures 2 and 8): the mean over steps of 1 - mean / max of rank
  time. A step counts as much as another, however long it is.
- *time lost*: 1 - sum of means / sum of maxima. What a step takes, samples per second, gains and GPU-hours follow from
  this one; where few steps are much longer than the others, the two are far apart.

Batches are dealt as the loader deals the rows of the files, in file order or shuffled. Where the order of the rows is
not known, or where there are too few of them, batches are drawn row by row from a histogram of lengths.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.batch_order import Batches, Orders, RowsInOrder
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CANDIDATES, CostModel, Polynomial
from fsdata.balance.packing import pack
from fsdata.balance.packing.plan import straggler_share
from fsdata.sampling.stochastic_length import drawn_lengths
from fsdata.schema import StochasticLength

METHODS = ("fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")
UNPACKED, PACKED = "none", "balanced"
MOST_RANKS = 1024  # that predictions are made for, unless they are asked for
BATCHES = 5  # different global batches that rows should make: batches of more ranks would repeat rows
_NODE = 8  # ranks that share a host, for `hierarchical`
_SAMPLES = 1 << 20  # of a point: small global batches get more steps
_STEPS = (3, 512)
_DRAWN = 128  # most steps that are drawn
_HEAVY = 4  # one of so many simulated steps is among the heaviest of the epoch
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
    """The cost of a sample, which plans are made by."""
    order: str = "shuffled"
    """In which the loader deals rows: `file` or `shuffled`."""
    sample: StochasticLength | None = None
    """By which histories are shortened further, each step with draws of its own."""

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
        """Most steps that are simulated: enough for a steady mean, in about the same time for all sizes."""
        return min(max(_SAMPLES // self.samples, _STEPS[0]), _STEPS[1])

    @property
    def node(self) -> int:
        """Ranks of a host."""
        return math.gcd(self.ranks, _NODE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """The lengths that global batches are made of: `rows` in order, else drawn from histograms.

    Candidates that `rows` lack are drawn independently of histories.
    """

    histogram: LengthHistogram
    candidates: LengthHistogram | None = None
    rows: RowsInOrder | None = None
    seed: int = 0
    _orders: Orders | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.histogram.events == 0:
            raise UsageError(
                f"no events in {self.histogram.rows} rows: batches can only be simulated from histories with events"
            )
        if self.rows is not None:
            none = np.empty(0, np.int64)
            object.__setattr__(self, "_orders", Orders(self.rows.units, none, none.astype(bool), seed=self.seed))

    def dealt(self, setting: Setting) -> Batches | None:
        """The batches of an epoch, as rows; None where they can only be drawn."""
        if self._orders is None:
            return None
        batches = self._orders.batches(setting.order, ranks=setting.ranks, batch_size=setting.batch_size)
        return batches if sum(batches.steps) else None

    def steps(self, setting: Setting, *, most: int | None = None) -> tuple[list[tuple[int, int]], np.ndarray]:
        """(the steps that are simulated, S of them as run and step; float64 [S], how many steps each stands for).

        At most `most` steps, by default those of the setting. All steps of the epoch if they are few, else its heaviest
        ones, which decide about time lost, and others that are spread evenly over the rest. Drawn steps stand for one
        each.
        """
        batches, most = self.dealt(setting), min(most or setting.steps, setting.steps)
        if batches is None:
            drawn = min(most, _DRAWN)
            return [(0, step) for step in range(drawn)], np.ones(drawn)
        every = [(run, step) for run, steps in enumerate(batches.steps) for step in range(steps)]
        if len(every) <= most:
            return every, np.ones(len(every))
        heavy = most // _HEAVY
        order = np.argsort([-self._heaviest(setting, *one) for one in every], kind="stable")
        rest = np.sort(order[heavy:])
        spread = rest[np.arange(most - heavy) * len(rest) // (most - heavy)]
        chosen = np.concatenate([order[:heavy], spread])
        weight = np.concatenate([np.ones(heavy), np.full(len(spread), len(rest) / len(spread))])
        return [every[place] for place in chosen], weight

    def _heaviest(self, setting: Setting, run: int, step: int) -> float:
        """What the dearest sample of a step costs."""
        return float(setting.cost(self.lengths(setting, run, step)).max())

    def lengths(self, setting: Setting, run: int, step: int) -> dict[str, np.ndarray]:
        """int64 [G] by sequence, rank by rank, as a cost model takes them."""
        batches = self.dealt(setting)
        generator = np.random.default_rng((self.seed, step))
        if batches is None or self.rows is None:
            history = self.histogram.draw(generator, setting.samples)
            known: Mapping[str, np.ndarray] = {}
        else:
            place = batches.rows(run, step)
            known = {name: of[place].astype(np.int64) for name, of in self.rows.lengths.items()}
            history = known[_SEQUENCE]
        found = {_SEQUENCE: np.minimum(history, setting.max_length)}
        if self.candidates is not None and self.candidates.rows:
            drawn = known.get(CANDIDATES)
            found[CANDIDATES] = self.candidates.draw(generator, setting.samples) if drawn is None else drawn
        if setting.sample is not None:
            keys = generator.integers(0, 1 << 64, setting.samples, np.uint64)
            found[_SEQUENCE] = drawn_lengths(setting.sample, setting.max_length, found[_SEQUENCE], keys)
        return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """What the ranks have to do in S simulated steps.

    Attributes:
        mean, most: float64 [S], cost of the mean and of the slowest rank.
        weight: float64 [S], steps that each one stands for.
    """

    mean: np.ndarray
    most: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, load: np.ndarray, weight: np.ndarray) -> "Waits":
        """load: [S, W], cost of every rank."""
        return cls(mean=load.mean(axis=1), most=load.max(axis=1).astype(np.float64), weight=weight)

    def straggler(self) -> tuple[float, float]:
        """(straggler %, as a share; its standard error)."""
        even = np.divide(self.mean, self.most, out=np.ones_like(self.mean), where=self.most > 0)
        return self._less(even, np.ones_like(even))

    def time_lost(self) -> tuple[float, float]:
        """(time lost, as a share; its standard error)."""
        return self._less(self.mean, self.most)

    def _less(self, part: np.ndarray, whole: np.ndarray) -> tuple[float, float]:
        """1 - sum of `part` / sum of `whole` over the steps, and its standard error."""
        every = float(self.weight @ whole)
        if not every > 0:
            return 0.0, 0.0
        kept, steps = float(self.weight @ part) / every, len(whole)
        off = self.weight * (part - kept * whole)
        error = math.sqrt(float(off @ off) * steps / (steps - 1)) / every if steps > 1 else 0.0
        return max(1 - kept, 0.0), error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """The simulated steps of one setting, S of them.

    Attributes:
        weight: float64 [S], steps of the epoch that each one stands for.
        loads: int64 [S, W], cost of every rank, by method and place of the cost model among `costs`.
        skew: by method, events of the rank that has most, over the mean rank: the mean over steps.
        fullest: by method, most tokens of a rank in a step.
        bound, padding: float64 [S], straggler % that no plan with equal counts gets below; share of padding.
    """

    weight: np.ndarray
    loads: Mapping[tuple[str, int], np.ndarray]
    skew: Mapping[str, float]
    fullest: Mapping[str, int]
    bound: np.ndarray
    padding: np.ndarray

    def waits(self, method: str, place: int = 0) -> Waits:
        return Waits.of(self.loads[method, place], self.weight)

    @property
    def lower_bound(self) -> Waits:
        """The same steps, if every one got to its bound."""
        mean = self.loads[UNPACKED, 0].mean(axis=1)
        return Waits(mean=mean, most=mean / (1 - self.bound), weight=self.weight)


def deal_out(
    samples: Samples,
    setting: Setting,
    *,
    methods: Sequence[str] = METHODS,
    max_tokens: Mapping[str, int] | None = None,
    costs: Sequence[CostModel] = (),
    most: int | None = None,
) -> Simulated:
    """Simulate the steps of a setting. Plans are made by its cost model, whatever samples really cost.

    costs: what samples cost; the model of the setting by default. max_tokens: method -> the cap of its plans; without a
    cap by default. most: steps, as of `Samples.steps`. Raises OverCapError where no plan keeps a cap.
    """
    home = np.repeat(np.arange(setting.ranks), setting.batch_size)
    options = {method: balance_options(method, setting, (max_tokens or {}).get(method)) for method in methods}
    true = tuple(costs) or (setting.cost,)
    loads: dict[tuple[str, int], list[np.ndarray]] = {
        (method, place): [] for method in (UNPACKED, *methods) for place in range(len(true))
    }
    skews: dict[str, list[float]] = {method: [] for method in (UNPACKED, *methods)}
    fullest = dict.fromkeys(skews, 0)
    bounds, padding = [], []
    steps, weight = samples.steps(setting, most=most)
    for run, step in steps:
        lengths = samples.lengths(setting, run, step)
        tokens = np.sum(list(lengths.values()), axis=0)
        planned = setting.cost(lengths)
        paid = [planned if cost == setting.cost else cost(lengths) for cost in true]
        ranks = {UNPACKED: home}
        of_rank = lengths[_SEQUENCE].reshape(setting.ranks, -1)
        longest = of_rank.max(axis=1)
        some = longest > 0  # ranks without events do not count
        padding.append(float(np.mean(1 - of_rank[some].mean(axis=1) / longest[some])) if some.any() else 0.0)
        for method in methods:
            ranks[method] = pack(planned, setting.ranks, home=home, tokens=tokens, **options[method]).rank
        for method, rank in ranks.items():
            held = _by_rank(tokens, rank, setting.ranks)
            for place, cost in enumerate(paid):
                loads[method, place].append(_by_rank(cost, rank, setting.ranks))
            skews[method].append(1 / (1 - straggler_share(held)))
            fullest[method] = max(fullest[method], int(held.max()))
        bounds.append(pack(paid[0], setting.ranks, method="fbs").lower_bound)
    return Simulated(
        weight=weight,
        loads={at: np.array(load) for at, load in loads.items()},
        skew={method: float(np.average(each, weights=weight)) for method, each in skews.items()},
        fullest=fullest,
        bound=np.array(bounds),
        padding=np.array(padding),
    )


def simulate_setting(
    samples: Samples,
    setting: Setting,
    *,
    methods: Sequence[str] = METHODS,
    max_tokens: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """One point of the document; shares are 0 to 1.

    By method: `straggler` and `time_lost` with their standard errors, `skew` and `fullest` as of `Simulated`. Of any
    plan with equal counts: `lower_bound`, of the straggler %, and `bound_time_lost`. `steps`: that were simulated.
    """
    found = deal_out(samples, setting, methods=methods, max_tokens=max_tokens)
    shares: dict[str, dict[str, float]] = {}
    for method in found.skew:
        waits = found.waits(method)
        for name, (share, error) in (("straggler", waits.straggler()), ("time_lost", waits.time_lost())):
            shares.setdefault(name, {})[method] = share
            shares.setdefault(f"{name}_error", {})[method] = error
    return {
        "max_length": setting.max_length,
        "ranks": setting.ranks,
        "batch_size": setting.batch_size,
        "cost": repr(setting.cost),
        "order": setting.order,
        "steps": len(found.weight),
        "sparsity": float(np.average(found.padding, weights=found.weight)),
        "lower_bound": found.lower_bound.straggler()[0],
        "bound_time_lost": found.lower_bound.time_lost()[0],
        **shares,
        "skew": dict(found.skew),
        "fullest": dict(found.fullest),
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


def check_ranks(ranks: int, rows: int, batch_size: int, *, measured: int | None = None) -> None:
    """Raise UsageError if `rows` are too few for `ranks`, or if a calibration measured fewer ranks."""
    said = []
    if not enough_for(rows, ranks, batch_size):
        most, size = supported(rows, batch_size), max(rows // (ranks * BATCHES), 1)
        fewer = f"--ranks {most}" if most > 1 else f"--batch-size {size}"
        said.append(
            f"the {rows:,} rows make less than {BATCHES} global batches of {ranks:,} x {batch_size:,} samples; "
            f"they are enough for {fewer}"
        )
    if measured is not None and ranks > measured:
        said.append(f"the calibration is of {measured:,} ranks")
    if said:
        raise UsageError(
            f"--ranks {ranks}: {', and '.join(said)}. --extrapolate shows such ranks all the same: of rows that are "
            "drawn again and again"
        )


def supported(rows: int, batch_size: int, *, most: int = MOST_RANKS) -> int:
    """The largest power of two that `rows` are enough ranks for, up to `most`; 1 if they are not enough for two."""
    ranks = 1
    while 2 * ranks <= most and enough_for(rows, 2 * ranks, batch_size):
        ranks *= 2
    return ranks


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
