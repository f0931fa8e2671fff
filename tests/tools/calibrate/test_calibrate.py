"""Cost models from measured steps: exact where the times are exact, and clear about what cannot be used."""

import numpy as np
import pytest
from tools_kit import answered, ran, refused

from freescale_tools.calibrate.calibration import advice, doubt, load_calibration
from freescale_tools.calibrate.fits import calibrate, explain
from freescale_tools.calibrate.measured_steps import parse_histogram, read_steps
from freescale_tools.console.errors import UsageError
from fsdata.balance.cost import Polynomial

SECONDS = 1e-9  # of L^2 + 2000 L
CONSTANT = 0.01
HEADER = "step,rank,seconds,lengths\n"


def batches(steps=30, ranks=4, samples=16, seed=0):
    """(step, rank) -> lengths."""
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(np.log(2000), 0.55, (steps, ranks, samples)).clip(1, 21_000).astype(np.int64)
    return {(step, rank): drawn[step, rank] for step in range(steps) for rank in range(ranks)}


def seconds_of(lengths):
    return SECONDS * float((lengths * lengths + 2000 * lengths).sum()) + CONSTANT


def text_of(lengths):
    values, counts = np.unique(lengths, return_counts=True)
    return ";".join(f"{value}:{count}" for value, count in zip(values, counts, strict=True))


def write_csv(path, of, factor=lambda step, rank: 1.0):
    """Rows of which everything is known; seconds are `factor` times those of the model."""
    rows = [
        f"{step},{rank},{seconds_of(lengths) * factor(step, rank)!r},{text_of(lengths)}\n"
        for (step, rank), lengths in of.items()
    ]
    path.write_text(HEADER + "".join(rows))
    return path


def read_text(tmp_path, text):
    (tmp_path / "m.csv").write_text(text)
    return read_steps(tmp_path / "m.csv")


def test_exact_times_give_the_exact_model(tmp_path):
    document = calibrate(read_steps(write_csv(tmp_path / "m.csv", batches())))
    model = eval(document["cost_model"], {"Polynomial": Polynomial})
    assert model.linear / model.quadratic == pytest.approx(2000, rel=5e-3)  # integers of a fixed scale
    assert model.candidate == 0
    assert document["r2"] == pytest.approx(1)
    assert document["seconds_per_cost"] * model.quadratic == pytest.approx(SECONDS, rel=5e-3)
    assert document["constant_s"] == pytest.approx(CONSTANT, rel=1e-2)
    assert document["r2_tokens"] < 0.99
    left = document["simulated"]
    assert left["by_model"] == pytest.approx(left["model_alone"], abs=1e-4)
    assert left["model_alone"] < 0.005
    assert left["model_alone"] < left["by_tokens"] < left["as_dealt"]
    assert (document["rows"], document["steps"], document["ranks"], document["samples"]) == (120, 30, 4, 1920)


def test_error_that_is_left_shows_as_straggler(tmp_path):
    rng = np.random.default_rng(1)
    steps = read_steps(write_csv(tmp_path / "m.csv", batches(60), lambda *_: 1 + rng.standard_normal() * 0.05))
    document = calibrate(steps, ranks=8)
    assert document["typical_error"] == pytest.approx(0.05, rel=0.2)
    # The largest of 8 normal errors of 5 % lies 1.42 deviations above their mean.
    share = 1.42 * document["typical_error"]
    assert document["simulated"]["by_model"] == pytest.approx(share / (1 + share), rel=0.15)
    assert document["simulated"]["model_alone"] < 0.005
    assert calibrate(steps, ranks=8) | {"created": ""} == document | {"created": ""}


def test_explained_by_hand(tmp_path):
    steps = read_text(tmp_path, HEADER + "0,0,3,1:1\n0,1,5,2:1\n1,0,7,3:1\n1,1,9.5,4:1\n")
    found = explain(Polynomial(linear=1, quadratic=0), steps)
    assert (found.scale, found.constant) == (pytest.approx(2.15), pytest.approx(0.75))
    error = np.array([3, 5, 7, 9.5]) - (2.15 * np.array([1, 2, 3, 4]) + 0.75)
    assert found.r2 == pytest.approx(1 - (error @ error) / np.sum((np.array([3, 5, 7, 9.5]) - 6.125) ** 2))
    straggler = ((1 - 4 / 5) + (1 - 8.25 / 9.5)) / 2
    assert calibrate(steps)["measured_straggler"] == pytest.approx(straggler)
    below = explain(Polynomial(linear=1, quadratic=0), read_text(tmp_path, HEADER + "0,0,0,1:1\n1,0,9,4:1\n"))
    assert (below.scale, below.constant) == (pytest.approx(36 / 17), 0)


def test_candidates_are_fitted(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["step,rank,seconds,lengths,candidates"]
    for step in range(40):
        lengths, candidates = rng.integers(1, 3000, 8), int(rng.integers(10, 500))
        seconds = SECONDS * float((2000 * lengths + lengths**2).sum() + 50_000 * candidates)
        lines.append(f"{step},0,{seconds!r},{text_of(lengths)},{candidates}")
    document = calibrate(read_text(tmp_path, "\n".join(lines)))
    model = eval(document["cost_model"], {"Polynomial": Polynomial})
    assert model.candidate / model.quadratic == pytest.approx(50_000, rel=5e-3)
    assert document["measured_straggler"] is None, "one rank waits for none"


def test_samples_cost_something_by_themselves_where_their_numbers_differ(tmp_path):
    """As in steps that `vbs` balanced."""
    rng = np.random.default_rng(0)
    lines = []
    for step in range(60):
        lengths = rng.integers(1, 900, int(rng.integers(4, 40)))
        seconds = SECONDS * float((2000 * lengths + lengths**2 + 500_000).sum()) + CONSTANT
        lines.append(f"{step},0,{seconds!r},{text_of(lengths)}\n")
    (tmp_path / "m.csv").write_text(HEADER + "".join(lines))
    document = calibrate(read_steps(tmp_path / "m.csv"))
    assert document["empty_sample_s"] == pytest.approx(SECONDS * 500_000, rel=1e-3)
    assert document["constant_s"] == pytest.approx(CONSTANT, rel=1e-2)
    assert document["intervals"]["empty_sample_s"] == pytest.approx([SECONDS * 500_000] * 2, rel=1e-2)
    assert load_calibration(tmp_path / "m.csv").cost.sample > 0
    shown = ran("calibrate", tmp_path / "m.csv", "--out", tmp_path / "c.json").stdout
    assert "an empty sample" in shown
    assert f"cost={document['cost_model']}" in shown
    assert ", sample=" in document["cost_model"]
    assert load_calibration(tmp_path / "c.json").cost == load_calibration(tmp_path / "m.csv").cost
    equal = ran("calibrate", write_csv(tmp_path / "equal.csv", batches(12))).stdout
    assert "an empty sample costs is part of the step" in " ".join(equal.split())
    assert ", sample=" not in equal


def test_warm_up_is_left_out_and_a_slow_rank_named(tmp_path):
    path = write_csv(tmp_path / "m.csv", batches(12, 2), lambda step, rank: 1 + 2 * (step == 0))
    assert "R2 is" in (doubt(calibrate(read_steps(path))) or "")
    document = calibrate(read_steps(path, skip=1))
    assert (document["r2"], document["rows"], doubt(document)) == (pytest.approx(1), 22, None)
    (said,) = advice(document)
    assert "22 rows: 50 or more" in said
    slow = read_steps(write_csv(tmp_path / "m.csv", batches(), lambda step, rank: 1 + 0.2 * (rank == 2)))
    (said,) = advice(calibrate(slow))
    assert "rank 2 (+" in said


def test_histogram_text():
    assert parse_histogram("256:1; 128:3;128:1").to_dict() == {"lengths": [128, 256], "counts": [4, 1]}
    for wrong in ("", "128", "128:0", "-1:2", "1.5:2", "a:b", "1:2,3:4"):
        with pytest.raises(ValueError, match="length:count;length:count"):
            parse_histogram(wrong)


GOOD = HEADER + "0,0,1,1:1\n0,1,2,2:1\n1,0,3,3:1\n1,1,4,4:1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,rank,lengths\n", "line 1: no column seconds; there are step, rank, lengths"),
        ("step,rank,seconds\n0,0,1\n", "line 1: no column lengths (length:count;length:count"),
        (HEADER + "0,0,1,1:1\n0,1,nan,1:1\n", "line 3: seconds is 'nan'"),
        (HEADER + "0,0,-2,1:1\n", "line 2: seconds is '-2'"),
        (HEADER + "0,x,1,1:1\n", "line 2: rank is 'x'"),
        (HEADER + "0,0,1,12\n", "line 2: '12' in lengths '12': needed is length:count"),
        (HEADER + "0,0\n", "line 2: seconds is None"),
        (GOOD + "0,1,3,2:2\n", "line 6: step 0 of rank 1 a second time; first in"),
        (HEADER + "0,0,1,1:1\n", "1 measured steps: at least 4"),
        (HEADER + "".join(f"{n},0,{n},5:2\n" for n in range(9)), "all 9 rows have the same lengths"),
        (HEADER + "".join(f"{n},0,2,{n}:2\n" for n in range(9)), "do not grow with their lengths"),
        (HEADER + "".join(f"{n},0,{9 - n},{n}:2\n" for n in range(9)), "do not grow with their lengths"),
        ('{"version": 1, "steps": []', "not JSON"),
        ('{"version": 3, "steps": []}', "not the run of a BubbleMeter"),
        ('{"version": 1, "steps": []}', "holds no lengths: tell the meter how long"),
    ],
)
def test_what_cannot_be_used_is_refused_by_line(tmp_path, text, message):
    with pytest.raises(UsageError) as raised:
        calibrate(read_text(tmp_path, text))
    assert message in str(raised.value)


def test_the_command(tmp_path):
    path = write_csv(tmp_path / "m.csv", batches(12))
    last = ran("calibrate", path).stdout.splitlines()[-1]
    assert last.startswith("cost=Polynomial(linear=")
    answer = answered("calibrate", path, "--ranks", 16)
    assert (answer["simulated"]["ranks"], f"cost={answer['cost_model']}") == (16, last)
    for wrong in ((path, "--ranks", 1), (path, "--skip", -1), (tmp_path / "none.csv",)):
        refused("calibrate", *wrong)
