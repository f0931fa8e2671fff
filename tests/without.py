"""Runs the tests of a core, of fsdata or fscomm, in copies of the working tree from which an extension is deleted.

    python tests/without.py               all extensions, one after another
    python tests/without.py balance bags  only these
    python tests/without.py --some        two of them, other ones with each commit, and some of the tests

What an extension does is tested in files of its own, which are not run here. A core test needs no extension:
`tests/test_layers.py` checks that by its imports.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from copies import ROOT, copy

EXTENSIONS = {
    "fsdata": (
        *("balance", "embedding", "growing", "histories", "lake", "pages", "remote", "sampling", "setup", "tables"),
        *("tensors", "views"),
    ),
    "fscomm": (
        *("bags", "codecs", "managed", "parts", "pipeline", "recipes", "transports/ring", "transports/staged"),
        *("two_levels", "verify"),
    ),
}
"""All folders of a package that can be deleted, and files without `.py`. No name is in both packages."""
PACKAGES = {extension: package for package, extensions in EXTENSIONS.items() for extension in extensions}

CORE_TESTS = {
    "fsdata": (
        *("tests/data/catalog", "tests/data/decode", "tests/data/loader", "tests/data/nodes", "tests/data/order"),
        *("tests/data/sources", "tests/ranks"),
    ),
    "fscomm": (
        *("tests/comm/exactness/test_exact.py", "tests/comm/exactness/test_gradients.py"),
        *("tests/comm/exactness/test_programs.py", "tests/comm/exchange/test_control_word.py"),
        *("tests/comm/exchange/test_executor.py", "tests/comm/exchange/test_id_exchange.py"),
        *("tests/comm/exchange/test_wire_gate.py", "tests/comm/exchange/test_worker.py", "tests/comm/report"),
        *("tests/comm/loop/test_lookahead.py", "tests/comm/loop/test_lookahead_state.py"),
        *("tests/comm/engine/test_flushing.py", "tests/comm/engine/test_tables.py"),
    ),
}
QUICK_TESTS = {
    "fsdata": ("tests/data/decode", "tests/data/loader/test_loader.py", "tests/data/nodes", "tests/data/order"),
    "fscomm": ("tests/comm/exactness/test_exact.py", "tests/comm/exchange/test_id_exchange.py"),
}

PYTEST = (sys.executable, "-m", "pytest", "-m", "not long", "-p", "no:cacheprovider")
SOME = 2


def chosen_by(commit: str) -> list[str]:
    """`SOME` extensions. Those of one commit are always the same."""
    extensions = list(PACKAGES)
    first = int(commit, 16) % len(extensions)
    return [extensions[(first + number) % len(extensions)] for number in range(SOME)]


def run_without(extension: str, tests: tuple[str, ...]) -> tuple[bool, str]:
    """(Whether all core tests pass in a copy without the extension, what pytest prints)."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder).resolve()
        environment = copy(at)
        deleted = at / PACKAGES[extension] / extension
        if deleted.is_dir():
            shutil.rmtree(deleted)
        else:
            deleted.with_suffix(".py").unlink()
        # Without this check a test would prove nothing where Python finds the deleted module elsewhere.
        module = f"{PACKAGES[extension]}.{extension.replace('/', '.')}"
        check = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is not None)"
        subprocess.run([sys.executable, "-c", check], cwd=at, env=environment, check=True)
        done = subprocess.run([*PYTEST, *tests], cwd=at, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    quick = "--some" in arguments
    extensions = [each for each in arguments if each != "--some"] or [*PACKAGES]
    if quick:
        git = ["git", "rev-parse", "HEAD"]
        extensions = chosen_by(subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    if unknown := sorted({*extensions} - {*PACKAGES}):
        raise SystemExit(f"{', '.join(unknown)}: no extension. There are {', '.join(PACKAGES)}")
    failed = 0
    for extension in extensions:
        package = PACKAGES[extension]
        passed, shown = run_without(extension, (QUICK_TESTS if quick else CORE_TESTS)[package])
        failed += not passed
        print(f"without {package}/{extension}: {shown.strip().rpartition(chr(10))[2]}", flush=True)
        if not passed:
            print(shown, flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
