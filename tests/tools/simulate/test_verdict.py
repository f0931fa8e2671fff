"""The verdict: each remedy over what is there without it, how sure that is, and what decides."""

import dataclasses

import numpy as np
import pytest
from tools_kit import profile_of

from freescale_tools.model.durations import step
from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import _pays, simulate, verdict
from freescale_tools.model.step import BALANCED, DEDUP, PAGEABLE
from freescale_tools.model.workload import at_ranks, samples_of, uncounted, workload

HARDWARE = load_hardware("h100-ib")
RANKS = 16
UNEVEN = profile_of(np.random.default_rng(0).lognormal(7, 0.7, 20_000).astype(np.int64))
EVEN = profile_of(np.full(20_000, 1000))


def loaded(data=UNEVEN, **changes):
    return dataclasses.replace(at_ranks(workload(data), samples_of(data), [RANKS]), **changes)


def found(data=UNEVEN, hardware=HARDWARE, **changes):
    return verdict(hardware, loaded(data, **changes), ranks=RANKS, collisions=True)


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


def with_duplicates(distinct, hardware=HARDWARE):
    """The verdict of a load whose ranks have `distinct` rows per event, and the milliseconds of a way."""
    load = loaded(distinct=distinct, colliding_distinct=distinct)

    def step_ms(way):
        return step(hardware, load, way, ranks=RANKS)["step_ms"]

    return verdict(hardware, load, ranks=RANKS, collisions=True, uncounted=""), step_ms


def test_index_dedup_comes_first_where_ids_repeat_and_fscomm_is_what_it_adds_to_that():
    answer, step_ms = with_duplicates(0.02)
    gains = {name: one["value"] for name, one in answer["gains"].items()}
    assert answer["duplicates"] == {"share": 0.98, "unknown": None}
    assert (answer["first"], answer["pays"]["dedup"]) == ("dedup", "yes")
    assert gains["dedup"] == pytest.approx(step_ms(BALANCED) / step_ms(DEDUP) - 1)
    assert gains["communication_dedup"] == pytest.approx(step_ms(DEDUP) / step_ms("all + dedup") - 1)
    assert gains["all_dedup"] == pytest.approx(step_ms("sparse dist") / step_ms("all + dedup") - 1)
    assert gains["communication_dedup"] < gains["communication"], "rows and gradients that dedup takes away"
    assert answer["gains"]["dedup"]["low"] < gains["dedup"] < answer["gains"]["dedup"]["high"]
    exposed = step(HARDWARE, loaded(distinct=0.02, colliding_distinct=0.02), DEDUP, ranks=RANKS)["bubbles"][
        "exposed_ms"
    ]
    assert answer["touched"]["exposed"] == pytest.approx(exposed / step_ms(DEDUP))
    assert any("of a balanced step with index dedup is exposed" in one for one in answer["why"])


def test_index_dedup_does_not_come_first_where_no_id_repeats_or_links_are_fast():
    """A rank still sorts its ids, and copies rows to their occurrences."""
    every, _ = with_duplicates(1.0)
    fast, _ = with_duplicates(0.02, dataclasses.replace(HARDWARE, **FAST, id_metadata=0))
    for answer in (every, fast):
        assert answer["first"] is None
        assert answer["gains"]["dedup"]["value"] < 0.005
        assert "with index dedup" not in " ".join(answer["why"])


def test_without_counted_ids_nothing_is_said_of_index_dedup():
    answer = found()
    assert not {"dedup", "communication_dedup", "all_dedup"} & answer["gains"].keys()
    assert answer["first"] is None
    assert answer["duplicates"]["share"] is None


SENT = {"collision_rows": 1.0, "exclusive_rows": 2.0, "collision_gradients": 4.0, "exclusive_gradients": 8.0}


def counted(**changes):
    points = [{"axis": "default", "ranks": RANKS, "by_occurrence": {"mean": 0.3, "p50": 0.3, "p99": 0.3}}]
    usual = {"column": "items", "ranks": RANKS, "batch_size": 128, "dim": 64, "points": points, "bytes": SENT}
    return {**UNEVEN, "collisions": {**usual, **changes}}


@pytest.mark.parametrize(
    ("data", "dim", "why"),
    [
        (counted(), None, None),
        (counted(), {"items": 64}, None),
        (UNEVEN, None, "Name a column of integer ids with --ids"),
        (counted(bytes=dict.fromkeys(SENT, 0.0)), None, "were not counted"),
        (
            counted(batch_size=64),
            None,
            "in batches of 64 samples a rank, which repeat other shares of their ids than 128",
        ),
        (counted(ranks=1, bytes=dict.fromkeys(SENT, 0.0)), None, "one rank exchanges nothing"),
        (counted(), {"items": 64, "kinds": 8}, "in items only, and rows of kinds are exchanged, too"),
    ],
    ids=["counted", "one column", "no column", "no ids", "another batch size", "one rank", "another column"],
)
def test_duplicates_are_those_of_the_batches_and_columns_that_were_counted(data, dim, why):
    load = workload(data, batch_size=128)
    said = uncounted(data, load, dim=dim)
    assert (why in said) if why else said == ""
    if why is None:
        assert (load.distinct, load.collision(RANKS)) == (0.25, 0.3)


def test_copies_of_the_input_are_priced_by_their_bytes():
    answer = found()
    load = loaded()
    size = 8 * 3 * load.events
    assert answer["copies"] == pytest.approx({"bytes": size, "pageable_ms": size / 3e6, "pinned_ms": size / 64e6})
    without, pinned = (step(HARDWARE, load, way, ranks=RANKS)["step_ms"] for way in (PAGEABLE, BALANCED))
    assert answer["gains"]["pinned"]["value"] == pytest.approx(without / pinned - 1)
    assert without - pinned == pytest.approx(size / 3e6)
    slow = found(hardware=dataclasses.replace(HARDWARE, pageable=0.1))
    assert (answer["pays"]["pinned"], slow["pays"]["pinned"]) == ("little", "yes")


def test_a_batch_has_all_list_columns_that_were_profiled():
    columns = dict.fromkeys("abcde", next(iter(EVEN["sequences"].values())))
    assert workload(EVEN).fields == 3
    assert workload({**EVEN, "sequences": columns}).fields == pytest.approx(5)
