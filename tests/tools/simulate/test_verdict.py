"""The verdict: each remedy over what is there without it, how sure that is, and what decides."""

import dataclasses

import numpy as np
import pytest
from tools_kit import profile_of

from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import _pays, simulate, verdict
from freescale_tools.model.workload import at_ranks, samples_of, workload

HARDWARE = load_hardware("h100-ib")
RANKS = 16
UNEVEN = profile_of(np.random.default_rng(0).lognormal(7, 0.7, 20_000).astype(np.int64))
EVEN = profile_of(np.full(20_000, 1000))


def found(data=UNEVEN, hardware=HARDWARE, **changes):
    load = dataclasses.replace(at_ranks(workload(data), samples_of(data), [RANKS]), **changes)
    return verdict(hardware, load, ranks=RANKS, collisions=True)


def test_gains_are_of_one_rung_over_the_one_below():
    simulated = simulate(UNEVEN, HARDWARE, samples_of(UNEVEN), ranks=[RANKS])
    gains = {name: one["value"] for name, one in simulated["verdict"]["gains"].items()}
    (whole,) = simulated["gain"]
    assert gains["balance"] == pytest.approx(whole["balance"])
    assert gains["all"] == pytest.approx(whole["qps_gain"])
    assert (1 + gains["prioritized"]) * (1 + gains["sm_free"]) - 1 == pytest.approx(whole["communication"])
    assert (1 + gains["balance"]) * (1 + whole["communication"]) - 1 == pytest.approx(gains["all"])
    for one in simulated["verdict"]["gains"].values():
        assert one["low"] <= one["value"] <= one["high"]


def widths(answer):
    return {name: one["high"] - one["low"] for name, one in answer["gains"].items()}


def test_what_is_known_better_has_a_narrower_interval():
    usual = found()
    assert found() == usual
    known = widths(found(hardware=dataclasses.replace(HARDWARE, sources=dict.fromkeys(HARDWARE.sources, "measured"))))
    assert all(known[name] < width for name, width in widths(usual).items())


def test_links_that_other_ranks_have_shown_are_as_good_as_assumed():
    load = workload(EVEN)
    certain = {"sources": dict.fromkeys(("dim", "flops", *load.sources), "measured: here")}

    def width(ranks):
        links = dict.fromkeys(("nvlink", "exchange_latency"), f"calibration: run.json, all-to-alls of {ranks} ranks")
        known = dataclasses.replace(HARDWARE, nvlink=5.0, gpus_per_nvlink=64, gpus_per_host=64)
        known = dataclasses.replace(known, sources=dict.fromkeys(HARDWARE.sources, "measured: here") | links)
        return widths(found(EVEN, known, **certain))["prioritized"]

    assert width(RANKS) < width(10 * RANKS)
    assert width(RANKS) < width(RANKS // 2)


def test_the_name_of_a_calibration_says_nothing_of_its_numbers():
    load = workload(EVEN)

    def width(file):
        return widths(
            found(EVEN, sources=dict.fromkeys(("dim", "flops", *load.sources), f"calibration: {file}, 9 rows"))
        )

    assert width("run.json") == width("paper.json") == width("assumed.json")


FAST = {**dict.fromkeys(("nvlink", "pcie", "network"), 1e6), "exchange_latency": 0.1, "peer_latency": 0}
DEAR = {"own_cost": 20.0, "sources": {**HARDWARE.sources, "own_cost": "measured: here"}}


@pytest.mark.parametrize(
    ("data", "hardware", "load", "said"),
    [
        (EVEN, {}, {}, "Ranks are even already"),
        (UNEVEN, {}, {"time_lost": {(RANKS, "none"): 0.6, (RANKS, "balanced"): 0.3}}, "Stragglers cost 30.0%"),
        (UNEVEN, FAST | {"id_metadata": 0}, {}, "Links are fast for these steps"),
        (UNEVEN, {}, {"collisions": {RANKS: 0.97}}, "97% of the events"),
        (UNEVEN, DEAR, {}, "Steps are short: prioritized communication itself takes 20 ms"),
    ],
    ids=["even ranks", "one sample outweighs a rank", "fast links", "all rows collide", "a fixed cost"],
)
def test_what_decides_is_named_where_it_decides(data, hardware, load, said):
    answer = found(data, dataclasses.replace(HARDWARE, **hardware), **load)
    (sentence,) = (one for one in answer["why"] if said in one)
    assert "(measured)" in sentence or "Steps" not in said
    assert "--max-length" in sentence or "Stragglers" not in said
    assert not any(said in one for one in found()["why"])


def test_what_is_there_already_or_cannot_win_does_not_pay():
    assert found(EVEN)["pays"]["balance"] == "no"
    assert found()["pays"]["balance"] == "yes"
    fast = dataclasses.replace(HARDWARE, network=100.0, pcie=100.0, id_metadata=0, own_cost=0.0)
    assert found(EVEN, fast)["pays"]["prioritized"] == "little"
    assert found(hardware=dataclasses.replace(HARDWARE, **FAST, id_metadata=0))["pays"]["prioritized"] == "no"
    few, many = (found(collisions={RANKS: rate})["gains"]["prioritized"]["value"] for rate in (0.1, 0.97))
    assert many < few


@pytest.mark.parametrize(
    ("gain", "pays"),
    [
        ((0.2, 0.1, 0.3), "yes"), ((0.2, -0.1, 0.3), "unsure"), ((0.03, 0.02, 0.04), "little"),
        ((0.09, 0.02, 0.2), "little"), ((0.0, -0.1, 0.02), "little"), ((-0.03, -0.1, 0.02), "no"),
        ((0.0, 0.0, 0.004), "no"), ((-0.03, -0.1, 0.2), "unsure"),
    ],
)  # fmt: skip
def test_all_remedies_have_one_scale(gain, pays):
    assert _pays(*gain) == pays


def test_what_fscomm_can_overlap_is_less_than_what_is_exposed_and_next_to_nothing_where_all_collides():
    few, many = (found(collisions={RANKS: rate})["touched"] for rate in (0.05, 1.0))
    assert few["exposed"] == many["exposed"] > 0.1
    assert 0.5 * few["exposed"] < few["overlapped"] < few["exposed"]
    assert many["overlapped"] < 0.2 * few["overlapped"]
    (said,) = (one for one in found(collisions={RANKS: 1.0})["why"] if "exposed communication" in one)
    assert f"fscomm can overlap {many['overlapped']:.1%} of the step" in said
