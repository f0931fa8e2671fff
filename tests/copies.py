"""Copies of the working tree, with its compiled kernels, in which tests run: for `breaks.py` and `without.py`."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "build" / "numba"

# The finder of an editable install would find a deleted folder in the folder that was installed.
_NO_FINDER = """\
import sys

sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "__name__", "") != "_EditableFinder"]
"""


def compiled(folder: Path) -> str:
    """Under which name numba keeps the kernels of a folder."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def copy(at: Path) -> dict[str, str]:
    """Copy the working tree and its compiled kernels. The environment in which Python imports the copy and nothing of
    the original, also in the ranks and commands that tests start."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if (ROOT / name).is_file()]
    for name in names:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, at / name)  # with its time, by which numba tells that its kernels are the same
    links, kernels = at / "build" / "mypy", at / "build" / "numba"  # as `make check` and `make test` have them
    links.mkdir(parents=True)
    (links / "freescale_tools").symlink_to("../../tools")
    (links / "sitecustomize.py").write_text(_NO_FINDER)
    for part in {Path(name).parent for name in names}:
        if (known := KERNELS / compiled(ROOT / part)).is_dir():
            imported = links / "freescale_tools" / part.relative_to("tools") if part.parts[0] == "tools" else at / part
            shutil.copytree(known, kernels / compiled(imported))
    path = os.pathsep.join(map(str, (links, at)))
    return {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(kernels), "OMP_NUM_THREADS": "1"}
