"""Cost models: exact integers, growing with length, guarded against overflow; and what fit recovers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata.balance.cost import Polynomial, Power, fit

lengths_of = st.lists(st.integers(0, 2**21), max_size=20).map(lambda values: np.array(values, np.int64))
MODELS = [
    Polynomial(),
    Polynomial(linear=0, quadratic=3, candidate=5),
    Polynomial(linear=2, sample=300),
    Power(alpha=0.4),
    Power(alpha=1),
    Power(alpha=1.7),
]


@given(lengths_of)
def test_polynomial_is_the_formula(length):
    model = Polynomial(linear=7, quadratic=3, candidate=11, sample=13)
    found = model({"uih": length, "other": length[::-1], "candidates": length})
    expected = [
        7 * x + 3 * x * x + 7 * y + 3 * y * y + 11 * x + 13
        for x, y in zip(length.tolist(), length.tolist()[::-1], strict=True)
    ]
    assert found.dtype == np.int64
    assert found.tolist() == expected


@pytest.mark.parametrize("model", MODELS, ids=repr)
@given(lengths_of)
def test_models_grow_with_length_and_sum_over_sequences(model, length):
    length = np.sort(length)
    cost = model({"uih": length})
    assert cost.dtype == np.int64
    assert (cost >= 0).all()
    assert (np.diff(cost) >= 0).all()
    once = getattr(model, "sample", 0)  # however many sequences a sample has
    assert (cost[length == 0] == once).all()
    assert model({"a": length.astype(np.int32), "b": length}).tolist() == (2 * cost - once).tolist()
    if isinstance(model, Power):
        assert model({"uih": length, "candidates": length}).tolist() == cost.tolist()
    assert eval(repr(model)) == model


@given(length=st.integers(1, 2**20), alpha=st.integers(1, 12).map(lambda k: k / 4))
def test_power_is_exact_to_rounding(length, alpha):
    """Compared in whole numbers: cost^4 against L^(4 alpha) in the model's unit, with room for one part in 2^48."""
    unit = 2 ** max(math.floor(47 - 20 * alpha), 0)
    cost = int(Power(alpha=alpha)({"uih": np.array([length])})[0])
    fourth = Fraction(length) ** int(4 * alpha) * unit**4
    slack = Fraction(1, 2) + Fraction(cost, 2**48)
    assert (cost - slack) ** 4 <= fourth <= (cost + slack) ** 4


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Polynomial(linear=1.5), TypeError, "linear=1.5"),
        (lambda: Polynomial(quadratic=True), TypeError, "quadratic=True"),
        (lambda: Polynomial(candidate=-1), ValueError, "candidate=-1"),
        (lambda: Polynomial(linear=2**63), ValueError, "0 to 2\\*\\*62"),
        (lambda: Polynomial(sample=-1), ValueError, "sample=-1"),
        (lambda: Polynomial(linear=0, quadratic=0), ValueError, "cost nothing"),
        (lambda: Power(alpha=0), ValueError, "alpha=0"),
        (lambda: Power(alpha=3.5), ValueError, "at most 3"),
        (lambda: Power(alpha=float("nan")), ValueError, "alpha=nan"),
        (lambda: Power(alpha="1"), TypeError, "alpha='1'"),
    ],
)
def test_bad_models(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("model", [Polynomial(), Power(alpha=1.5)], ids=repr)
def test_bad_lengths(model):
    with pytest.raises(ValueError, match="at least one sequence"):
        model({})
    with pytest.raises(ValueError, match=r"lengths\['uih'\]\[1\] = -2"):
        model({"uih": np.array([1, -2])})
    with pytest.raises(TypeError, match=r"lengths\['uih'\] is float64"):
        model({"uih": np.array([1.0])})
    with pytest.raises(TypeError, match="shape"):
        model({"uih": np.array([[1]])})
    with pytest.raises(ValueError, match=r"disagree.*'uih': 2, 'candidates': 1"):
        model({"uih": np.array([1, 2]), "candidates": np.array([1])})


def test_overflow_is_refused():
    with pytest.raises(ValueError, match=r"2 samples of up to 1125899906842624 uih.*2\*\*62"):
        Polynomial()({"uih": np.array([2**50, 1])})
    Polynomial(sample=2**61)({"uih": np.array([0, 0])})
    with pytest.raises(ValueError, match=r"sample=2305843009213693952\) on 3 samples .*2\*\*62"):
        Polynomial(sample=2**61)({"uih": np.array([0, 0, 0])})
    with pytest.raises(ValueError, match=r"Power\(alpha=3\).*smaller alpha"):
        Power(alpha=3)({"uih": np.full(3, 2**21)})
    assert Polynomial()({"uih": np.full(100_000, 2**21)}).sum() > 0


def steps(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "uih": np.clip(rng.lognormal(np.log(180), 1.1, 128), 0, 21_000).astype(np.int64),
            "candidates": rng.integers(1, 50, 128),
        }
        for _ in range(count)
    ]


def time_of(step, linear, quadratic, candidate):
    events = step["uih"].astype(float)
    return linear * events.sum() + quadratic * (events**2).sum() + candidate * step["candidates"].sum()


@pytest.mark.parametrize(("linear", "quadratic", "candidate"), [(2e-6, 1e-9, 3e-5), (0.0, 1e-9, 0.0), (2e-6, 0.0, 0.0)])
def test_fit_recovers_what_made_the_times(linear, quadratic, candidate):
    measured = steps(60)
    model = fit(measured, [0.05 + time_of(step, linear, quadratic, candidate) for step in measured])
    assert isinstance(model, Polynomial)
    scale = (model.linear + model.quadratic + model.candidate) / (linear + quadratic + candidate)
    assert model.linear == pytest.approx(linear * scale, rel=0.01, abs=1)
    assert model.quadratic == pytest.approx(quadratic * scale, rel=0.02, abs=1)
    assert model.candidate == pytest.approx(candidate * scale, rel=0.01, abs=1)
    worst = {"uih": np.full(32_000, 2**20), "candidates": np.full(32_000, 2**14)}
    assert 0 < int(model(worst).sum()) < 2**62


def of_counts(counts, seed=0):
    """Steps of so many samples, half of them without events."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 500, count) * (rng.random(count) < 0.5) for count in counts]


def test_fit_tells_a_sample_from_a_step_where_their_numbers_differ():
    measured = of_counts(np.random.default_rng(0).integers(20, 200, 60))
    model = fit(measured, [0.05 + 3e-4 * len(each) + 2e-6 * each.sum() for each in measured])
    assert model.sample / model.linear == pytest.approx(150, rel=0.01)
    assert int(model({"uih": np.full(32_000, 2**20)}).sum()) < 2**62


@pytest.mark.parametrize("last", [[], [3, 3, 3]], ids=["equal", "with short last batches"])
def test_fit_leaves_a_sample_free_where_its_cost_is_part_of_the_step(last):
    measured = of_counts([64] * 40 + last)
    model = fit(measured, [3e-4 * len(each) + 2e-6 * each.sum() for each in measured])
    assert model.sample == 0
    assert model.linear > 0


def test_fit_is_never_negative_under_noise():
    """Of plain arrays too."""
    measured = steps(40)
    rng = np.random.default_rng(1)
    model = fit(
        [step["uih"] for step in measured], [time_of(step, 2e-6, 0.0, 0.0) * rng.normal(1, 0.05) for step in measured]
    )
    assert min(model.linear, model.quadratic, model.candidate) >= 0
    assert model.candidate == 0
    error = [time_of(s, model.linear, model.quadratic, 0) / time_of(s, 1, 0, 0) for s in measured]
    assert np.std(error) / np.mean(error) < 0.05


@pytest.mark.parametrize(
    ("seconds", "match"),
    [
        ([1.0] * 9, "10 steps of lengths, but 9"),
        ([float("nan")] * 10, "finite"),
        ([-1.0] * 10, "finite"),
        ([1.0] * 10, "do not grow"),
        ([1.0, 2.0, 3.0], "3 measured steps"),
    ],
    ids=["count", "nan", "negative", "constant", "few"],
)
def test_fit_refuses(seconds, match):
    with pytest.raises(ValueError, match=match):
        fit(steps(3 if len(seconds) == 3 else 10), seconds)
