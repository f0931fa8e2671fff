"""When the record of a figure is too old, by the commits of a repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from common import environment  # noqa: E402
from figures import ages  # noqa: E402
from figures.records import Record  # noqa: E402


def record(commit):
    return Record("loader", {"commit": commit, "command": "python benchmarks/loader.py"})


class Repository:
    """Of two packages."""

    def __init__(self, folder):
        self.folder = folder
        self("init", "-q")

    def __call__(self, *arguments):
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", str(self.folder), *who, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, package, *, times=1):
        """The last of some commits that change a package."""
        file = self.folder / package / "file"
        file.parent.mkdir(exist_ok=True)
        for _ in range(times):
            file.write_text(file.read_text() + "." if file.exists() else "")
            self("add", "-A")
            self("commit", "-qm", package)
        return self("rev-parse", "--short=8", "HEAD")


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_only_commits_of_the_package_count_where_the_repository_has_the_record_s(repository, tmp_path_factory):
    repository.commit("fsdata", times=2)
    measured = repository.commit("fscomm")
    assert ages.commits_since(measured, "fsdata", repository.folder) == 0
    repository.commit("fsdata", times=3)
    repository.commit("fscomm")
    assert ages.commits_since(measured, "fsdata", repository.folder) == 3
    assert ages.commits_since(measured, "fscomm", repository.folder) == 1
    clone = tmp_path_factory.mktemp("clone")
    repository("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(clone))
    assert ages.commits_since(measured, "fsdata", clone) is None
    assert ages.commits_since(measured, "fsdata", tmp_path_factory.mktemp("none")) is None  # of no repository


def test_records_that_are_written_make_no_commit_dirty(repository, monkeypatch):
    (repository.folder / "benchmarks").mkdir()
    for package in ("fsdata", "benchmarks/results"):
        repository.commit(package)
    monkeypatch.setattr(environment, "_ROOT", repository.folder)
    for changed, dirty in (("benchmarks/results", False), ("fsdata", True)):
        (repository.folder / changed / "file").write_text("another")
        assert environment.head("some data")["commit"].endswith("-dirty") == dirty


@pytest.mark.parametrize(
    ("commit", "commits", "message"),
    [
        ("0a1b2c3", {"fsdata": ages.MOST}, None),
        ("0a1b2c3", {"fsdata": 0, "tools": ages.MOST}, None),
        (
            "0a1b2c3",
            {"fsdata": ages.MOST + 1, "tools": 5},
            "loader: measured at 0a1b2c3; since then 301 commits have changed fsdata, at most 300 may. To measure "
            "again: `python benchmarks/loader.py`",
        ),
        (
            "0a1b2c3-dirty",
            {"fsdata": 0},
            "loader: measured at 0a1b2c3-dirty, on files that no commit has. Commit first, then measure again: "
            "`python benchmarks/loader.py`",
        ),
        (
            "0a1b2c3",
            {"fsdata": None},
            "loader: this repository has no commit 0a1b2c3, so the age of the record is unknown. In a shallow clone "
            "call `git fetch --unshallow`; if the commit was rewritten, measure again: `python benchmarks/loader.py`",
        ),
    ],
    ids=["as old as may be", "of two packages", "old", "dirty", "unknown"],
)
def test_a_record_that_is_not_current_is_named_with_what_to_do(commit, commits, message):
    assert ages.problem(record(commit), commits) == message


def test_the_command_fails_for_old_records_and_names_no_others(repository, monkeypatch):
    """As `make figures` calls it."""
    commits = {"old": repository.commit("fsdata"), "new": repository.commit("fsdata", times=3)}
    commits["dirty"] = f"{commits['new']}-dirty"
    monkeypatch.setattr(ages, "ROOT", repository.folder)
    monkeypatch.setattr(ages, "MOST", 2)
    monkeypatch.setattr(ages, "record", lambda name: Record(name, record(commits[name]).document))
    monkeypatch.setattr(ages, "MEASURED", dict.fromkeys(commits, ("fsdata",)))
    with pytest.raises(SystemExit) as ended:
        ages.main()
    assert [line.partition(":")[0] for line in str(ended.value).splitlines()[1:]] == ["old", "dirty"]
    monkeypatch.setattr(ages, "MEASURED", {"new": ("fsdata",)})
    ages.main()
