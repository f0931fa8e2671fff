"""The validation: what is fitted, what is predicted of the paper and of a benchmark, as it comes out."""

import json
import sys
from pathlib import Path

import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.model.durations import work
from freescale_tools.model.hardware import bundled, load_hardware
from freescale_tools.model.step import WAYS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from validation.against_paper import EXPOSED_LONGEST, against_paper
from validation.comparison import row
from validation.fit import SIGMA, expected_straggler, fit_sigma, paper_workload
from validation.held_out import against_held_out
from validation.parts import against_parts
from validation.published import published

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORD = json.loads((RESULTS / "adviser.json").read_text())["extra"]


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


def test_the_record_says_what_is_predicted_of_held_out_steps():
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


def test_files_that_are_no_results_are_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"rows": []}')
    for name in ("other.json", "gone.json"):
        with pytest.raises(UsageError, match=r"is no result of benchmarks/held_out\.py"):
            against_held_out(tmp_path / name, RESULTS / "links.json")


def test_the_record_says_what_is_predicted_of_published_runs():
    report = published()
    same_lines(RECORD["published"]["rows"], report["rows"])
    # Inside one node there is little to win, whatever was published there: 1 to 9 % of a step.
    assert all("fscomm: little." in note for note in report["notes"][:2])


@pytest.mark.parametrize(("predicted", "verdict"), [(86, "within"), (114, "within"), (84, "missed"), (116, "missed")])
def test_verdicts_are_by_the_relative_error(predicted, verdict):
    assert row("x", "ms", 100.0, predicted=predicted, within=0.15)["verdict"] == verdict


def test_id_metadata_takes_the_papers_ten_milliseconds_on_the_paper_like_set():
    load = paper_workload(SIGMA, longest=EXPOSED_LONGEST, dim=1, ranks=64)
    for name in bundled():
        hardware = load_hardware(name)
        assert hardware.id_metadata * load.events / 1e6 == pytest.approx(10, rel=0.005)
        assert work(hardware, load, WAYS[0], ranks=64).id_metadata == pytest.approx(10, rel=0.005)
