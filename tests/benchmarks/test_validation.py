"""The validation: what is fitted, what is predicted of the paper and of a benchmark, as it comes out."""

import json
import statistics
import sys
from pathlib import Path

import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.model.durations import work
from freescale_tools.model.hardware import bundled, load_hardware
from freescale_tools.model.step import WAYS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from validation.against_benchmark import ASKED, against_benchmark
from validation.against_paper import EXPOSED_LONGEST, against_paper
from validation.comparison import row
from validation.fit import SIGMA, expected_straggler, fit_line, fit_sigma, paper_workload
from validation.held_out import against_held_out
from validation.parts import against_parts
from validation.published import published

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORD = json.loads((RESULTS / "adviser.json").read_text())["extra"]
SHAPE = {"sharding": ["row", "row"], "width": 128, "samples": 32, "ids_per_sample": 112}
ROW_BYTES = 2 * 32 * 112 * 128 * 4 * 3 / 4
ID_BYTES = 2 * 32 * 112 * 8 * 3 / 4
MODES = ("compute", "plain", "sparse dist", "fscomm")
MEASURED = {
    # An example, not the record in benchmarks/results: Mbit/s, ms after the backward, and medians in ms of the modes.
    "400 ms": (200.0, 0, 405.92, 713.70, 701.49, 447.81),
    "270 ms": (200.0, 0, 275.54, 598.58, 604.48, 329.13),
    "400 ms, unshaped": (None, 0, 406.15, 479.30, 482.15, 434.58),
    "270 ms, unshaped": (None, 0, 277.55, 360.81, 348.84, 303.21),
    "400 ms, 20 after the backward": (200.0, 20, 406.28, 733.36, None, 424.58),
}


@pytest.fixture
def compare(tmp_path):
    """The report on results as the benchmark writes them, as far as they are read. `others` changes conditions."""

    def compared(steps=MEASURED, others=()):
        blocks = []
        for name, (rate, after, *times) in steps.items():
            condition = {"name": name, "ranks": 4, "shape": SHAPE, "real": False, "skew": 0.0, "rate_mbit": rate}
            given = [(mode, ms / 1e3) for mode, ms in zip(MODES, times, strict=True) if ms is not None]
            blocks.append(
                {
                    "condition": {**condition, "after_ms": after},
                    "data": {"by occurrence": 0.12, "row bytes": 348_965.0, "gradient bytes": 357_498.0},
                    "answers": {mode: {"0": [{"step_s": s - 1e-3}, {"step_s": s + 1e-3}]} for mode, s in given},
                }
            )
        blocks += [{**blocks[0], "condition": {**blocks[0]["condition"], **other}} for other in others]
        path = tmp_path / "exposed.json"
        path.write_text(json.dumps({"extra": {"blocks": blocks}}))
        return against_benchmark(path)

    return compared


@pytest.fixture(scope="module")
def paper():
    report = against_paper(load_hardware("h100-ib"))
    return {one["what"]: one for one in report["rows"]}, {one["name"]: one["value"] for one in report["fits"]}


def test_what_is_fitted_on_the_paper_is_met(paper):
    rows, fits = paper
    assert rows["straggler share, plain"]["fitted"] == pytest.approx(0.22, abs=1e-5)
    assert rows["exposed communication, plain"]["fitted"] == pytest.approx(111, abs=1e-2)
    assert fits["sigma of the lengths"] == pytest.approx(0.5596, abs=1e-3)
    assert fits["dim"] == pytest.approx(436, abs=2)


def same_lines(recorded, now):
    """Of the record, which the documentation quotes, and as it comes out."""
    assert [words(line) for line in recorded] == [words(line) for line in now]
    for one, other in zip(recorded, now, strict=True):
        numbers = {key: value for key, value in other.items() if isinstance(value, float)}
        assert {key: one[key] for key in numbers} == pytest.approx(numbers, rel=1e-6), one["what"]


def words(line):
    """What is not a measured or predicted number: texts, verdicts, what is missing."""
    return {key: value for key, value in line.items() if not isinstance(value, float)}


def test_the_record_says_what_is_predicted_of_the_paper(paper):
    rows, _ = paper
    same_lines(RECORD["paper"]["rows"], list(rows.values()))


def test_the_fit_finds_the_least_width():
    assert expected_straggler(fit_sigma(0.1)) == pytest.approx(0.1, abs=1e-5)
    assert fit_sigma(0.1) < fit_sigma(0.2) < 0.55
    with pytest.raises(ValueError, match="no paper-like set has a straggler share of 90"):
        fit_sigma(0.9)


def test_the_benchmark_is_predicted_from_its_plain_rows(compare):
    report = compare()
    own, efficiency = (one["value"] for one in report["fits"])
    assert own == pytest.approx(statistics.mean([479.30 - 406.15, 360.81 - 277.55]), abs=0.1)
    wire = 8e-3 * (ID_BYTES + 2 * ROW_BYTES) / 200
    shaped = statistics.mean([713.70 - 405.92, 598.58 - 275.54])
    assert wire / efficiency == pytest.approx(shaped - own, abs=0.1)
    rows = {one["what"].removeprefix("exposed, "): one for one in report["rows"]}
    # Fixed work per step, which is all that is left on fast links, is not in the model.
    assert rows["400 ms, unshaped, fscomm"]["verdict"] == "missed"
    collisions = 8e-3 * (348_965 + 357_498) / 200 / efficiency + 0.12 * own
    assert rows["400 ms, fscomm"]["predicted"] == pytest.approx(collisions, abs=0.01)
    assert rows["400 ms, 20 after the backward, fscomm"]["predicted"] == pytest.approx(collisions - 20, abs=0.01)


def test_only_plain_rows_of_the_usual_model_decide_the_fit(compare):
    changed = {name: (*values[:4], values[4] and values[4] + 100, values[5] + 50) for name, values in MEASURED.items()}
    assert compare(changed)["fits"] == compare()["fits"]
    assert compare(others=[{"name": "real", "real": True}]) == compare()


def test_the_record_says_what_is_predicted_of_the_benchmarks():
    same_lines(RECORD["exposed.py"]["rows"], against_benchmark(RESULTS / "exposed.json")["rows"])
    same_lines(
        RECORD["held_out.py"]["rows"], against_held_out(RESULTS / "held_out.json", RESULTS / "links.json")["rows"]
    )


def test_the_record_says_what_is_predicted_of_steps_in_parts():
    report = against_parts(*(RESULTS / f"{name}.json" for name in ("exposed_parts", "held_out", "links")))
    same_lines(RECORD["exposed.py --parts"]["rows"], report["rows"])
    for name, one in report["best"].items():
        assert one["exposed_ms"] - one["least_ms"] < 5, f"{name}: the advice costs no percent of a step"
    with pytest.raises(UsageError, match=r"is no result of benchmarks/exposed\.py --parts"):
        against_parts(RESULTS / "links.json", RESULTS / "held_out.json", RESULTS / "links.json")


def test_the_record_says_what_is_predicted_of_published_runs():
    report = published()
    same_lines(RECORD["published"]["rows"], report["rows"])
    # Inside one node there is little to win, whatever was published there: 1 to 9 % of a step.
    assert all("fscomm: little." in note for note in report["notes"][:2])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (ASKED, "links of one speed only"),
        (("400 ms, unshaped",), r"no result of benchmarks/exposed\.py: ValueError: no section 400 ms or 270 ms"),
    ],
)
def test_results_that_the_fit_cannot_use_are_refused(compare, names, message):
    with pytest.raises(UsageError, match=message):
        compare({name: MEASURED[name] for name in names})


def test_files_that_are_no_results_are_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"rows": []}')
    for name in ("other.json", "gone.json"):
        with pytest.raises(UsageError, match=r"is no result of benchmarks/exposed\.py"):
            against_benchmark(tmp_path / name)


def test_the_line_is_exact_where_the_points_are_on_one():
    assert fit_line([0, 100, 200], [7, 132, 257]) == pytest.approx((7, 0.8))
    with pytest.raises(ValueError, match="not slower"):
        fit_line([0, 100], [50, 40])


@pytest.mark.parametrize(("predicted", "verdict"), [(86, "within"), (114, "within"), (84, "missed"), (116, "missed")])
def test_verdicts_are_by_the_relative_error(predicted, verdict):
    assert row("x", "ms", 100.0, predicted=predicted, within=0.15)["verdict"] == verdict


def test_id_metadata_takes_the_papers_ten_milliseconds_on_the_paper_like_set():
    load = paper_workload(SIGMA, longest=EXPOSED_LONGEST, dim=1, ranks=64)
    for name in bundled():
        hardware = load_hardware(name)
        assert hardware.id_metadata * load.events / 1e6 == pytest.approx(10, rel=0.005)
        assert work(hardware, load, WAYS[0], ranks=64).id_metadata == pytest.approx(10, rel=0.005)
