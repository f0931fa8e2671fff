"""Cost models from measured steps: exact where the times are exact, and clear about what cannot be used."""

import json

import numpy as np
import polars as pl
import pytest

from freescale_tools.calibrate.cost_model import advice, calibrate, doubt, explain, measured_straggler
from freescale_tools.calibrate.measured_steps import parse_histogram, read_steps
from freescale_tools.console.errors import UsageError
from fscomm.meter.intervals import BubbleReport, StepTimes
from fsdata.balance.cost import Polynomial

COMMAND = "calibrate"

SECONDS = 1e-9  # of L^2 + 2000 L
CONSTANT = 0.01


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


def write_csv(path, of, noise=None, header="step,rank,seconds,lengths"):
    lines = [header]
    for (step, rank), lengths in of.items():
        seconds = seconds_of(lengths) * (1 if noise is None else 1 + noise.standard_normal() * 0.05)
        lines.append(f"{step},{rank},{seconds!r},{text_of(lengths)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_exact_times_give_the_exact_model(tmp_path):
    document = calibrate(read_steps(write_csv(tmp_path / "m.csv", batches()), None, "length"))
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
    noisy = write_csv(tmp_path / "m.csv", batches(60), noise=np.random.default_rng(1))
    document = calibrate(read_steps(noisy, None, "length"), ranks=8)
    assert document["typical_error"] == pytest.approx(0.05, rel=0.2)
    # The largest of 8 normal errors of 5 % lies 1.42 deviations above their mean.
    share = 1.42 * document["typical_error"]
    assert document["simulated"]["by_model"] == pytest.approx(share / (1 + share), rel=0.15)
    assert document["simulated"]["model_alone"] < 0.005
    again = calibrate(read_steps(noisy, None, "length"), ranks=8)
    assert again | {"created": ""} == document | {"created": ""}


def test_explained_by_hand():
    steps = read_rows([(0, 0, 3.0, "1:1"), (0, 1, 5.0, "2:1"), (1, 0, 7.0, "3:1"), (1, 1, 9.5, "4:1")])
    found = explain(Polynomial(linear=1, quadratic=0), steps)
    assert (found.scale, found.constant) == (pytest.approx(2.15), pytest.approx(0.75))
    error = np.array([3, 5, 7, 9.5]) - (2.15 * np.array([1, 2, 3, 4]) + 0.75)
    assert found.r2 == pytest.approx(1 - (error @ error) / np.sum((np.array([3, 5, 7, 9.5]) - 6.125) ** 2))
    below = explain(Polynomial(linear=1, quadratic=0), read_rows([(0, 0, 0.0, "1:1"), (1, 0, 9.0, "4:1")]))
    assert (below.scale, below.constant) == (pytest.approx(36 / 17), 0)
    assert measured_straggler(steps) == pytest.approx(((1 - 4 / 5) + (1 - 8.25 / 9.5)) / 2)
    assert measured_straggler(steps[:1]) is None


def read_rows(rows, path=None):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.csv"
        lines = ["step,rank,seconds,lengths", *(",".join(str(value) for value in row) for row in rows)]
        file.write_text("\n".join(lines))
        return read_steps(file, None, "length")


def test_candidates_are_fitted(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["step,rank,seconds,lengths,candidates"]
    for step in range(40):
        lengths, candidates = rng.integers(1, 3000, 8), int(rng.integers(10, 500))
        seconds = SECONDS * float((2000 * lengths + lengths**2).sum() + 50_000 * candidates)
        lines.append(f"{step},0,{seconds!r},{text_of(lengths)},{candidates}")
    (tmp_path / "m.csv").write_text("\n".join(lines))
    model = eval(calibrate(read_steps(tmp_path / "m.csv", None, ""))["cost_model"], {"Polynomial": Polynomial})
    assert model.candidate / model.quadratic == pytest.approx(50_000, rel=5e-3)


def test_warm_up_is_left_out(tmp_path):
    lines = write_csv(tmp_path / "m.csv", batches(12, 2)).read_text().splitlines()
    for line in (1, 2):
        step, rank, seconds, lengths = lines[line].split(",")
        lines[line] = f"{step},{rank},{float(seconds) * 3},{lengths}"
    (tmp_path / "m.csv").write_text("\n".join(lines))
    steps = read_steps(tmp_path / "m.csv", None, "")
    assert calibrate(steps)["r2"] < 0.5
    document = calibrate(steps, skip=1)
    assert (document["r2"], document["rows"]) == (pytest.approx(1), 22)
    assert "R2 is" in (doubt(calibrate(steps)) or "")
    assert doubt(document) is None


def test_a_slow_rank_is_named(tmp_path):
    lines = ["step,rank,seconds,lengths"]
    for (step, rank), lengths in batches().items():
        lines.append(f"{step},{rank},{seconds_of(lengths) * (1.2 if rank == 2 else 1)!r},{text_of(lengths)}")
    (tmp_path / "m.csv").write_text("\n".join(lines))
    document = calibrate(read_steps(tmp_path / "m.csv", None, ""))
    (said,) = advice(document)
    assert "rank 2 (+" in said


def lengths_files(tmp_path, of):
    keys = np.array([(step, rank) for (step, rank), lengths in of.items() for _ in lengths])
    values = np.concatenate(list(of.values()))
    order = np.random.default_rng(3).permutation(len(values))
    step, rank, length = keys[order, 0], keys[order, 1], values[order]
    frame = pl.DataFrame({"step": step, "rank": rank, "length": length})
    frame.write_parquet(tmp_path / "l.parquet")
    frame.write_csv(tmp_path / "l.csv")
    np.save(tmp_path / "l.npy", np.stack([step, rank, length], axis=1))
    named = np.zeros(len(step), [("step", "i8"), ("rank", "i4"), ("length", "i8")])
    named["step"], named["rank"], named["length"] = step, rank, length
    np.save(tmp_path / "named.npy", named)
    frame.with_columns(length=pl.int_ranges(0, "length")).write_parquet(tmp_path / "lists.parquet")
    return ("l.parquet", "l.csv", "l.npy", "named.npy", "lists.parquet")


def test_reports_and_all_forms_of_lengths_agree(tmp_path):
    of = batches(10, 2)
    expected = read_steps(write_csv(tmp_path / "m.csv", of), None, "length")
    times = [
        StepTimes(step=step, rank=rank, seconds=9.0, compute=seconds_of(lengths), data=0.0, exposed={}, straggler=None)
        for (step, rank), lengths in of.items()
    ]
    BubbleReport(world_size=2, steps=tuple(times)).save(tmp_path / "trace.json")
    for name in lengths_files(tmp_path, of):
        found = read_steps(tmp_path / "trace.json", tmp_path / name, "length")
        for one, other in zip(found, expected, strict=True):
            assert (one.step, one.rank, one.seconds) == (other.step, other.rank, other.seconds)
            assert one.lengths.to_dict() == other.lengths.to_dict()


def test_histogram_text():
    assert parse_histogram("256:1; 128:3;128:1").to_dict() == {"lengths": [128, 256], "counts": [4, 1]}
    for wrong in ("", "128", "128:0", "-1:2", "1.5:2", "a:b", "1:2,3:4"):
        with pytest.raises(ValueError, match="length:count;length:count"):
            parse_histogram(wrong)


GOOD = "0,0,1,1:1\n0,1,2,2:1\n1,0,3,3:1\n1,1,4,4:1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,rank,lengths\n", "line 1: no column seconds; there are step, rank, lengths"),
        ("step,rank,seconds\n" + "0,0,1\n", "line 1: no column lengths (length:count;length:count"),
        ("", "line 1: no column step, rank, seconds, lengths"),
        ("step,rank,seconds,lengths\n0,0,1,1:1\n0,1,nan,1:1\n", "line 3: seconds is 'nan'"),
        ("step,rank,seconds,lengths\n0,0,1,1:1\n0,1,-2,1:1\n", "line 3: seconds is '-2'"),
        ("step,rank,seconds,lengths\n0,0,fast,1:1\n", "line 2: seconds is 'fast'"),
        ("step,rank,seconds,lengths\n0,x,1,1:1\n", "line 2: rank is 'x'"),
        ("step,rank,seconds,lengths\n0,0,1,12\n", "line 2: '12' in lengths '12': needed is length:count"),
        ("step,rank,seconds,lengths\n0,0\n", "line 2: seconds is None"),
        ("step,rank,seconds,lengths\n" + GOOD + "0,1,3,2:2\n", "line 6: step 0 of rank 1 a second time; first in"),
        ("step,rank,seconds,lengths\n0,0,1,1:1\n", "1 rows: at least 4"),
        (
            "step,rank,seconds,lengths\n" + "".join(f"{n},0,{n},5:2\n" for n in range(9)),
            "all 9 rows have the same lengths",
        ),
        ("step,rank,seconds,lengths\n" + "".join(f"{n},0,2,{n}:2\n" for n in range(9)), "all 9 rows took 2.0 s"),
        (
            "step,rank,seconds,lengths\n" + "".join(f"{n},0,{9 - n},{n}:2\n" for n in range(9)),
            "do not grow with their lengths",
        ),
        ('{"version": 1, "steps": []', "not JSON"),
        ('{"version": 3, "steps": []}', "not the run of a BubbleMeter"),
    ],
)
def test_what_cannot_be_used_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "m.csv").write_text(text)
    np.save(tmp_path / "l.npy", np.zeros((0, 3), np.int64))
    lengths = tmp_path / "l.npy" if text[:1] == "{" else None
    with pytest.raises(UsageError) as raised:
        calibrate(read_steps(tmp_path / "m.csv", lengths, "length"))
    assert message in str(raised.value)


def test_lengths_that_cannot_be_used_are_refused(tmp_path):
    path = write_csv(tmp_path / "m.csv", batches(3, 2))
    pl.DataFrame({"step": [0], "rank": [0], "x": [1], "t": ["a"], "n": [None], "m": [-3]}).write_parquet(
        tmp_path / "l.parquet"
    )
    np.save(tmp_path / "f.npy", np.zeros((2, 3)))
    for name, column, message in (
        ("l.parquet", "length", "no column length; there are step, rank, x"),
        ("l.parquet", "t", "length is String: integers are needed"),
        ("l.parquet", "m", "m is -3 in row 0"),
        ("l.parquet", "x", "has no lengths of step 0, rank 1"),
        ("f.npy", "x", "are integers"),
        ("none.parquet", "x", "none.parquet"),
    ):
        with pytest.raises(UsageError) as raised:
            read_steps(path, tmp_path / name, column)
        assert message in str(raised.value)
    (tmp_path / "t.json").write_text('{"version": 1, "steps": []}')
    with pytest.raises(UsageError, match="holds no lengths: give --lengths"):
        read_steps(tmp_path / "t.json", None, "length")


def test_command(tmp_path, call):
    path = write_csv(tmp_path / "m.csv", batches())
    shown = call(path)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1].startswith("cost=Polynomial(linear=")
    answer = json.loads(call(path, "--json", "--ranks", 16).stdout)
    assert (answer["simulated"]["ranks"], f"cost={answer['cost_model']}") == (16, shown.stdout.splitlines()[-1])
    for wrong in (("--ranks", 1), ("--skip", -1)):
        assert call(path, *wrong).exit_code == 2
    assert call(tmp_path / "none.csv").exit_code == 2


def test_seconds_that_do_not_follow_from_lengths_are_a_finding(tmp_path, call):
    random = np.random.default_rng(2)
    lines = [f"{step},{rank},{random.uniform(1, 2)!r},{text_of(one)}" for (step, rank), one in batches().items()]
    (tmp_path / "m.csv").write_text("\n".join(["step,rank,seconds,lengths", *lines]) + "\n")
    done = call(tmp_path / "m.csv", "--json")
    assert done.exit_code == 1, done.output
    answer = json.loads(done.stdout)
    assert answer["r2"] < 0.3
    (finding,) = answer["findings"]
    assert finding.startswith(f"R2 is {answer['r2']:.2f}, below 0.9: time does not follow from lengths alone")
