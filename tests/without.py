"""Runs the tests of a core, of fsdata or fscomm, in copies of the working tree from which an extension is deleted.

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
OF_FSCOMM = ("managed",)
"""Those of fscomm."""

CORE_TESTS = (
    *("tests/data/catalog", "tests/data/decode", "tests/data/loader", "tests/data/nodes", "tests/data/order"),
    *("tests/data/sources", "tests/ranks"),
)
CORE_TESTS_OF_FSCOMM = (
    *("tests/comm/exactness/test_exact.py", "tests/comm/exactness/test_gradients.py"),
    *("tests/comm/exactness/test_programs.py", "tests/comm/exchange"),
)
QUICK_TESTS = ("tests/data/decode", "tests/data/loader/test_loader.py", "tests/data/nodes", "tests/data/order")

PYTEST = (sys.executable, "-m", "pytest", "-m", "not long", "-p", "no:cacheprovider")
SOME = 2


def chosen_by(commit: str) -> list[str]:
    """`SOME` extensions. Those of one commit are always the same."""
    extensions = (*EXTENSIONS, *OF_FSCOMM)
    first = int(commit, 16) % len(extensions)
    return [extensions[(first + number) % len(extensions)] for number in range(SOME)]


def tests_of(package: str, *, quick: bool) -> tuple[str, ...]:
    """Of the core of the package."""
    if package == "fscomm":
        return CORE_TESTS_OF_FSCOMM[:1] if quick else CORE_TESTS_OF_FSCOMM
    return QUICK_TESTS if quick else CORE_TESTS


def run_without(package: str, extension: str, tests: tuple[str, ...]) -> tuple[bool, str]:
    """(Whether all core tests pass in a copy without the extension, what pytest prints)."""
    with tempfile.TemporaryDirectory() as name:
        at = Path(name).resolve()
        environment = copy(at)
        shutil.rmtree(at / package / extension)
        # Without this check a test would prove nothing where Python finds the deleted folder elsewhere.
        check = f"import importlib.util as u, sys; sys.exit(u.find_spec('{package}.{extension}') is not None)"
        subprocess.run([sys.executable, "-c", check], cwd=at, env=environment, check=True)
        done = subprocess.run([*PYTEST, *tests], cwd=at, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    quick = "--some" in arguments
    extensions = [each for each in arguments if each != "--some"] or [*EXTENSIONS, *OF_FSCOMM]
    if quick:
        git = ["git", "rev-parse", "HEAD"]
        extensions = chosen_by(subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    if unknown := sorted({*extensions} - {*EXTENSIONS, *OF_FSCOMM}):
        raise SystemExit(f"{', '.join(unknown)}: no extension. There are {', '.join([*EXTENSIONS, *OF_FSCOMM])}")
    failed = 0
    for extension in extensions:
        package = "fscomm" if extension in OF_FSCOMM else "fsdata"
        passed, shown = run_without(package, extension, tests_of(package, quick=quick))
        failed += not passed
        print(f"without {package}/{extension}: {shown.strip().rpartition(chr(10))[2]}", flush=True)
        if not passed:
            print(shown, flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
