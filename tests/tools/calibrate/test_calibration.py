"""What a run has shown stands in the place of what profile and hardware would give, and only that."""

import dataclasses
import json

import numpy as np
import pytest
from test_calibrate_run import BANDWIDTH, CONSTANT, LATENCY, LOOKUP, SECONDS, UPDATE, run
from tools_kit import profile_of, ran, refused

from freescale_tools.calibrate.calibration import Calibration, load_calibration
from freescale_tools.calibrate.fits import calibrate
from freescale_tools.calibrate.measured_steps import read_steps
from freescale_tools.console.errors import UsageError
from freescale_tools.model.durations import exchange
from freescale_tools.model.hardware import calibrated, load_hardware, parameters
from freescale_tools.model.simulation import simulate
from freescale_tools.model.workload import samples_of
from freescale_tools.profile.measure import Settings
from fsdata.balance.cost import Polynomial

LENGTHS = np.random.default_rng(0).lognormal(7, 0.6, 4000).astype(np.int64)
PROFILE = profile_of(LENGTHS)


def made(**changes):
    given = {
        "source": "calibration: run.json, 120 rows", "ranks": 8, "cost": Polynomial(), "seconds_per_cost": SECONDS,
        "error": 0.0, "constant_s": CONSTANT, "forward": 0.25, "lookup_s": LOOKUP, "update_s": UPDATE,
        "dim": 96.0, "latency_s": LATENCY, "bytes_per_s": BANDWIDTH,
    }  # fmt: skip
    return Calibration(**(given | changes))


def simulated(**options):
    return simulate(PROFILE, load_hardware("h100-ib"), samples_of(PROFILE), **{"ranks": [8], **options})


def parameter(document, name):
    (found,) = [one for one in document["hardware"]["parameters"] if one["name"] == name]
    return found


def test_a_run_and_what_calibrate_wrote_of_it_are_the_same(tmp_path):
    path = run(tmp_path / "run.json", steps=12)
    more = {
        "fscomm": run(tmp_path / "f.json", steps=12, more=0.004),
        "balanced": run(tmp_path / "b.json", steps=12, wait=0.1),
    }
    document = calibrate(read_steps(path), **{name: read_steps(at) for name, at in more.items()})
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    first, second = load_calibration(path), load_calibration(tmp_path / "calibration.json")
    own = {"fscomm_s": pytest.approx(0.004), "balancing_s": 0}  # it was measured 0.15 s below nothing
    assert dataclasses.replace(first, source=second.source, **own) == second
    assert first.ranks == 4
    assert (first.lookup_s, first.update_s) == (pytest.approx(LOOKUP), pytest.approx(UPDATE))
    assert (first.latency_s, first.bytes_per_s) == (pytest.approx(LATENCY), pytest.approx(BANDWIDTH))
    assert (first.dim, first.forward) == (None, None), "the run sent no embeddings, and has no times of passes"
    told = simulated(ranks=(4,), calibration=second)
    assert parameter(told, "own_cost")["value"] == pytest.approx(4)
    assert "run with fscomm" in parameter(told, "own_cost")["source"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no calibration"),
        ("nonsense", "no column step, rank, seconds"),
        ('{"kind": "calibrate", "version": 1}', "has version 1, this program reads 2"),
        ('{"kind": "profile"}', "not the run of a BubbleMeter"),
        ('{"kind": "calibrate", "version": 2, "r2": 0.95, "run": {"all_to_all": null}}', "is no whole calibration"),
        ('{"kind": "calibrate", "version": 2, "r2": 0.95, "run": {}}', "is no whole calibration"),
        ('{"kind": "calibrate", "version": 2}', "is no whole calibration"),
        ('{"kind": "calibrate", "version": 2, "r2": 0.85}', "R2 is 0.85, below 0.9"),
    ],
)
def test_files_that_are_no_calibration_are_refused(tmp_path, text, message):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_calibration(path)


@pytest.mark.parametrize(("ranks", "link"), [(8, "nvlink"), (64, "network")])
def test_an_exchange_of_the_run_takes_as_long_as_it_took(ranks, link):
    usual = load_hardware("h100-ib")
    found = calibrated(usual, made(ranks=ranks))
    size = 1e9
    assert exchange(found, size, ranks) == pytest.approx(1e3 * (LATENCY + size / BANDWIDTH))
    changed = {one["name"] for one, other in zip(parameters(found), parameters(usual), strict=True) if one != other}
    assert changed == {link, "exchange_latency"}
    assert calibrated(usual, made(bytes_per_s=None, latency_s=None)) == usual
    assert calibrated(usual, made(ranks=1)) == usual


def test_steps_take_what_the_run_took():
    found = simulated(batch_size=128, calibration=made())
    cost = 128 * float(Polynomial()({"sequence": LENGTHS}).mean())
    events = 128 * LENGTHS.mean()
    expected = {
        "compute_ms": 1e3 * SECONDS * cost,
        "fixed_ms": 1e3 * CONSTANT,
        "forward": 0.25,
        "lookup_ms": 1e3 * LOOKUP * events,
        "apply_ms": 1e3 * UPDATE * events,
        "dim": 96,
    }
    for name, value in expected.items():
        one = parameter(found, name)
        assert (one["value"], one["source"][:12]) == (pytest.approx(value), "calibration:"), name
    (plain,) = [point for point in found["points"] if point["way"] == "plain"]
    optimizer = plain["compute_ms"] - 1e3 * (SECONDS * cost + CONSTANT)
    assert optimizer == pytest.approx(28 * 50e6 / 3350e6, rel=1e-6)  # Adam of the assumed dense parameters
    bubbles = sum(plain["bubbles"].values())
    assert plain["step_ms"] == pytest.approx(plain["compute_ms"] + plain["data_wait_ms"] + bubbles)


def test_given_numbers_win_and_what_the_run_lacks_stays_as_it_was():
    hardware = load_hardware("h100-ib")
    none = made(forward=None, lookup_s=None, update_s=None, dim=None, latency_s=None, bytes_per_s=None)
    found = simulated(calibration=none)
    assert (parameter(found, "dim")["value"], parameter(found, "dim")["source"]) == (128, "assumed")
    assert parameter(found, "lookup")["source"].startswith("assumed")
    assert parameter(found, "nvlink")["value"] == hardware.nvlink
    assert parameter(simulated(dim=32, calibration=made()), "dim")["value"] == 32


def test_the_command_takes_a_run(tmp_path):
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    path = run(tmp_path / "run.json", steps=12)
    command = ("profile", "--from", tmp_path / "profile.json", "--ranks", 4, "--out", tmp_path / "out", "--calibration")
    ran(*command, path)
    written = json.loads((tmp_path / "out" / "profile.json").read_text())["simulation"]
    assert parameter(written, "cost")["source"] == "calibration: run.json, 48 rows"
    assert "no calibration" in refused(*command, tmp_path / "none.json")


def test_a_calibration_speaks_for_as_many_ranks_as_it_had():
    four = made(ranks=4)
    assert Settings(calibration=four).size(100_000) == (4, 128)
    assert Settings(ranks=2, calibration=four).size(100_000) == (2, 128)
    with pytest.raises(UsageError, match=r"--ranks 8: the calibration is of 4 ranks. --extrapolate"):
        Settings(ranks=8, calibration=four).size(100_000)
    assert Settings(ranks=8, calibration=four, extrapolate=True).size(100_000) == (8, 128)
