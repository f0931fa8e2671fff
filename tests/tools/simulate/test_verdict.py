"""The verdict: each remedy over what is there without it, how sure that is, and what decides."""

import dataclasses

import numpy as np
import pytest

from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import simulate, verdict
from freescale_tools.model.workload import at_ranks, workload
from freescale_tools.scan.histogram import LengthHistogram

HARDWARE = load_hardware("h100-ib")
RANKS = 16


def profile(lengths):
    histogram = LengthHistogram.of(np.asarray(lengths)).to_dict()
    parts = {"stragglers": None, "recommended": None, "collisions": None}
    return {"version": 1, "kind": "profile", "sequences": {"uih": {"histogram": histogram}}, **parts}


UNEVEN = profile(np.random.default_rng(0).lognormal(7, 0.7, 20_000).astype(np.int64))
EVEN = profile(np.full(20_000, 1000))


def found(data=UNEVEN, hardware=HARDWARE, **changes):
    load = dataclasses.replace(at_ranks(workload(data), data, [RANKS]), **changes)
    return verdict(hardware, load, ranks=RANKS, collisions=True)


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
        (UNEVEN, {}, {"stragglers": {(RANKS, "none"): 0.6, (RANKS, "fbs+swap"): 0.3}}, "Balancing leaves 30.0%"),
        (UNEVEN, FAST | {"id_metadata": 0}, {}, "Skip fscomm"),
        (UNEVEN, {}, {"collisions": {RANKS: 0.97}}, "97% of the events"),
        (UNEVEN, DEAR, {}, "Steps are short: prioritized communication itself takes 20 ms"),
    ],
    ids=["even ranks", "one sample outweighs a rank", "fast links", "all rows collide", "a fixed cost"],
)
def test_what_decides_is_named_where_it_decides(data, hardware, load, said):
    answer = found(data, dataclasses.replace(HARDWARE, **hardware), **load)
    (sentence,) = (one for one in answer["why"] if said in one)
    assert "(measured)" in sentence or "Steps" not in said
    assert "--max-length" in sentence or "Balancing" not in said
    assert not any(said in one for one in found()["why"])


def test_what_is_there_already_or_cannot_win_does_not_pay():
    assert found(EVEN)["pays"]["balance"] == "no"
    assert found()["pays"]["balance"] == "yes"
    fast = dataclasses.replace(HARDWARE, network=100.0, pcie=100.0, id_metadata=0, own_cost=0.0)
    answer = found(EVEN, fast)
    assert answer["pays"]["prioritized"] == "little"
    assert any(said.startswith("Little to win here: ") and "Skip fscomm" in said for said in answer["why"])
    assert found(hardware=dataclasses.replace(HARDWARE, **FAST, id_metadata=0))["pays"]["prioritized"] == "no"
    few, many = (found(collisions={RANKS: rate})["gains"]["prioritized"]["value"] for rate in (0.1, 0.97))
    assert many < few


def test_the_verdict_is_for_ranks_that_the_rows_are_enough_for():
    """20,000 rows make 20 global batches of 8 times 64 samples, and 5 of 32 times 64."""
    for ranks, batch_size, chosen in (([8, 16, 512], 128, 16), ([512, 1024], 128, 512), ([8, 32], 64, 8)):
        assert simulate(UNEVEN, HARDWARE, ranks=ranks, batch_size=batch_size)["verdict"]["ranks"] == chosen


def test_events_that_are_cut_off_are_the_price_and_are_named():
    cut = simulate(UNEVEN, HARDWARE, ranks=[RANKS], max_length=500)["verdict"]["why"]
    assert any(said.startswith("Histories are cut to 500 events: 6") for said in cut), cut
    whole = simulate(UNEVEN, HARDWARE, ranks=[RANKS])["verdict"]["why"]
    assert not any("are cut to" in said for said in whole)
