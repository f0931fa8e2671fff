"""simulate: what it takes from a profile, how its answer depends on it, and the command."""

import dataclasses
import json

import numpy as np
import pytest
from tools_kit import answered, profile_of, ran, refused

from freescale_tools.console.errors import UsageError
from freescale_tools.model.batches import Samples, Setting, deal_out, simulate_setting
from freescale_tools.model.durations import work
from freescale_tools.model.hardware import bundled, load_hardware
from freescale_tools.model.simulation import simulate
from freescale_tools.model.step import WAYS
from freescale_tools.model.workload import (
    DENSE_PARAMETERS,
    PAPER_COLLISION,
    Workload,
    cost_model,
    flops,
    samples_of,
    workload,
)
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial, Power

H100 = load_hardware("h100-ib")


def paper_like(steps):
    """Lengths of so many steps of 64 ranks with 128 samples each, whose straggler share is the paper's, 22 %."""
    drawn = [np.random.default_rng((64, step)).standard_normal(64 * 128) for step in range(steps)]
    lengths = np.clip(np.rint(4000 * np.exp(0.55 * np.concatenate(drawn))), 1, 21_000)
    return LengthHistogram.from_lengths(lengths.astype(np.int64))


HISTOGRAM = paper_like(2)
PAPER_LIKE = Workload(
    batch_size=128,
    events=128 * HISTOGRAM.mean,
    flops=128 * flops(HISTOGRAM.lengths, HISTOGRAM.counts),
    dim=256,
    dense_parameters=DENSE_PARAMETERS,
    time_lost={(64, "none"): 0.22, (64, "balanced"): 0.0},
    collisions={64: PAPER_COLLISION},
)
NAMES = [way.name for way in WAYS]


def profile(histogram=HISTOGRAM, **parts):
    return profile_of(histogram, name="uih", **parts)


def run_simulation(document, hardware=H100, **options):
    return simulate(document, hardware, samples_of(document), **{"ranks": [8], **options})


def parameter(simulation, name):
    return next(one for one in simulation["hardware"]["parameters"] if one["name"] == name)


@pytest.fixture(scope="module")
def simulated():
    return run_simulation(profile(), ranks=(8, 64), dim=256)


def test_the_document_has_every_way_at_every_number_of_ranks(simulated):
    assert [(point["ranks"], point["way"]) for point in simulated["points"]] == [(r, n) for r in (8, 64) for n in NAMES]
    assert simulated["ways"] == NAMES
    for point in simulated["points"]:
        assert point["qps"] == pytest.approx(1e3 * 128 * point["ranks"] / point["step_ms"])
        assert all(piece["ms"] > 0 for piece in point["timeline"])
    assert all(one["source"] for one in simulated["hardware"]["parameters"])
    assert parameter(simulated, "collision")["source"].startswith("paper")
    assert parameter(simulated, "dim") == {"name": "dim", "value": 256, "unit": "floats per event", "source": "given"}
    qps = {(point["ranks"], point["way"]): point["qps"] for point in simulated["points"]}
    assert (simulated["over"], [one["ranks"] for one in simulated["gain"]]) == ("sparse dist", [8, 64])
    for one in simulated["gain"]:
        ways = ("sparse dist", simulated["over_balanced"], "all")
        pipelined, balanced, every = (qps[one["ranks"], way] for way in ways)
        assert one["qps_gain"] == every / pipelined - 1
        assert (one["balance"], one["communication"]) == (balanced / pipelined - 1, every / balanced - 1)


def colliding(rate):
    points = [{"axis": "default", "ranks": 64, "by_occurrence": {"mean": rate, "p50": rate, "p99": rate}}]
    return profile(collisions={"dim": 256, "points": points})


def test_steps_in_parts_stand_beside_the_others_if_they_are_asked_for(simulated):
    found = run_simulation(profile(), ranks=(8, 64), dim=256, parts=(4, 2))
    at = {point["ranks"]: point for point in found["points"] if point["way"] == "all"}
    assert [one["ranks"] for one in found["parts"]] == [8, 64]
    for one in found["parts"]:
        assert [step["parts"] for step in one["steps"]] == [1, 2, 4]
        exposed = at[one["ranks"]]["bubbles"]["exposed_ms"]
        step_ms = at[one["ranks"]]["step_ms"]
        assert one["steps"][0] == {"parts": 1, "step_ms": step_ms, "exposed_ms": exposed}
    assert parameter(found, "part_cost")["source"].startswith("assumed")
    assert "parts" not in simulated
    assert not any(one["name"] == "part_cost" for one in simulated["hardware"]["parameters"])
    assert found["points"] == simulated["points"]


def test_the_fewest_parts_within_a_percent_are_best_and_the_verdict_says_so():
    def answer(rate, parts=(1, 2, 4)):
        found = run_simulation(colliding(rate), ranks=(64,), parts=parts)
        ((one,), said) = found["parts"], [text for text in found["verdict"]["why"] if "each further part" in text]
        return one, said

    one, (said,) = answer(0.05)
    assert (one["best"], said[:19]) == (1, "One part is enough:")
    one, (said,) = answer(0.97)
    steps = {step["parts"]: step["step_ms"] for step in one["steps"]}
    assert one["best"] == min(parts for parts in steps if steps[parts] <= 1.01 * min(steps.values())) > 1
    shown = [f"{step['exposed_ms']:.3g}" for step in one["steps"] if step["parts"] in (1, one["best"])]
    assert said.startswith(
        f"{one['best']} parts: {shown[1]} ms exposed instead of {shown[0]}; each further part costs 2 ms"
    )


def test_one_rank_neither_waits_nor_talks():
    for point in run_simulation(profile(), ranks=[1])["points"]:
        # Rows are looked up; with index dedup they are also copied to their occurrences.
        assert sum(point["bubbles"].values()) == pytest.approx(0, abs=1.0 if "dedup" in point["way"] else 0.5)


def test_the_papers_shares_and_what_a_wrong_model_costs():
    """Figure 8: 22 % falls to 2.4 % at 64 ranks of 128 samples, histories of up to 21,000 events."""
    samples, setting = Samples(histogram=HISTOGRAM), Setting(max_length=21_000, ranks=64, batch_size=128)
    point = simulate_setting(samples, setting, methods=("fbs", "fbs+swap"))
    assert point["straggler"]["none"] == pytest.approx(0.22, abs=0.015)
    assert point["straggler"]["fbs"] == pytest.approx(0.024, abs=0.004)
    assert point["straggler"]["fbs+swap"] < 0.0005
    assert point["sparsity"] == pytest.approx(0.71, abs=0.02)
    wrong = dataclasses.replace(setting, cost=Power(alpha=1))
    found = deal_out(samples, wrong, methods=("fbs+swap", "repair"), costs=(Polynomial(),))
    assert found.waits("fbs+swap").straggler()[0] == pytest.approx(0.021, abs=0.006)
    assert found.waits("repair").straggler()[0] > 0.05
    assert found.lower_bound.straggler()[0] < 1e-6


def test_id_metadata_takes_the_papers_ten_milliseconds():
    load = dataclasses.replace(PAPER_LIKE, events=128 * paper_like(50).clipped(8192).mean)
    for name in bundled():
        hardware = load_hardware(name)
        assert hardware.id_metadata * load.events / 1e6 == pytest.approx(10, rel=0.005)
        assert work(hardware, load, WAYS[0], ranks=64).id_metadata == pytest.approx(10, rel=0.005)


def test_floats_and_ids_of_several_columns_add_up_per_event_of_the_history():
    """Of 10 events a history, 5 of another sequence and 20 candidates: what is cut is cut for both sequences."""
    columns = {"uih": [10, 10], "query": [4, 6], "candidate": [20, 20]}
    of = {name: {"histogram": LengthHistogram.from_lengths(np.array(each)).to_dict()} for name, each in columns.items()}
    document = profile(candidates={"candidate": of.pop("candidate")}, sequences=of)
    dims = {"uih": 100, "query": 40, "candidate": 8}
    found = run_simulation(document, dim=dims, ranks=(8,), max_length=10)
    assert parameter(found, "dim")["value"] == pytest.approx(100 + 40 / 2 + 8 * 2)
    assert parameter(found, "ids")["value"] == pytest.approx(1 + 1 / 2 + 2)
    assert run_simulation(document | {"dims": dims}, ranks=(8,), max_length=10)["points"] == found["points"]
    cut = run_simulation(document, dim=dims, ranks=(8,), max_length=5)
    assert parameter(cut, "dim")["value"] == pytest.approx(100 + 40 * 4.5 / 5 + 8 * 4)
    with pytest.raises(UsageError, match="no lengths of other, but of uih, query, candidate"):
        run_simulation(document, dim={"other": 8}, ranks=(8,))


def test_the_recommendation_and_the_collisions_of_the_profile_are_taken():
    rate = {"mean": 0.2, "p50": 0.2, "p99": 0.2}
    points = [{"axis": "default", "ranks": 64, "by_occurrence": rate}]
    points.append({"axis": "ranks", "ranks": 256, "by_occurrence": {**rate, "mean": 0.4}})
    points.append({"axis": "order", "ranks": 256, "by_occurrence": {**rate, "mean": 0.9}})
    advice = {"max_length": 2048, "cost_model": "Polynomial(linear=2000, quadratic=1)"}
    given = profile(recommended=advice, collisions={"dim": 64, "points": points})
    found = run_simulation(given, ranks=[64])
    values = {name: parameter(found, name)["value"] for name in ("max_length", "dim", "collision")}
    assert values == {"max_length": 2048, "dim": 64, "collision": 0.4}
    assert parameter(found, "events")["value"] == pytest.approx(128 * HISTOGRAM.clipped(2048).mean)
    assert workload(given).collisions == {64: 0.2, 256: 0.4}
    # Between known ranks by logarithm, beyond them the nearest.
    load = dataclasses.replace(PAPER_LIKE, collisions={64: 0.2, 256: 0.4})
    assert [load.collision(ranks) for ranks in (8, 64, 128, 256, 1024)] == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4])


def test_cost_models_are_read_from_their_text():
    for model in (Polynomial(linear=3, quadratic=0, candidate=7), Power(alpha=1.5)):
        assert cost_model(repr(model)) == model
    for text in ("open('x')", "Polynomial(linear=open)", "Polynomial(lines=3)", "Power(alpha=", "tokens"):
        with pytest.raises(UsageError, match="cost model"):
            cost_model(text)


def without(**histogram):
    return {"uih": {"histogram": histogram or None}}


@pytest.mark.parametrize(
    ("document", "options", "message"),
    [
        ({}, {"ranks": [0]}, r"ranks = \[0\]"),
        ({}, {"dim": 0}, "dim = 0: 1 or more"),
        ({}, {"batch_size": 0}, "batch size = 0"),
        ({}, {"parts": [0, 2]}, r"--parts 0,2: numbers of 1 to 64 are needed.*give fewer parts"),
        ({}, {"parts": [2, 16], "batch_size": 8}, r"--parts 2,16: numbers of 1 to 8 .* or a larger --batch-size"),
        ({}, {"sequence": "clicks"}, "no sequence 'clicks': it has uih"),
        ({"sequences": without()}, {}, r"no lengths of 'uih'.*without --quick"),
        ({"sequences": without(lengths=[0], counts=[5])}, {}, "no lengths of 'uih'"),
        ({"sequences": without(lengths=[], counts=[])}, {}, "no lengths of 'uih'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(document, options, message):
    with pytest.raises(UsageError, match=message):
        run_simulation(profile() | document, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """20,000 rows are enough for 5 global batches of 16 times 128 samples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # else names are folded
    lengths = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64)
    (tmp_path / "profile.json").write_text(json.dumps(profile_of(lengths, row_groups=[1000] * 20)))
    return tmp_path


def test_an_earlier_profile_is_predicted_from_anew_without_its_files(folder):
    shown = ran("profile", "--from", folder, "--full", "--out", "there").stdout
    for text in ("What pays on 16 ranks", "What FreeScale would bring over TrainPipelineSparseDist", "Trade-off table"):
        assert text in shown
    assert sorted(path.name for path in (folder / "there").iterdir()) == ["profile.html", "profile.json"]
    assert "computed in parts" not in shown
    assert "FreeScaleDataLoader(" not in shown, "this profile knows no files to read"
    parts = ("--parts", "1,2", "--parts", "4", "--out", "parts", "--full")
    shown = ran("profile", "--from", folder, "--ranks", "8", *parts).stdout
    for text in ("Steps that are computed in parts", "exposed,", "best", "each further part costs"):
        assert text in shown
    options = ("--ranks", "8", "--hardware", "h200-nvl", "--dim", "64")
    document = answered("profile", "--from", folder / "profile.json", *options)
    assert document.pop("findings") == []
    assert document == json.loads((folder / "freescale-report" / "profile.json").read_text())
    assert document["simulation"]["hardware"]["name"] == "h200-nvl"
    assert {point["ranks"] for point in document["simulation"]["points"]} == {2, 4, 8}
    again = answered("profile", "--from", folder / "there", *options)
    assert again["simulation"] == document["simulation"]


def test_simulate_is_its_old_name(folder):
    done = ran("simulate", "--profile", folder, "--ranks", "4,8", "--json")
    assert "simulate is now `freescale profile --from" in done.stderr
    assert json.loads(done.stdout)["simulation"]["verdict"]["ranks"] == 8


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"version": 1}, (), "has version 1, this program reads 2"),
        ({"kind": "collisions"}, (), "is no profile"),
        ({"mode": "quick"}, (), "is of a quick profile, which has no lengths"),
        ({"in_order": {"units": [[20_000]], "lengths": {"sequence": "AAAA"}}}, (), "lengths of sequence are damaged"),
        ("{", (), "profile.json"),
        ("[]", (), "profile.json"),
        (None, (), "no profile at"),
        ({}, ("--hardware", "b300"), "no hardware 'b300': give b200-ib, h100-ib, h200-nvl, mi350x-roce"),
        ({}, ("--ranks", "0"), "at least 1"),
        ({}, ("--ranks", "64"), "--ranks 64: the 20,000 rows make less than 5 global batches of 64 x 128 samples"),
        ({}, ("--ranks", "64"), "they are enough for --ranks 16. --extrapolate"),
        ({}, ("--parts", "two"), "--parts two: numbers joined by commas"),
        ({}, ("--parts", "0"), "--parts must be at least 1"),
        ({}, ("--sequence", "uih", "--quick"), "reads no files: leave out --sequence, --quick"),
    ],
)
def test_unusable_profiles_and_arguments_end_with_status_2_and_write_nothing(folder, change, arguments, message):
    file = folder / "profile.json"
    if change is None:
        file.unlink()
    else:
        file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    assert message in refused("profile", "--from", folder, *arguments, "--out", "there")
    assert not (folder / "there").exists()


def test_ranks_are_the_most_that_the_rows_are_enough_for(folder):
    for arguments, expected in (
        ((), (16, 128, 20_000)),
        (("--batch-size", "512"), (4, 512, 20_000)),
        (("--ranks", "512", "--extrapolate"), (512, 128, 0)),  # drawn: there is no whole step
    ):
        found = answered("profile", "--from", folder, *arguments)
        balance = found["balance"]
        assert found["simulation"]["verdict"]["ranks"] == balance["ranks"] == found["tradeoff"]["ranks"]
        assert (balance["ranks"], balance["batch_size"], balance["rows_in_order"]) == expected
    assert "enough for --batch-size 2000" in refused("profile", "--from", folder, "--batch-size", "4096")
