"""What `make matrix` makes of the output of pytest, and what it keeps."""

import json
import tomllib

import matrix
import pytest
from matrix import ROOT, ROWS, bounds, gathered, keep, one_line

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" file="tests/a.py" name="one"><properties>
<property name="ids served" value="0.95"/><property name="summary" value="95.0%"/></properties></testcase>
<testcase classname="tests.a" file="tests/a.py" name="two"><skipped message="no"/></testcase>
<testcase classname="tests.a" file="tests/a.py" name="three[1]"><failure message="x">    def three():
E       assert 1 == 2
E        +  where 1 = f()</failure></testcase>
<testcase classname="tests.b" name="four"><error message="x">E   worlds.WorldError:
E   Traceback (most recent call last):
E     File "/home/me/a.py", line 3
E   OSError: /home/me/b.so is gone
tests/b.py:3</error></testcase>
</testsuite></testsuites>"""


def test_what_pytest_reports():
    assert gathered(REPORT) == {
        "passed": 1,
        "failed": {"tests/a.py::three[1]": "assert 1 == 2", "tests.b::four": "OSError: b.so is gone"},
        "ids": [0.95],
    }


def test_output_that_pytest_did_not_mark():
    traceback = 'Traceback (most recent call last):\n  File "/a/b.py", line 1\nImportError: no torch\n'
    assert one_line(f"a warning\n{traceback}") == "ImportError: no torch"
    assert one_line("") == "no message"


def test_a_run_of_some_rows_keeps_what_is_known_of_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, "RECORD", tmp_path / "matrix.json")
    for row, problem in ((ROWS[1], "old"), (ROWS[0], "first"), (ROWS[1], "new")):
        keep(row, {"problem": problem})
    rows = json.loads(matrix.RECORD.read_text())["rows"]
    assert [(row["row"], row["problem"]) for row in rows] == [(ROWS[0].name, "first"), (ROWS[1].name, "new")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_project_allows_what_it_is_tried_on(row):
    """And an oldest row has each dependency at its bound."""
    (least,) = (each.partition(">=")[2] for each in PROJECT["dependencies"] if each.startswith("torch>="))
    assert tuple(map(int, row.torch.split("."))) >= tuple(map(int, least.split(".")))
    kept = bounds(row, PROJECT)
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["tools"]]
    assert len(kept) == (len(declared) if row.oldest else 1)
    assert all("==" in each for each in kept)


def test_some_row_has_the_oldest_torch():
    (oldest,) = (row for row in ROWS if row.oldest)
    assert f"torch>={oldest.torch}".startswith(PROJECT["dependencies"][0])
