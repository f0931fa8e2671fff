"""The validation: what is predicted of the records of benchmarks and of published runs, as it comes out."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from common.table import read_record
from validation.comparison import row
from validation.held_out import against_held_out
from validation.parts import against_parts
from validation.published import published

RECORD = read_record("adviser")["extra"]
PARTS, HELD_OUT, LINKS = map(read_record, ("exposed_parts", "held_out", "links"))


def same_lines(recorded, now):
    """Of the record, which the documentation quotes, and as it comes out."""
    assert [words(line) for line in recorded] == [words(line) for line in now]
    for one, other in zip(recorded, now, strict=True):
        numbers = {key: value for key, value in other.items() if isinstance(value, float)}
        assert {key: one[key] for key in numbers} == pytest.approx(numbers, rel=1e-6), one["what"]


def words(line):
    """What is not a measured or predicted number: texts, verdicts, what is missing."""
    return {key: value for key, value in line.items() if not isinstance(value, float)}


def test_the_record_says_what_is_predicted_of_held_out_steps():
    same_lines(RECORD["held_out.py"]["rows"], against_held_out(HELD_OUT, LINKS)["rows"])


def test_the_record_says_what_is_predicted_of_steps_in_parts():
    report = against_parts(PARTS, HELD_OUT, LINKS)
    same_lines(RECORD["exposed.py --parts"]["rows"], report["rows"])
    for name, one in report["best"].items():
        assert one["exposed_ms"] - one["least_ms"] < 5, f"{name}: the advice costs no percent of a step"


def test_the_record_says_what_is_predicted_of_published_runs():
    report = published()
    same_lines(RECORD["published"]["rows"], report["rows"])
    # Inside one node there is little to win, whatever was published there: 1 to 9 % of a step.
    assert all("fscomm: little." in note for note in report["notes"][:2])


@pytest.mark.parametrize(("predicted", "verdict"), [(86, "within"), (114, "within"), (84, "missed"), (116, "missed")])
def test_verdicts_are_by_the_relative_error(predicted, verdict):
    assert row("x", "ms", 100.0, predicted, within=0.15)["verdict"] == verdict
