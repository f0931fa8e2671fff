"""`make gpu` with stand-in parts: if one fails or writes nonsense, the others run all the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: a file there is named like a module of Python's

import gpu  # noqa: E402
from common.run_parts import RESULTS, Part, Step, run, summary  # noqa: E402

WRITES = (
    "import json, subprocess, sys; "
    "write = lambda name, **found: open(f'{sys.argv[1]}/{name}', 'w').write(json.dumps(found)); "
)
CHECK = "dict(name='{}', status='{}', told='{}')"


def part(name: str, *codes: str) -> Part:
    steps = [Step(command=(sys.executable, "-IS", "-c", WRITES + code, RESULTS), limit_s=PATIENCE_S) for code in codes]
    return Part(name=name, asked=f"what {name} does", steps=tuple(steps))


def environment(**found: object) -> Part:
    return part("environment", f"write('environment.json', **{found!r})")


PASSES = part(
    "passes", f"write('a.json', checks=[{CHECK.format('one', 'passed', 'seen')}], rows=[1, 2], notes=['twice'])"
)
FAILS = part(
    "fails",
    "print('what it said'); sys.exit(1)",
    f"write('b.json', checks=[{CHECK.format('two', 'failed', 'broken')}]); sys.exit(1)",
    f"write('c.json', checks=[{CHECK.format('three', 'skipped', 'no luck')}])",
)
NONSENSE = part(
    "nonsense",
    "open(sys.argv[1] + '/e.json', 'w').write('{\"checks\": [')",
    "pass",
)


def test_all_parts_run_and_what_failed_is_told(tmp_path, capsys):
    parts = [environment(measured_with={"torch": "9"}), FAILS, NONSENSE, PASSES]
    assert gpu.run_all(parts, tmp_path) == 1
    documents = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert documents.keys() == {each.name for each in parts}
    for name, document in documents.items():
        assert document["measured_with"] == {"torch": "9"}
        assert document["date"].startswith("20")
        assert document["asked"] == f"what {name} does"
    assert documents["passes"]["failures"] == []
    assert documents["passes"]["reached"] == "1 passed, a: 2 rows"
    first, second = documents["fails"]["failures"]
    assert first.endswith("it ended with 1")
    assert second == "two: broken"  # that this step ended with 1 says nothing more
    assert "what it said" in documents["fails"]["steps"][0]["output"]
    problems = [step["problem"] for step in documents["nonsense"]["steps"]]
    assert [problem.split(":")[0] for problem in problems] == [
        "e.json is no result",
        "it ended well, but wrote no result",
    ]
    shown = capsys.readouterr().out
    for line in ("passes: one: seen", "passes: twice", "fails: 1 skipped: no luck", "fails FAILED: two: broken"):
        assert line in shown.splitlines()


def test_without_a_failure_it_ends_well_and_without_a_gpu_with_one_line(tmp_path, capsys):
    assert gpu.run_all([environment(measured_with={}), PASSES], tmp_path) == 0
    folder = tmp_path / "results"
    assert gpu.run_all([environment(without_gpu="the torch here has no CUDA"), FAILS], folder) == 0
    assert capsys.readouterr().out.endswith("the torch here has no CUDA\n")
    assert not folder.exists()


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
def test_the_command_ends_well_here(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "kernels", "--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "no GPU to measure on" in done.stdout
    assert not (tmp_path / "results").exists()


def test_tests_are_told_one_by_one(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "@pytest.mark.skipif(True, reason='not today')\ndef test_skipped(): pass\n"
        "def test_bad(): assert 1 == 2, 'so it is'\n"
        "@pytest.fixture\ndef broken(): yield; raise OSError('late')\n"
        "def test_broken_at_its_end(broken): pass\n"
    )
    command = (sys.executable, "-m", "pytest", "-p", "pytest_outcomes", "--outcomes", RESULTS, str(tmp_path))
    paths = {"PYTHONPATH": str(ROOT / "benchmarks/parts"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    step = Step(command=(*command, f"--rootdir={tmp_path}"), limit_s=PATIENCE_S, environment=paths)
    record = run(Part(name="tests", asked="", steps=(step,)))
    assert record["reached"] == "1 passed, 2 failed, 1 skipped"
    bad, broken = record["failures"]
    assert bad.startswith("test_some.py::test_bad: call: AssertionError: so it is")
    assert broken == "test_some.py::test_broken_at_its_end: teardown: OSError: late"
    assert "1 skipped: not today" in summary([record])


def test_parts_are_chosen_by_name_and_the_environment_comes_first():
    assert [each.name for each in gpu.chosen(["probes", "kernels"])] == ["environment", "kernels", "probes"]
    assert gpu.chosen([]) == list(gpu.PARTS)
    with pytest.raises(SystemExit, match="no part probe: the parts are environment, kernels"):
        gpu.chosen(["probe"])


def test_each_part_runs_what_is_there():
    for step in (step for part in gpu.PARTS for step in part.steps):
        paths = [word.removeprefix("--ignore=") for word in step.command if "/" in word and word != sys.executable]
        assert paths
        assert [path for path in paths if not (ROOT / path).exists()] == []
