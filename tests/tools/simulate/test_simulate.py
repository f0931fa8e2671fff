"""simulate: what it takes from a profile, and how its answer depends on it."""

import copy
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.batches import Samples, Setting, simulate_setting
from freescale_tools.simulate.hardware.parameters import load_hardware
from freescale_tools.simulate.schedule.durations import work
from freescale_tools.simulate.schedule.step import WAYS
from freescale_tools.simulate.simulation import gains, predict, simulate
from freescale_tools.simulate.workload import collision_rates, cost_model
from fsdata.balance.cost import Polynomial, Power

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from validation.fit import expected_straggler, paper_like, paper_workload

H100 = load_hardware("h100-ib")
HISTOGRAM = LengthHistogram.of(np.concatenate(list(paper_like(0.55, steps=2))))
PAPER_LIKE = paper_workload(0.55, longest=21_000, dim=256, ranks=64)
NAMES = [way.name for way in WAYS]


def profile(**parts):
    document = {
        "version": 1, "kind": "profile", "sequences": {"uih": {"histogram": HISTOGRAM.to_dict()}},
        "stragglers": None, "recommended": None, "collisions": None,
    }  # fmt: skip
    return document | parts


def parameter(simulation, name):
    return next(one for one in simulation["hardware"]["parameters"] if one["name"] == name)


@pytest.fixture(scope="module")
def simulated():
    return simulate(profile(), H100, dim=256)


def test_the_document_has_every_way_at_every_number_of_ranks(simulated):
    ranks = [8, 16, 32, 64, 128, 256, 512, 1024]
    assert [(point["ranks"], point["way"]) for point in simulated["points"]] == [(r, n) for r in ranks for n in NAMES]
    assert simulated["ways"] == NAMES
    for point in simulated["points"]:
        assert point["qps"] == pytest.approx(1e3 * 128 * point["ranks"] / point["step_ms"])
        assert all(piece["ms"] > 0 for piece in point["timeline"])
    assert all(one["source"] for one in simulated["hardware"]["parameters"])
    assert parameter(simulated, "collision")["source"].startswith("paper")
    assert parameter(simulated, "dim") == {"name": "dim", "value": 256, "unit": "floats per event", "source": "given"}


def test_floats_and_ids_of_several_columns_add_up_per_event_of_the_history():
    """Of 10 events a history, 5 of another sequence and 20 candidates: what is cut is cut for both sequences."""
    columns = {"uih": [10, 10], "query": [4, 6], "candidate": [20, 20]}
    of = {name: {"histogram": LengthHistogram.of(np.array(each)).to_dict()} for name, each in columns.items()}
    document = profile(candidates={"candidate": of.pop("candidate")}, sequences=of)
    dims = {"uih": 100, "query": 40, "candidate": 8}
    found = simulate(document, H100, dim=dims, ranks=(8,), max_length=10)
    assert parameter(found, "dim")["value"] == pytest.approx(100 + 40 / 2 + 8 * 2)
    assert parameter(found, "ids")["value"] == pytest.approx(1 + 1 / 2 + 2)
    assert simulate(document | {"dims": dims}, H100, ranks=(8,), max_length=10)["points"] == found["points"]
    cut = simulate(document, H100, dim=dims, ranks=(8,), max_length=5)
    assert parameter(cut, "dim")["value"] == pytest.approx(100 + 40 * 4.5 / 5 + 8 * 4)
    with pytest.raises(UsageError, match="no lengths of other, but of uih, query, candidate"):
        simulate(document, H100, dim={"other": 8}, ranks=(8,))


def test_more_ids_per_event_take_longer_to_exchange():
    one, three = (work(H100, dataclasses.replace(PAPER_LIKE, ids=ids), WAYS[0], ranks=64) for ids in (1.0, 3.0))
    assert three.id_metadata == pytest.approx(3 * one.id_metadata)
    assert three.ids > one.ids


@pytest.mark.parametrize("name", ["h100-ib", "h200-nvl"])
@pytest.mark.parametrize("dim", [64, 256])
def test_the_gain_grows_with_the_cluster(name, dim):
    # The same widths at every size, so that only the number of ranks differs.
    found = []
    for ranks in (8, 16, 32, 64, 128, 256, 512, 1024):
        load = dataclasses.replace(
            PAPER_LIKE,
            dim=dim,
            stragglers={(ranks, "none"): expected_straggler(0.55, ranks=ranks), (ranks, "fbs+swap"): 0.0},
        )
        found += gains(predict(load_hardware(name), load, ranks=[ranks], way_names=NAMES))
    values = [one["qps_gain"] for one in found]
    assert values == sorted(values)
    assert values[-1] > 1.5 * values[0] > 0


def test_every_remedy_takes_what_it_is_for(simulated):
    at = {point["way"]: point for point in simulated["points"] if point["ranks"] == 64}
    idle = {name: point["bubbles"] for name, point in at.items()}
    assert idle["balanced"]["straggler_ms"] < 0.01 * idle["plain"]["straggler_ms"]
    # The busiest rank has fewer bytes to send, too.
    assert 0.8 * idle["plain"]["exposed_ms"] < idle["balanced"]["exposed_ms"] < idle["plain"]["exposed_ms"]
    assert idle["prioritized"]["exposed_ms"] < 0.2 * idle["plain"]["exposed_ms"]
    assert idle["sm-free"]["contention_ms"] < 0.2 * idle["prioritized"]["contention_ms"]
    hidden = idle["plain"]["exposed_ms"] - idle["sparse dist"]["exposed_ms"]
    # ID metadata and, far less, the ids themselves.
    assert hidden == pytest.approx(17.8 * 128 * HISTOGRAM.mean / 1e6, rel=0.05)
    assert idle["balanced + sparse dist"]["straggler_ms"] < 0.01 * idle["sparse dist"]["straggler_ms"]
    assert idle["balanced + sparse dist"]["exposed_ms"] < idle["sparse dist"]["exposed_ms"]
    assert at["all"]["qps"] == max(point["qps"] for point in at.values())


def test_parts_of_a_step_take_what_their_bytes_and_products_say():
    load = dataclasses.replace(PAPER_LIKE, stragglers={(64, "none"): 0.2, (64, "fbs+swap"): 0.0}, collisions={64: 0.1})
    direct = dataclasses.replace(H100, exchange_latency=0, peer_latency=0)
    plain, every = (work(direct, load, way, ranks=64) for way in (WAYS[0], WAYS[-1]))
    mean = 1e3 * load.flops / (989e12 * 0.4)
    assert plain.forward + plain.backward == pytest.approx(mean / 0.8)
    assert plain.backward == pytest.approx(2 * plain.forward)
    assert every.forward + every.backward == pytest.approx(mean)
    rows = load.events * 256 * 4 * 56 / 64 / (25e6 * 0.7)
    for name, share in {"whole": 1, "collision": 0.1, "exclusive": 0.9}.items():
        moves = getattr(every, name)
        assert (moves.rows, moves.gradients) == pytest.approx((share * rows, share * rows))
        assert moves.apply == pytest.approx(1.5 * moves.lookup)
    assert plain.ids == pytest.approx(rows * 8 / (256 * 4))
    assert (plain.redistribute, plain.data) == pytest.approx((0, load.events / 26e3))
    assert every.redistribute == pytest.approx(load.events * 24 * 63 / 64 / 1e6)


def test_exposed_time_is_linear_in_the_collisions():
    rates = (0.1, 0.2, 0.3, 0.4)
    found = [
        predict(H100, dataclasses.replace(PAPER_LIKE, collisions={64: rate}), ranks=[64], way_names=["prioritized"])
        for rate in rates
    ]
    exposed = [points[0]["bubbles"]["exposed_ms"] for points in found]
    assert np.diff(exposed) == pytest.approx([exposed[1] - exposed[0]] * 3, rel=1e-6)
    assert exposed[1] - exposed[0] > 1


def test_infinite_bandwidth_and_no_latency_leave_nothing_exposed():
    fast = dict.fromkeys(("nvlink", "pcie", "network", "memory", "host_network", "loader"), 1e15)
    none = dict.fromkeys(("exchange_latency", "peer_latency", "id_metadata", "kernel_floor", "own_cost"), 0)
    ideal = dataclasses.replace(H100, **fast, **none)
    for point in simulate(profile(), ideal, ranks=[64])["points"]:
        assert point["bubbles"]["exposed_ms"] == pytest.approx(0, abs=1e-6)
        assert point["step_ms"] == pytest.approx(point["compute_ms"] + point["bubbles"]["straggler_ms"])


def test_one_rank_neither_waits_nor_talks():
    for point in simulate(profile(), H100, ranks=[1])["points"]:
        assert sum(point["bubbles"].values()) == pytest.approx(0, abs=0.5)


def test_drawn_stragglers_are_the_expected_ones():
    setting = Setting(max_length=HISTOGRAM.longest, ranks=64, batch_size=128)
    shares = simulate_setting(Samples(histogram=HISTOGRAM), setting, methods=("fbs+swap",))["straggler"]
    assert shares["none"] == pytest.approx(expected_straggler(0.55), abs=0.015)
    assert shares["fbs+swap"] < 1e-3


def test_the_expected_straggler_is_the_mean_of_many_draws():
    lengths = (step.reshape(4, -1)[:, :3] for step in paper_like(0.8, ranks=4, steps=8000))
    load = np.array([(step * step + 2000 * step).sum(1) for step in lengths])
    drawn = (1 - load.mean(1) / load.max(1)).mean()
    assert expected_straggler(0.8, ranks=4, batch_size=3) == pytest.approx(drawn, abs=0.006)


def test_points_of_the_grid_are_taken_where_they_fit():
    straggler = {"none": 0.5, "fbs+swap": 0.1}
    point = {
        "axis": "ranks", "ranks": 8, "batch_size": 32, "max_length": 4096, "cost": "Power(alpha=1)",
        "planned_by": "Power(alpha=1)", "straggler": straggler, "skew": dict.fromkeys(straggler, 1.0),
    }  # fmt: skip
    default = {"ranks": 64, "batch_size": 32, "max_length": 4096, "cost": "Power(alpha=1)"}
    given = profile(stragglers={"default": default, "points": [point]})
    found = simulate(given, H100, ranks=[8, 16], way_names=["plain", "balanced"])
    share = [
        one["bubbles"]["straggler_ms"] / (one["compute_ms"] + one["bubbles"]["straggler_ms"]) for one in found["points"]
    ]
    assert share[:2] == pytest.approx([0.5, 0.1], abs=0.004)
    assert share[2] < 0.4
    assert found["points"][0]["qps"] == pytest.approx(1e3 * 8 * 32 / found["points"][0]["step_ms"])
    assert parameter(found, "batch_size")["source"] == "profile: its grid"
    other = simulate(given, H100, ranks=[8], way_names=["plain"], batch_size=16)["points"][0]
    assert other["bubbles"]["straggler_ms"] < other["compute_ms"]


def test_the_recommendation_and_the_collisions_of_the_profile_are_taken():
    rate = {"mean": 0.2, "p50": 0.2, "p99": 0.2}
    points = [{"axis": "default", "ranks": 64, "by_occurrence": rate}]
    points.append({"axis": "ranks", "ranks": 256, "by_occurrence": {**rate, "mean": 0.4}})
    points.append({"axis": "order", "ranks": 256, "by_occurrence": {**rate, "mean": 0.9}})
    advice = {"max_length": 2048, "cost_model": "Polynomial(linear=2000, quadratic=1)"}
    given = profile(recommended=advice, collisions={"dim": 64, "points": points})
    found = simulate(given, H100, ranks=[64])
    values = {name: parameter(found, name)["value"] for name in ("max_length", "dim", "collision")}
    assert values == {"max_length": 2048, "dim": 64, "collision": 0.4}
    assert parameter(found, "events")["value"] == pytest.approx(128 * HISTOGRAM.clipped(2048).mean)
    assert collision_rates(given["collisions"]) == {64: 0.2, 256: 0.4}


def test_collisions_between_known_ranks_are_interpolated_on_a_logarithmic_axis():
    load = dataclasses.replace(PAPER_LIKE, collisions={64: 0.2, 256: 0.4})
    assert [load.collision(ranks) for ranks in (8, 64, 128, 256, 1024)] == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4])


def test_cost_models_are_read_from_their_text():
    assert cost_model("Polynomial(linear=3, quadratic=0, candidate=7)") == Polynomial(
        linear=3, quadratic=0, candidate=7
    )
    assert cost_model("Power(alpha=1.5)") == Power(alpha=1.5)
    for text in ("open('x')", "Polynomial(linear=open)", "Polynomial(lines=3)", "Power(alpha=", "tokens"):
        with pytest.raises(UsageError, match="cost model"):
            cost_model(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way_names": ["plain", "fast"]}, "no way fast: there are plain, sparse dist"),
        ({"ranks": []}, r"ranks = \[\]"),
        ({"ranks": [0]}, r"ranks = \[0\]"),
        ({"dim": 0}, "dim = 0: 1 or more"),
        ({"batch_size": 0}, "batch size = 0"),
        ({"sequence": "clicks"}, "no sequence 'clicks': it has uih"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        simulate(profile(), H100, **options)


@pytest.mark.parametrize("histogram", [None, {"lengths": [0], "counts": [5]}, {"lengths": [], "counts": []}])
def test_profiles_without_lengths_are_refused(histogram):
    given = copy.deepcopy(profile())
    given["sequences"]["uih"]["histogram"] = histogram
    with pytest.raises(UsageError, match=r"no lengths of 'uih'.*without --quick"):
        simulate(given, H100)


@pytest.mark.parametrize(("batch_size", "carried"), [(128, 16), (256, 8), (1024, None)])
def test_gains_are_over_the_pipelined_loop_and_tell_which_ranks_the_rows_carry(batch_size, carried):
    lengths = np.random.default_rng(0).lognormal(5, 1, 16_000).astype(np.int64)
    data = profile(sequences={"uih": {"histogram": LengthHistogram.of(lengths).to_dict()}})
    found = simulate(data, H100, ranks=(8, 16, 32), batch_size=batch_size)
    assert found["carried"] == {"ranks": carried, "rows": 16_000, "batch_size": batch_size}
    qps = {(point["ranks"], point["way"]): point["qps"] for point in found["points"]}
    assert found["over"] == "sparse dist"
    for one in found["gain"]:
        pipelined, balanced, every = (qps[one["ranks"], way] for way in ("sparse dist", found["over_balanced"], "all"))
        assert one["qps_gain"] == every / pipelined - 1
        assert (one["balance"], one["communication"]) == (balanced / pipelined - 1, every / balanced - 1)
    assert [one["ranks"] for one in found["gain"]] == [8, 16, 32]
