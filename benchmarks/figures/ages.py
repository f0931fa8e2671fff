"""Whether the first figures are current: those of README.md and docs/index.md. The last step of `make figures`.

The record of a figure is current if it was measured on a commit, not on changed files, and if at most 300 commits have
changed a package since that it measures.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from figures.records import Record, record

ROOT = Path(__file__).parents[2]
MOST = 300  # commits
MEASURED: dict[str, tuple[str, ...]] = {
    "stragglers": ("fsdata",),
    "demo": ("fsdata", "fscomm", "tools"),
    "exposed": ("fscomm",),
    "exposed_parts": ("fscomm",),
    "histories": ("fsdata",),
    "loader": ("fsdata",),
    "time_lost": ("fsdata", "tools"),
}
"""Each record that README.md and docs/index.md read, and the packages that it measures."""


def problem(record: Record, commits: Mapping[str, int | None]) -> str | None:
    """Why a record is not current, and what to do; None if it is.

    commits: package -> number of commits that changed it since the record's; None where the repository does not have
    the record's commit.
    """
    commit, again = record.document["commit"], f"measure again: `{record.command}`"
    if commit.endswith("-dirty"):
        return f"{record.name}: measured at {commit}, on files that no commit has. Commit first, then {again}"
    if None in commits.values():
        return (
            f"{record.name}: this repository has no commit {commit}, so the age of the record is unknown. In a shallow "
            f"clone call `git fetch --unshallow`; if the commit was rewritten, {again}"
        )
    if old := [f"{count} commits have changed {package}" for package, count in commits.items() if (count or 0) > MOST]:
        return f"{record.name}: measured at {commit}; since then {', '.join(old)}, at most {MOST} may. To {again}"
    return None


def commits_since(commit: str, package: str, repository: Path) -> int | None:
    """How many commits up to HEAD, after `commit`, have changed a folder; None if git does not know the commit."""
    command = ["git", "-C", str(repository), "rev-list", "--count", f"{commit}..HEAD", "--", package]
    counted = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if counted.returncode else int(counted.stdout)


def main() -> None:
    """Status 1, and a line for each record that is not current."""
    problems = []
    for name, packages in MEASURED.items():
        found = record(name)
        commit = found.document["commit"].removesuffix("-dirty")
        problems.append(problem(found, {package: commits_since(commit, package, ROOT) for package in packages}))
    if texts := [text for text in problems if text]:
        sys.exit("\n".join(["Figures of README.md and docs/index.md that are not current:", *texts]))


if __name__ == "__main__":
    main()
