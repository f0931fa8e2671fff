"""`freescale diff`: what changed between two profiles or runs, and which changes are too much."""

import json

import numpy as np
import pytest
from test_calibrate_run import run

from freescale_tools.console.errors import UsageError
from freescale_tools.profile.diff import differences, too_much_changed
from freescale_tools.scan.histogram import LengthHistogram

COMMAND = "diff"


def profile(lengths, *, straggler=0.2, collisions=0.12, name="item"):
    rate = {"axis": "default", "by_occurrence": {"mean": collisions}}
    return {
        "version": 1, "kind": "profile",
        "sequences": {name: {"histogram": LengthHistogram.of(np.asarray(lengths)).to_dict()}},
        "recommended": {
            "straggler_none": straggler, "straggler": 0.001, "events_cut": 0.0, "max_length": 4000,
        },
        "collisions": {"points": [{"axis": "order", "by_occurrence": {"mean": 0.5}}, rate]},
    }  # fmt: skip


def changes(before, after):
    return {one.name: one.change for one in differences(before, after)}


def test_shares_change_by_points_and_amounts_by_their_ratio():
    found = changes(profile([10, 10, 20]), profile([10, 10, 20, 40], straggler=0.25, collisions=0.10))
    assert found["straggler"] == pytest.approx(0.05)
    assert found["collisions"] == pytest.approx(-0.02)
    assert found["item rows"] == pytest.approx(1 / 3)
    assert found["item events"] == pytest.approx(1)
    assert found["item longest"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0),
        ([1, 1], [2, 2], 1),
        ([1, 2, 3, 4], [1, 2, 3, 9], 0.25),
        ([1, 2], [1, 1, 2, 2], 0),  # the same shares
        ([0, 0, 5, 5], [0, 5, 5, 5], 0.25),
    ],
)
def test_lengths_drift_by_the_largest_distance_of_their_distributions(first, second, distance):
    assert changes(profile(first), profile(second))["item lengths"] == pytest.approx(distance)
    assert changes(profile(second), profile(first))["item lengths"] == pytest.approx(distance)
    assert set(changes(profile(first), profile(first)).values()) == {0}


def test_what_one_of_them_lacks_has_no_change():
    bare = profile([1, 2]) | {"recommended": None, "collisions": None}
    found = differences(bare, profile([1, 2]))
    assert {one.name: (one.before, one.change) for one in found}["straggler"] == (None, None)
    (said,) = too_much_changed(["straggler>1%"], found)
    assert "one of the two lacks it" in said
    other = differences(profile([1, 2]), profile([1, 2], name="ads"))
    assert {"item mean", "ads mean"} <= {one.name for one in other}
    assert not any(one.name.endswith("lengths") for one in other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("straggler", "a name, > or < and a change are needed"),
        ("straggler>", "a name, > or < and a change are needed"),
        ("straggler>2.2.2", "'2.2.2' is no number"),
        ("stragler>2%", "did you mean 'straggler'?; there are item rows"),
    ],
)
def test_conditions_that_say_nothing_are_refused(text, message):
    known = differences(profile([1]), profile([1]))
    with pytest.raises(UsageError) as raised:
        too_much_changed([text], known)
    assert message in str(raised.value)


def test_the_command_fails_on_what_is_too_much(tmp_path, call):
    for name, document in (("a", profile([10, 20])), ("b", profile([10, 30], straggler=0.25))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.json").write_text(json.dumps(document))
    done = call(
        tmp_path / "a", tmp_path / "b" / "profile.json", "--fail-if", "straggler>6%", "--fail-if", "item mean<0%"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert "+5.0 points" in done.stdout
    limits = ("--fail-if", "straggler > 2%", "--fail-if", "item lengths>0.4")
    done = call(tmp_path / "a", tmp_path / "b", *limits, "--json")
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["findings"] == [
        "straggler changed by +5.0 points: --fail-if 'straggler > 2%'",
        "item lengths changed by 0.500: --fail-if 'item lengths>0.4'",
    ]
    assert answer["kind"] == "diff"


def test_the_command_fails_where_it_is_not_known_what_changed(tmp_path, call):
    bare = profile([1]) | {"recommended": None}
    even = profile([1], straggler=0.0)
    even["recommended"]["events_cut"] = even["recommended"]["max_length"] = 0
    for name, document in (("bare", bare), ("even", even), ("some", profile([1]))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.json").write_text(json.dumps(document))
    limits = ("--fail-if", "straggler>50%", "--json")
    for first, second in (("bare", "some"), ("some", "bare")):
        done = call(tmp_path / first, tmp_path / second, *limits)
        assert done.exit_code == 1
        assert json.loads(done.stdout)["findings"] == [
            "straggler: how it changed is not known, one of the two lacks it: --fail-if 'straggler>50%'"
        ]
    done = call(tmp_path / "even", tmp_path / "some", "--fail-if", "max length>900%", "--json")
    assert "it was 0 before" in json.loads(done.stdout)["findings"][0]


def test_documents_that_are_not_whole_are_refused(tmp_path, call):
    for text in ('{"kind": "calibrate", "version": 2}', '{"kind": "profile", "version": 1}'):
        (tmp_path / "a.json").write_text(text)
        done = call(tmp_path / "a.json", tmp_path / "a.json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "whole" in done.stderr


def test_two_runs_are_compared(tmp_path, call):
    first, second = run(tmp_path / "a.json"), run(tmp_path / "b.json", sizes=(1e5, 1e6, 2e7), seed=3)
    done = call(first, second, "--json")
    assert done.exit_code == 0, done.output
    found = {one["name"]: one for one in json.loads(done.stdout)["quantities"]}
    assert found["step beside its samples"]["change"] == pytest.approx(0, abs=0.02)
    assert found["look-up of a row"]["change"] == pytest.approx(0, abs=1e-6)
    assert found["exposed ids"]["before"] == pytest.approx(125)


def test_what_cannot_be_compared_is_refused(tmp_path, call):
    (tmp_path / "profile.json").write_text(json.dumps(profile([1, 2])))
    path = run(tmp_path / "run.json")
    for arguments, message in (
        ((tmp_path, path), "compare two of one kind"),
        ((tmp_path, tmp_path / "none.json"), "none.json: No such file"),
    ):
        done = call(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr
