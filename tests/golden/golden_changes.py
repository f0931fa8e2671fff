"""Shows what has changed since a golden file was made, also where it holds digests only.

    python tests/golden/golden_changes.py tools comm

makes the whole documents of these sections by the commit that made their files, and by the working tree, and prints
where they differ.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PRINT = """
import json, sys
import make_golden
from golden_data import FILES
from golden_sections import RESUMED, SECTIONS
name = sys.argv[1]
document = SECTIONS[name](FILES)
then = RESUMED[name](FILES, document) if name in RESUMED else None
print(json.dumps({"golden": document, "then": then}))
"""


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where and how `now` differs. Floats may differ by their last digits, everything else not at all."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key in before and key in now:
                yield from differences(before[key], now[key], f"{path} / {key}")
            else:
                yield f"{path} / {key}: {'no more' if key in before else 'new'}"
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{path} / {place}")
    elif isinstance(before, float) and isinstance(now, float):
        if not math.isclose(before, now, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: {before!r} -> {now!r}"
    elif type(before) is not type(now) or before != now:
        yield f"{path}:\n    {before!r}\n -> {now!r}"


def document(name: str, root: Path) -> Any:
    """The whole document of a section, by the code below `root`."""
    links = root / "build" / "mypy"  # `freescale_tools` is the folder tools
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "freescale_tools").exists():
        (links / "freescale_tools").symlink_to("../../tools")
    path = os.pathsep.join(map(str, (links, root, root / "tests" / "golden")))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PRINT, name], cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="of a golden file: tools, comm, ...")
    for name in parser.parse_args().names:
        commit = json.loads((HERE / f"{name}.json").read_text())["made_with"]
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder) / "before"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(at), commit], cwd=ROOT, check=True)
            try:
                before = document(name, at)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", str(at)], cwd=ROOT, check=True)
        found = list(differences(before, document(name, ROOT)))
        print(f"{name}: {len(found)} differences from {commit}", *found, sep="\n")


if __name__ == "__main__":
    main()
