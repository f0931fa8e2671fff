"""Cost models: the cost of a training sample, from the lengths of its sequences.

Costs are integers and equal on every CPU: each rank plans the global batch by itself, and all must get the same plan.
The costs of several sequences add up. The `repr` of a model describes it completely; ranks compare it before the first
batch. Any callable of the same shape with such a `repr` is a cost model, too.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fsdata.options import integer, is_number, plain

CANDIDATES = "candidates"
"""The key of `lengths` for the number of candidates of each sample."""

_LARGEST_SUM = 2**62
# Fitted and power costs are scaled so that 32,768 samples of this length add up without overflow.
_LONGEST = 2**20
_MOST_CANDIDATES = 2**14
_LARGEST_COST = 2**47
_ALPHA_BITS = 16
_LAST_BATCHES = 0.1  # up to this share of steps, differing numbers of samples count as short last batches
_SHOWN_ABOVE_0 = ("shared", "sample")  # fields of later releases: older saved reprs must stay equal


class CostModel(Protocol):
    """Cost of every sample of a batch."""

    def __call__(self, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64[N], not negative, growing with every length. `lengths`: sequence name (or `candidates`) -> int64[N]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Polynomial:
    """sample, plus (linear + shared) * L + quadratic * L^2 of every sequence, plus candidate * number of candidates.

    The default weighs the feed-forward layers of a sequence model of about 2,000 channels against its attention. Raises
    ValueError where the costs of a batch would sum to more than 2**62.
    """

    linear: int = 2000
    """Cost of one event: projections and feed-forward layers."""
    quadratic: int = 1
    """Cost of one pair of events: attention."""
    candidate: int = 0
    """Cost of one candidate."""
    shared: int = 0
    """Cost of one event that samples of a rank share (`Sequence(share=...)`): its lookup and exchange. Counted once per
    group of samples where groups are dealt, else once per sample."""
    sample: int = 0
    """Cost of one sample whatever its lengths, also of an empty one: heads, fixed work of its candidates, launches."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Polynomial({field.name}={value!r}): an integer is needed; scale all of them together")
            if not 0 <= value <= _LARGEST_SUM:
                raise ValueError(f"Polynomial({field.name}={value}): 0 to 2**62 is needed")
        if self.linear == self.quadratic == self.candidate == self.shared == self.sample == 0:
            raise ValueError("Polynomial(linear=0, quadratic=0, candidate=0): every sample would cost nothing")

    def __repr__(self) -> str:
        return f"Polynomial({_shown(self)})"

    def __call__(self, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64[N]; see the class."""
        return _summed(self, self._one, lengths, sample=self.sample)

    def _one(self, name: str, length: np.ndarray) -> np.ndarray:
        if name == CANDIDATES:
            return self.candidate * length
        return (self.linear + self.shared + self.quadratic * length) * length


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Segmented:
    """Cost of sequences that are cut in parts (`Split`): linear * positions + quadratic * pairs that see each other.

    Pairs are counted as in `Polynomial`: n^2 for n events that each see the earlier ones. Both models therefore agree
    on sequences that have only recent events. `candidate` and `sample` are those of `Polynomial`. Raises ValueError
    where the costs of a batch would sum to more than 2**62.
    """

    recent: int
    segment: int
    tokens: int
    linear: int = 2000
    quadratic: int = 1
    candidate: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        same = Polynomial(linear=self.linear, quadratic=self.quadratic, candidate=self.candidate, sample=self.sample)
        for name in ("linear", "quadratic", "candidate", "sample"):
            object.__setattr__(self, name, getattr(same, name))
        for name, least in (("recent", 0), ("segment", 1), ("tokens", 1)):
            object.__setattr__(self, name, integer(f"Segmented({name}=...)", getattr(self, name), least))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({_shown(self)})"

    def __call__(self, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64[N]; see the class."""
        return _summed(self, self._one, lengths, sample=self.sample)

    def _one(self, name: str, length: np.ndarray) -> np.ndarray:
        if name == CANDIDATES:
            return self.candidate * length
        recent = np.minimum(length, self.recent)
        older = length - recent
        full, rest = older // self.segment, older % self.segment
        tokens = self.tokens * (full + (rest > 0))
        # Inside segments; tokens with the events of their segment; recent events and tokens with each other. Twice for
        # tokens: they see all events of the segment, where n^2 stands for n^2 / 2 pairs of events.
        pairs = full * self.segment**2 + rest**2 + 2 * self.tokens * older + (recent + tokens) ** 2
        return self.linear * (length + tokens) + self.quadratic * pairs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Sum over the sequences of L^alpha, in units of 2**-k (k such that 2^20 events cost 2^47 at most).

    Candidates cost nothing. `alpha` is rounded to a multiple of 2**-16, and L^alpha is computed from products and
    square roots only: IEEE 754 defines both to the last bit, while `pow` differs between math libraries.
    Source: paper section 1, the weights of VBS.
    """

    alpha: float
    """Exponent, above 0 and at most 3: 1 counts tokens, 2 is pure attention."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", plain(self.alpha))
        if not is_number(self.alpha):
            raise TypeError(f"Power(alpha={self.alpha!r}): a number is needed")
        if not 2**-_ALPHA_BITS <= self.alpha <= 3:
            raise ValueError(f"Power(alpha={self.alpha!r}): an exponent above 0 and at most 3 is needed")

    def __call__(self, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64[N]; ValueError where the costs of a batch would sum to more than 2**62."""
        arrays = _checked(lengths)
        size = next(iter(arrays.values())).size
        cost = np.zeros(size, np.int64)
        unit = 2.0 ** max(math.floor(math.log2(_LARGEST_COST) - math.log2(_LONGEST) * self.alpha), 0)
        most = 0
        for name, length in arrays.items():
            if name == CANDIDATES:
                continue
            powers = _power(length, self.alpha) * unit  # `unit` is a power of two: exact
            most += int(powers.max(initial=0.0))
            if most * size > _LARGEST_SUM:
                raise ValueError(
                    f"{self} on {size} samples of up to {_longest(arrays)} could sum to {most * size}, above 2**62, "
                    "where 64-bit sums start to overflow: use a smaller alpha or shorten histories"
                )
            cost += np.rint(powers).astype(np.int64)
        return cost


def _shown(model: Polynomial | Segmented) -> str:
    """The arguments in a `repr`, which ranks compare and saved states contain."""
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value or name not in _SHOWN_ABOVE_0)


def _summed(
    model: CostModel, one: Callable[[str, np.ndarray], np.ndarray], lengths: Mapping[str, np.ndarray], *, sample: int
) -> np.ndarray:
    """int64[N]: `sample` plus the sum over the sequences of `one`, which grows with the length. Raises ValueError where
    the costs of the batch could overflow."""
    arrays = _checked(lengths)
    size = next(iter(arrays.values())).size
    # The bound is computed in Python integers (dtype object), as it may itself be above 2**63.
    longest = {name: np.array([int(length.max(initial=0))], object) for name, length in arrays.items()}
    most = sample + sum(int(one(name, length)[0]) for name, length in longest.items())
    if most * size > _LARGEST_SUM:
        raise ValueError(
            f"{model} on {size} samples of up to {_longest(arrays)} could sum to {most * size}, above 2**62, where "
            "64-bit sums start to overflow: divide the coefficients by a common factor or shorten histories"
        )
    cost = np.full(size, sample, np.int64)
    for name, length in arrays.items():
        cost += one(name, length)
    return cost


def fit(lengths: Sequence[Mapping[str, np.ndarray] | np.ndarray], seconds: Sequence[float]) -> Polynomial:
    """The Polynomial that fits measured steps best, by least squares with coefficients of 0 or more.

    One entry per measured step of one rank: `lengths[i]` are the lengths of the samples of that rank's local batch, as
    a cost model gets them (an array for a single sequence), and `seconds[i]` is the time of forward and backward on
    that rank, without waiting for other ranks. A constant time per step is fitted too, but it is not part of the
    result: no plan can change it. Omit warm-up steps, and measure batches of differing lengths: equal ones cannot
    determine the coefficients.

    The cost per sample needs steps of differing numbers of samples, such as those that `vbs` balances. Where the
    numbers are equal except in a few last batches, it is indistinguishable from the constant per step and set to 0.

    The coefficients are scaled to integers so that a sample of 2^20 events and 2^14 candidates costs at most 2^47: the
    costs of 32,768 such samples add up without overflow. Fit on one rank and pass the result to every rank.

    Raises ValueError if fewer than four steps are given, if a time is not finite, or if longer batches were not slower.
    """
    if len(lengths) != len(seconds):
        raise ValueError(f"{len(lengths)} steps of lengths, but {len(seconds)} of seconds: one time per step is needed")
    if len(seconds) < 4:
        raise ValueError(f"{len(seconds)} measured steps: at least 4, better 50, are needed to fit the coefficients")
    wanted = np.asarray(seconds, np.float64)
    if wanted.ndim != 1 or not np.isfinite(wanted).all() or (wanted < 0).any():
        raise ValueError("seconds must be finite numbers of 0 or more, one per step")
    linear, quadratic, candidate, _, sample = non_negative(fit_columns(lengths), wanted)
    longest = (linear + quadratic * _LONGEST) * _LONGEST + candidate * _MOST_CANDIDATES
    if longest <= 0:
        raise ValueError(
            f"the times of {len(seconds)} steps do not grow with their lengths: measure compute time alone (no waiting "
            "for other ranks), over batches of differing lengths"
        )
    scale = _LARGEST_COST / (longest + sample)
    return Polynomial(
        linear=round(linear * scale),
        quadratic=round(quadratic * scale),
        candidate=round(candidate * scale),
        sample=round(sample * scale),
    )


def fit_columns(steps: Sequence[Mapping[str, np.ndarray] | np.ndarray]) -> np.ndarray:
    """float64[N, 5], the design matrix of `fit`: events, squared events and candidates of each local batch, 1 for the
    step, and samples.

    The samples are all 0 unless `counts_differ`: they would otherwise be a multiple of the column of ones.
    """
    columns = np.array([_step_sums(step) for step in steps], np.float64)
    if not counts_differ(columns[:, 4]):
        columns[:, 4] = 0
    return columns


def counts_differ(samples: Sequence[int] | np.ndarray) -> bool:
    """Whether the numbers of samples of the steps differ enough to fit a cost per sample."""
    # One short last batch among equal steps is not enough: the noise of that one time would determine the cost.
    _, times = np.unique(np.asarray(samples), return_counts=True)
    return bool(times.max(initial=0) < (1 - _LAST_BATCHES) * len(samples))


def _step_sums(step: Mapping[str, np.ndarray] | np.ndarray) -> tuple[int, int, int, int, int]:
    """One row of `fit_columns`."""
    arrays = _checked(step if isinstance(step, Mapping) else {"sequence": np.asarray(step)})
    sequences = [length for name, length in arrays.items() if name != CANDIDATES]
    events = sum(int(length.sum()) for length in sequences)
    squares = sum(int((length * length).sum()) for length in sequences)
    candidates = int(arrays[CANDIDATES].sum()) if CANDIDATES in arrays else 0
    return events, squares, candidates, 1, next(iter(arrays.values())).size


def non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """argmin |matrix x - wanted| over x >= 0: the best of the unconstrained solutions on all subsets of the columns.

    matrix: float64 [N, C]; C is small, as there are 2^C subsets. wanted: float64 [N]. Returns float64 [C].
    """
    width = matrix.shape[1]
    norms = np.linalg.norm(matrix, axis=0)
    best, best_error = np.zeros(width), float(np.linalg.norm(wanted))
    rounding = 1e-9 * best_error
    for size in range(1, width + 1):
        for chosen in itertools.combinations(np.flatnonzero(norms).tolist(), size):
            columns = list(chosen)
            # Columns of norm 1: squared events are larger than candidates by many orders of magnitude.
            solution = np.linalg.lstsq(matrix[:, columns] / norms[columns], wanted, rcond=None)[0]
            if (solution < 0).any():
                continue
            error = float(np.linalg.norm(matrix[:, columns] / norms[columns] @ solution - wanted))
            # A larger set must be better by more than rounding, otherwise it only splits one effect in two.
            if error < best_error - rounding:
                best, best_error = np.zeros(width), error
                best[columns] = solution / norms[columns]
    return best


def _power(length: np.ndarray, alpha: float) -> np.ndarray:
    """float64[N]: length^alpha, equal on every machine and growing with length."""
    base = length.astype(np.float64)
    whole, fraction = divmod(round(alpha * 2**_ALPHA_BITS), 2**_ALPHA_BITS)
    result = (base > 0).astype(np.float64)
    for _ in range(whole):
        result *= base
    root = base  # its square roots are L^(1/2), L^(1/4), ...: one factor for each bit of the fraction
    for bit in range(_ALPHA_BITS - 1, -1, -1):
        root = np.sqrt(root)
        if fraction >> bit & 1:
            result *= root
    return result


def _checked(lengths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The lengths as int64 arrays of one size."""
    if not lengths:
        raise ValueError("lengths is empty: at least one sequence is needed")
    arrays = {}
    for name, length in lengths.items():
        array = np.asarray(length)
        if array.size == 0:
            array = array.astype(np.int64)  # numpy makes float64 of an empty list
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise TypeError(f"lengths[{name!r}] is {array.dtype}{list(array.shape)}: integers of shape [N] are needed")
        if array.size and int(array.min()) < 0:
            raise ValueError(f"lengths[{name!r}][{int(array.argmin())}] = {int(array.min())}: lengths are 0 or more")
        arrays[name] = array.astype(np.int64, copy=False)
    sizes = {name: array.size for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"lengths disagree on the number of samples: {sizes}")
    return arrays


def _longest(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{int(array.max(initial=0))} {name}" for name, array in arrays.items())
