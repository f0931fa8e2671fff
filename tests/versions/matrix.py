"""Tries the project on the versions of torch, fbgemm, torchrec and Python that people run: `make matrix`.

    make matrix                           all rows, one after another: about 15 minutes each
    make matrix VERSIONS="2.9 2.14"       only these; the page keeps what it says of the others
    make matrix VERSIONS=2.9 KEEP=rows    the environment stays in rows/2.9, and is used again by the next run

Each row is an environment of its own, in a temporary folder: 3 to 6 GB that are fetched, and deleted afterwards. In it
run the tests that other versions may break. What they say goes into `benchmarks/results/matrix.json`, row by row, and
from there `make figures` writes it into `docs/versions.md`. A row that cannot be installed says why, and the next one
goes on. The status is 0 whatever a row says: the page is what was asked for.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = ROOT / "benchmarks" / "results" / "matrix.json"
INSTALL_LIMIT_S, CHECK_LIMIT_S = 3600, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Versions that go together. fbgemm x.y goes with one torch minor, and torchrec with one fbgemm minor.

    oldest: all other packages are as old as `pyproject.toml` allows; else they are the newest.
    """

    name: str
    torch: str
    fbgemm: str
    torchrec: str
    python: str = "3.11"
    oldest: bool = False


ROWS = (
    Row(name="2.9", torch="2.9.1", fbgemm="1.4.2", torchrec="1.4.0"),
    Row(name="2.9-oldest", torch="2.9.1", fbgemm="1.4.2", torchrec="1.4.0", oldest=True),
    Row(name="2.10", torch="2.10.0", fbgemm="1.5.0", torchrec="1.5.1"),
    Row(name="2.11", torch="2.11.0", fbgemm="1.6.0", torchrec="1.6.1"),
    Row(name="2.12", torch="2.12.1", fbgemm="1.7.0", torchrec="1.7.0"),
    Row(name="2.13", torch="2.13.0", fbgemm="1.8.0", torchrec="1.9.2"),
    Row(name="2.13-python3.12", torch="2.13.0", fbgemm="1.8.0", torchrec="1.9.2", python="3.12"),
    Row(name="2.13-python3.13", torch="2.13.0", fbgemm="1.8.0", torchrec="1.9.2", python="3.13"),
    Row(name="2.14", torch="2.14.1", fbgemm="1.9.0", torchrec="1.9.2"),
)

# What other versions may break, each in a run of pytest of its own: one that dies takes no other along.
CHECKS: dict[str, tuple[str, ...]] = {
    "exactness": (
        *("tests/comm/exactness/test_exact.py", "tests/comm/exactness/test_extensions.py"),
        *("-m", "not long"),
    ),
    "managed collision": (
        *(
            "tests/comm/engine/test_map_order.py",
            "tests/comm/engine/test_maps.py",
            "tests/comm/engine/test_cpu_kernels.py",
        ),
        *("tests/comm/exactness/test_managed.py", "-m", "not long"),
    ),
    "programs": ("tests/programs",),
    "pipelines": ("tests/comm/loop", "-m", "not long"),
    "transports": ("tests/comm/transports", "-m", "not long"),
    "ranks": ("tests/ranks", "tests/golden", "-m", "not long"),
    "loader": ("tests/data", "-m", "not long"),
    "tools": (
        *("tests/tools/check", "tests/tools/collisions", "tests/tools/demo", "tests/tools/plan", "tests/tools/profile"),
        *("tests/tools/scan", "tests/tools/test_cli.py", "-m", "not long"),
    ),
}
# Warnings of versions that are not those of `make test` are no errors.
PYTEST = ("-m", "pytest", "-o", "filterwarnings=default", "-p", "no:cacheprovider")


class NotInstallable(Exception):
    """Says in one line why nothing can be tried."""


def bounds(row: Row, project: dict[str, Any]) -> list[str]:
    """What pip must keep to: the row's torch, and for an oldest row the lower bound of each dependency."""
    kept = [f"torch=={row.torch}"]
    if row.oldest:
        declared = [*project["dependencies"], *project["optional-dependencies"]["tools"]]
        least = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in declared)
        kept += [f"{found[1]}=={found[2]}" for found in least if found and found[1] != "torch"]
    return kept


def install(row: Row, folder: Path) -> None:
    """An environment with the row's packages and this project, in the order of the Makefile.

    Raises:
        NotInstallable: there is no such Python, or pip does not find what it needs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    asked = ("-c", "import sys; print(sys.executable)")  # a command of that name may only say that there is no Python
    try:
        python = subprocess.run([f"python{row.python}", *asked], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise NotInstallable(f"python{row.python} was not found here") from None
    subprocess.run([python.strip(), "-m", "venv", folder], check=True)
    kept = folder / "constraints.txt"
    kept.write_text("\n".join(bounds(row, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])))
    for packages in (
        [f"torch=={row.torch}"],
        [f"fbgemm-gpu-cpu=={row.fbgemm}", "-r", "requirements/torchrec.txt"],
        ["--no-deps", f"torchrec=={row.torchrec}"],
        ["-e", ".[test]"],
    ):
        pip = [folder / "bin" / "pip", "install", "-q", "--no-compile", "--no-cache-dir", "-c", kept, *packages]
        done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        if done.returncode:
            errors = re.findall(r"^ERROR: (.*)$", done.stderr, re.MULTILINE)
            raise NotInstallable(errors[-1] if errors else f"pip could not install {' '.join(packages)}")
    (folder / ".ready").touch()


@contextlib.contextmanager
def environment(row: Row, kept: Path | None) -> Iterator[Path]:
    """The folder of the row's environment, made anew, or as it is in `kept`."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="freescale-matrix-") as name:
            install(row, Path(name) / row.name)
            yield Path(name) / row.name
        return
    folder = kept.resolve() / row.name
    if not (folder / ".ready").exists():
        install(row, folder)
    yield folder


def tried(row: Row, kept: Path | None) -> dict[str, Any]:
    """What the page says of a row: `problem` where it cannot be installed, else `versions`, `served` and `checks`."""
    try:
        with environment(row, kept) as folder:
            return {"problem": None, **_served(folder), "checks": {name: _check(name, folder) for name in CHECKS}}
    except NotInstallable as problem:
        return {"problem": str(problem)}


def _served(folder: Path) -> dict[str, Any]:
    """What `served.py` says."""
    answer = folder / "served.json"
    answer.unlink(missing_ok=True)
    _run(folder, str(HERE / "served.py"), str(answer))
    if not answer.exists():
        raise NotInstallable(f"it installs, but does not start: {one_line((folder / 'output.txt').read_text())}")
    return json.loads(answer.read_text())


def _check(name: str, folder: Path) -> dict[str, Any]:
    """Runs some tests, and says what came out."""
    report = folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    ended = _run(folder, *PYTEST, f"--junitxml={report}", *CHECKS[name])
    outcome = gathered(report.read_text()) if report.exists() else {"passed": 0, "failed": {name: ended}, "ids": []}
    print(f"    {name}: {outcome['passed']} passed, {len(outcome['failed'])} failed", flush=True)
    for test, why in outcome["failed"].items():
        print(f"        {test}: {why}", flush=True)
    return outcome


def gathered(report: str) -> dict[str, Any]:
    """From the JUnit file of pytest: how many tests passed, what failed and why in one line, shares of ids served."""
    failed: dict[str, str] = {}
    ids: list[float] = []
    passed = 0
    for case in ElementTree.fromstring(report).iter("testcase"):
        broken = [each for each in case if each.tag in ("failure", "error")]
        passed += not broken and case.find("skipped") is None
        if broken:
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            failed[name] = one_line(broken[0].text or "")
        ids += [float(each.get("value", 0)) for each in case.iter("property") if each.get("name") == "ids served"]
    return {"passed": passed, "failed": failed, "ids": ids}


def one_line(output: str) -> str:
    """What was raised, without names of folders: the last line of a traceback, also of one that pytest shows of a rank;
    else the first line that pytest marks with E."""
    lines = [line.strip() for line in re.findall("^E  (.*)$", output, re.MULTILINE) or output.splitlines()]
    lines = [line for line in lines if line] or ["no message"]
    marked, traced = output.startswith("E  ") or "\nE  " in output, any(line.startswith("Traceback") for line in lines)
    line = lines[0] if marked and not traced else lines[-1]
    return re.sub(r"/[\w./-]*/", "", line)[:200]


def _run(folder: Path, *arguments: str) -> str:
    """Runs Python of an environment in the working tree; all that it started ends with it. Says how it ended."""
    settings = {"OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(folder / "numba")}
    command = [folder / "bin" / "python", *arguments]
    with (
        (folder / "output.txt").open("a") as output,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            return f"it ended with status {process.wait(CHECK_LIMIT_S)}"
        except subprocess.TimeoutExpired:
            return f"it did not end within {CHECK_LIMIT_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def keep(row: Row, said: dict[str, Any]) -> None:
    """Puts a row into the record, in place of what the record said of it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from common.environment import head

    known = {each["row"]: each for each in json.loads(RECORD.read_text())["rows"]} if RECORD.exists() else {}
    now = {**head("the tests of this project"), "command": "make matrix"}
    asked = {"torch": row.torch, "fbgemm": row.fbgemm, "torchrec": row.torchrec, "python": row.python}
    known[row.name] = {"row": row.name, **asked, "date": now["date"], "commit": now["commit"], **said}
    rows = [known[each.name] for each in ROWS if each.name in known]
    document = {"name": "matrix", "title": "Versions that the project was tried on", **now, "rows": rows, "notes": []}
    RECORD.write_text(json.dumps(document, indent=1) + "\n")


def main(names: Sequence[str], kept: Path | None) -> None:
    for row in ROWS:
        if not names or row.name in names:
            print(f"{row.name}: torch {row.torch}, torchrec {row.torchrec}, Python {row.python}", flush=True)
            said = tried(row, kept)
            print(f"    {said['problem'] or said['served']}", flush=True)
            keep(row, said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="environments stay there, and are used again")
    given = parser.parse_args()
    if unknown := set(given.rows) - {row.name for row in ROWS}:
        parser.error(f"no row is called {', '.join(sorted(unknown))}: take some of {', '.join(r.name for r in ROWS)}")
    main(given.rows, given.keep)
