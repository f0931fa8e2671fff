"""The verdict: each remedy over what is there without it, how sure that is, and what decides."""

import dataclasses

import numpy as np
import pytest

from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.hardware.parameters import load_hardware
from freescale_tools.simulate.simulation import simulate
from freescale_tools.simulate.verdict import verdict
from freescale_tools.simulate.workload import choose, workload

HARDWARE = load_hardware("h100-ib")
RANKS = 16


def profile(lengths, **more):
    histogram = LengthHistogram.of(np.asarray(lengths)).to_dict()
    parts = {"stragglers": None, "recommended": None, "collisions": None}
    return {"version": 1, "kind": "profile", "sequences": {"uih": {"histogram": histogram}}, **parts, **more}


UNEVEN = profile(np.random.default_rng(0).lognormal(7, 0.7, 20_000).astype(np.int64))
EVEN = profile(np.full(20_000, 1000))


def found(data=UNEVEN, hardware=HARDWARE, *, collisions=True, **changes):
    choice = choose(data, dim=changes.pop("dim", None))
    load = dataclasses.replace(workload(data, choice, ranks=[RANKS]), **changes)
    return verdict(hardware, load, choice, ranks=RANKS, collisions=collisions)


def test_gains_are_of_one_rung_over_the_one_below():
    simulated = simulate(UNEVEN, HARDWARE, ranks=[RANKS])
    gains = {name: one["value"] for name, one in simulated["verdict"]["gains"].items()}
    (whole,) = simulated["gain"]
    assert gains["balance"] == pytest.approx(whole["balance"])
    assert gains["all"] == pytest.approx(whole["qps_gain"])
    assert (1 + gains["prioritized"]) * (1 + gains["sm_free"]) - 1 == pytest.approx(whole["communication"])
    assert (1 + gains["balance"]) * (1 + whole["communication"]) - 1 == pytest.approx(gains["all"])
    for one in simulated["verdict"]["gains"].values():
        assert one["low"] <= one["value"] <= one["high"]


def test_the_same_question_has_the_same_answer():
    assert found() == found()


def test_what_is_known_better_has_a_narrower_interval():
    known = dataclasses.replace(HARDWARE, sources=dict.fromkeys(HARDWARE.sources, "measured: here"))
    for name, one in found(hardware=known)["gains"].items():
        usual = found()["gains"][name]
        assert one["high"] - one["low"] < usual["high"] - usual["low"], name


def test_even_ranks_need_no_balancing():
    answer = found(EVEN)
    assert answer["pays"]["balance"] == "no"
    assert any("Ranks are even already" in said for said in answer["why"])


def test_one_sample_that_outweighs_a_rank_is_named():
    answer = found(stragglers={(RANKS, "none"): 0.6, (RANKS, "fbs+swap"): 0.3})
    assert any("Balancing leaves 30.0%" in said and "--max-length" in said for said in answer["why"])


def test_links_that_are_fast_need_no_fscomm():
    fast = dict.fromkeys(("nvlink", "pcie", "network"), 1e6)
    answer = found(hardware=dataclasses.replace(HARDWARE, **fast, exchange_latency=0.1, peer_latency=0, id_metadata=0))
    assert answer["pays"]["prioritized"] == "no"
    assert any("Skip fscomm" in said for said in answer["why"])


def test_rows_that_all_collide_leave_nothing_to_send_early():
    answer = found_with_rate(0.97)
    assert any("97% of the events" in said for said in answer["why"])
    assert answer["gains"]["prioritized"]["value"] < found_with_rate(0.1)["gains"]["prioritized"]["value"]


def found_with_rate(rate):
    choice = choose(UNEVEN)
    load = dataclasses.replace(workload(UNEVEN, choice, ranks=[RANKS]), collisions={RANKS: rate})
    return verdict(HARDWARE, load, choice, ranks=RANKS, collisions=True)


def test_the_verdict_is_for_ranks_that_the_rows_are_enough_for():
    assert simulate(UNEVEN, HARDWARE, ranks=[8, 16, 512])["verdict"]["ranks"] == 16
    assert simulate(UNEVEN, HARDWARE, ranks=[512, 1024])["verdict"]["ranks"] == 512


def test_events_that_are_cut_off_are_the_price_and_are_named():
    cut = simulate(UNEVEN, HARDWARE, ranks=[RANKS], max_length=500)["verdict"]["why"]
    assert any(said.startswith("Histories are cut to 500 events: 6") for said in cut), cut
    whole = simulate(UNEVEN, HARDWARE, ranks=[RANKS])["verdict"]["why"]
    assert not any("are cut to" in said for said in whole)


def test_a_fixed_cost_that_decides_is_named():
    dear = dataclasses.replace(HARDWARE, own_cost=20.0, sources={**HARDWARE.sources, "own_cost": "measured: here"})
    (said,) = (one for one in found(hardware=dear)["why"] if "Steps are short" in one)
    assert "takes 20 ms" in said
    assert "(measured)" in said
    assert not any("Steps are short" in one for one in found(hardware=dataclasses.replace(dear, own_cost=0.0))["why"])


def test_links_that_other_ranks_have_shown_are_as_good_as_assumed():
    def width(ranks):
        links = dict.fromkeys(("nvlink", "exchange_latency"), f"calibration: run.json, all-to-alls of {ranks} ranks")
        known = dataclasses.replace(HARDWARE, nvlink=5.0, gpus_per_nvlink=64, gpus_per_host=64)
        known = dataclasses.replace(known, sources=dict.fromkeys(HARDWARE.sources, "measured: here") | links)
        gain = found(EVEN, hardware=known)["gains"]["prioritized"]
        return gain["high"] - gain["low"]

    assert width(RANKS) < width(10 * RANKS)
    assert width(RANKS) < width(RANKS // 2)


def test_a_model_that_errs_more_has_wider_intervals(monkeypatch):
    usual = found()["gains"]["prioritized"]
    monkeypatch.setattr("freescale_tools.simulate.verdict.MODEL", {False: 1.6, True: 1.6})
    wide = found()["gains"]["prioritized"]
    assert wide["high"] - wide["low"] > usual["high"] - usual["low"]
    assert wide["value"] == usual["value"]
