"""The project as it is installed: without the extra `tools`, and from its wheel in an environment of its own."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest
from matrix import ROWS, bounds
from packaging.requirements import Requirement
from pages import blocks, commands
from patience import PATIENCE_S
from test_layers import PACKAGES, ROOT, files, violations

from freescale_tools.__main__ import EXTRA

STARTED = ROOT / "docs" / "getting-started.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ON_TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SAYS = "error: freescale needs {}, not installed here: pip install 'freescale[tools]'\n"


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-5000:]}"
    return done.stdout


def test_the_extra_is_declared_and_only_the_tools_import_it():
    declared = {Requirement(each).name for each in PROJECT["optional-dependencies"]["tools"]}
    assert declared == set(EXTRA)
    assert not declared & {Requirement(each).name for each in PROJECT["dependencies"]}
    assert "freescale[tools]" in PROJECT["optional-dependencies"]["test"]  # with which `make demo` installs it, too
    paths = [path for package in PACKAGES if package != "freescale_tools" for path in files(package)]
    assert violations(paths, forbidden=EXTRA) == []


def test_the_oldest_row_of_the_matrix_has_every_dependency_at_its_lower_bound():
    (oldest,) = (row for row in ROWS if row.oldest)
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["tools"]]
    torch, *others = bounds(oldest, PROJECT)
    assert {torch.rpartition(".")[0], *others} == {each.replace(">=", "==") for each in declared}


@pytest.mark.parametrize("missing", [EXTRA, ("plotly",)], ids=["all", "plotly"])
def test_the_command_says_in_one_line_what_to_install(missing):
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing})); sys.argv = ['freescale', '--version']\n"
        "runpy.run_module('freescale_tools', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", SAYS.format(", ".join(missing)))


def test_workflows_call_targets_of_the_makefile():
    workflows = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    called = {target for text in workflows for line in re.findall("run: make (.*)", text) for target in line.split()}
    assert {"check", "test", "docs", "package"} <= called
    run("make", "-n", *sorted(called), cwd=ROOT)


JOB = """
import fscomm, fsdata, fsmeter
from freescale_tools.plan.torchrec import load_plan  # a job reads its sharding plan

for package in (fscomm, fsdata, fsmeter):
    for name in package.__all__:
        getattr(package, name)
"""


def test_what_a_training_imports_needs_nothing_of_the_extra():
    """A training without it: `test_a_wheel_without_the_extra_trains_on_two_ranks`."""
    run(sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({EXTRA}))\n{JOB}", cwd=ROOT)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    """The unpacked source distribution of a copy of this tree, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    for name in in_git():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "tree" / name)
    build = "from setuptools.build_meta import {0}; print({0}(sys.argv[1]))"
    sdist = run(sys.executable, "-c", f"import sys; {build.format('build_sdist')}", folder, cwd=folder / "tree")
    with tarfile.open(folder / sdist.splitlines()[-1]) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"freescale-{PROJECT['version']}"
    wheel = run(sys.executable, "-c", f"import sys; {build.format('build_wheel')}", folder, cwd=unpacked)
    return unpacked, folder / wheel.splitlines()[-1]


def in_git() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """The distributions of this environment that these requirements need, and what those need, by their names."""
    found: dict[str, Distribution] = {}
    todo = [(text, extra) for text in requirements for extra in ("", *extras)]
    for text, extra in todo:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            one = found[requirement.name] = Distribution.from_name(requirement.name)
        except PackageNotFoundError:  # as the CUDA build of fbgemm, which torchrec names
            continue
        more = [(each, of) for each in one.requires or () for of in ("", *requirement.extras)]
        todo += [each for each in more if each not in todo]
    return found


def environment(folder: Path, wheel: Path, *, extras: Iterable[str]) -> Path:
    """The folder of programs of a virtual environment with the wheel, torchrec, and what both declare to need, as links
    to the packages of this environment. It has nothing else, so what is not declared cannot be imported."""
    venv.create(folder, symlinks=True)
    run(sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    declared = PathDistribution(packages / f"freescale-{PROJECT['version']}.dist-info").requires
    of_torchrec = [line for line in (ROOT / "requirements" / "torchrec.txt").read_text().splitlines() if line[0] != "#"]
    beside = needed(["torchrec", "fbgemm-gpu-cpu", *of_torchrec])
    for one in (needed(declared, extras) | beside).values():
        for name in {file.parts[0] for file in one.files} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(one.locate_file(name))
    return folder / "bin"


@pytest.mark.long
def test_the_source_distribution_has_the_whole_tree(distributions):
    unpacked, _ = distributions
    left_out = {".ci/run", ".gitignore"}
    assert [name for name in in_git() if not (unpacked / name).exists()] == sorted(left_out)


def started(command: str) -> list[str]:
    """The command of `freescale` and its arguments, as the page of getting started shows it."""
    return next(words[1:] for words in map(shlex.split, commands(STARTED)) if words[:2] == ["freescale", command])


@pytest.fixture
def in_folder(tmp_path):
    """Runs programs of an environment in a folder, with nothing of this tree on their path."""
    settings = {"PYTHONPATH": "", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    return lambda *command: run(*command, cwd=tmp_path, **settings)


@pytest.mark.long
def test_a_wheel_with_the_extra_writes_and_profiles_files(distributions, tmp_path, in_folder):
    """The commands of getting started, on fewer rows."""
    programs = environment(tmp_path / "environment", distributions[1], extras=["tools"])
    in_folder(programs / "freescale", *started("synth"), "--rows", 64)
    few = ("--ranks", 2, "--batch-size", 4)
    assert "data/source-0" in in_folder(programs / "freescale", *started("profile"), *few)
    assert (tmp_path / "freescale-report" / "profile.html").exists()
    shown = in_folder(programs / "python", "-c", "import fsdata; print(fsdata.__file__)")
    assert Path(shown.strip()).is_relative_to(programs.parent)


@pytest.mark.long
def test_a_wheel_without_the_extra_trains_on_two_ranks(distributions, tmp_path, in_folder):
    """The program of getting started, and one with fscomm."""
    programs = environment(tmp_path / "environment", distributions[1], extras=[])
    done = subprocess.run([programs / "freescale", "--version"], capture_output=True, text=True)
    missing = [name for name in EXTRA if name != "jinja2"]  # torch brings it
    assert (done.returncode, done.stderr) == (1, SAYS.format(", ".join(missing)))

    run(sys.executable, "-m", "freescale_tools", *started("synth"), "--rows", 64, cwd=tmp_path)
    program, *_ = blocks(STARTED, "python")
    (tmp_path / "train.py").write_text(program.text)
    assert "step 1" in in_folder(programs / "python", *ON_TWO_RANKS, "train.py")
    served = in_folder(programs / "python", *ON_TWO_RANKS, ROOT / "examples" / "hstu.py", "--rows", 800)
    assert "loss of the last step" in served
