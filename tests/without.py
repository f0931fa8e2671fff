"""Runs the tests of fsdata's core in copies of the working tree from which one extension is deleted.

    python tests/without.py                 all extensions, one after another
    python tests/without.py balance views   only these
    python tests/without.py --some          two of them, other ones with each commit, and some of the tests

What an extension does is tested in folders of its own, which are not run here. A core test uses no extension:
`tests/test_layers.py` checks that by its imports.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from copies import ROOT, copy

EXTENSIONS = (
    *("balance", "embedding", "growing", "histories", "lake", "pages", "remote", "setup", "tables", "tensors"),
    "views",
)
"""All folders of fsdata that can be deleted."""

CORE_TESTS = (
    *("tests/data/catalog", "tests/data/decode", "tests/data/loader", "tests/data/nodes", "tests/data/order"),
    *("tests/data/sources", "tests/ranks"),
)
QUICK_TESTS = ("tests/data/decode", "tests/data/loader/test_loader.py", "tests/data/nodes", "tests/data/order")

PYTEST = (sys.executable, "-m", "pytest", "-m", "not long", "-p", "no:cacheprovider")
SOME = 2


def chosen_by(commit: str) -> list[str]:
    """`SOME` extensions. Those of one commit are always the same."""
    first = int(commit, 16) % len(EXTENSIONS)
    return [EXTENSIONS[(first + number) % len(EXTENSIONS)] for number in range(SOME)]


def run_without(extension: str, tests: tuple[str, ...]) -> tuple[bool, str]:
    """(Whether all core tests pass in a copy without the extension, what pytest prints)."""
    with tempfile.TemporaryDirectory() as name:
        at = Path(name).resolve()
        environment = copy(at)
        shutil.rmtree(at / "fsdata" / extension)
        # Without this check a test would prove nothing where Python finds the deleted folder elsewhere.
        check = f"import importlib.util as u, sys; sys.exit(u.find_spec('fsdata.{extension}') is not None)"
        subprocess.run([sys.executable, "-c", check], cwd=at, env=environment, check=True)
        done = subprocess.run([*PYTEST, *tests], cwd=at, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    quick = "--some" in arguments
    extensions = [each for each in arguments if each != "--some"] or list(EXTENSIONS)
    if quick:
        git = ["git", "rev-parse", "HEAD"]
        extensions = chosen_by(subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    if unknown := sorted(set(extensions) - set(EXTENSIONS)):
        raise SystemExit(f"{', '.join(unknown)}: no extension of fsdata. There are {', '.join(EXTENSIONS)}")
    failed = 0
    for extension in extensions:
        passed, shown = run_without(extension, QUICK_TESTS if quick else CORE_TESTS)
        failed += not passed
        print(f"without fsdata/{extension}: {shown.strip().rpartition(chr(10))[2]}", flush=True)
        if not passed:
            print(shown, flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
