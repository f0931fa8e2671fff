"""Arrays that the processes of a host share: made once, left behind by nobody."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from fsdata.catalog import shared_arrays
from fsdata.catalog.shared_arrays import SharedArrays
from fsdata.decode.joins.pile import Pile
from fsdata.errors import DataError

MEMORY, OWN = Path("/dev/shm"), f"freescale-{os.getuid()}"
ARRAYS = {"a": np.arange(1000, dtype=np.int32), "none": np.empty(0, np.int64), "b": np.array([2.5], np.float32)}
SCRIPT = """
import sys, numpy as np
from fsdata.catalog.shared_arrays import SharedArrays
def make(_):
    print("made", flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.readline()
    return {"a": np.arange(1000, dtype=np.int32)}
shared = SharedArrays(sys.argv[1], make, "the table")
print(int(shared["a"].sum()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


def files(name: str) -> list[str]:
    folders = (MEMORY / OWN, Path(tempfile.gettempdir()) / OWN)
    return [path.name for folder in folders for path in folder.glob(f"{name}*")]


def other(name: str, how: str = "") -> subprocess.Popen:
    """A process that holds the arrays until it is told to end; `how`: "wait" for a line before it has made them."""
    command = [sys.executable, "-c", SCRIPT, name, how]
    env = os.environ | {"PYTHONPATH": str(Path(shared_arrays.__file__).parents[2])}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen, by: int | None = None) -> None:
    if by is not None:
        process.send_signal(by)
    process.communicate("", timeout=PATIENCE_S)


def never(_) -> dict[str, np.ndarray]:
    raise AssertionError("made twice")


def test_what_one_makes_all_have(name: str) -> None:
    first = SharedArrays(name, lambda _: ARRAYS, "the table")
    second = SharedArrays(name, never, "the table")
    for shared in (first, second):
        assert all(np.array_equal(shared[key], each) for key, each in ARRAYS.items())
        assert [shared[key].dtype for key in ARRAYS] == [each.dtype for each in ARRAYS.values()]
        assert not shared["a"].flags.writeable
    kept = second["a"]
    del first, second, shared
    gc.collect()
    assert files(name) == []
    assert kept.sum() == ARRAYS["a"].sum()  # an array keeps its memory, though the file is gone


def test_processes_wait_for_the_one_that_makes_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = other(name, "wait")
    assert line(first) == "made"
    with monkeypatch.context() as patch:  # nobody waits for ever
        patch.setattr(shared_arrays, "PATIENCE_S", 0.1)
        with pytest.raises(DataError, match=f"the table: process {first.pid} of this host reads it for all"):
            SharedArrays(name, never, "the table")
    second = other(name)
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert [line(first), line(second)] == ["499500"] * 2
    ended(first)
    SharedArrays(name, never, "the table").close()
    assert files(name)  # the other process holds it
    ended(second)
    assert files(name) == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["", "wait"], ids=["holding", "making"])
def test_a_killed_process_leaves_nothing_for_long(name: str, how: str) -> None:
    process = other(name, how)
    assert line(process) == "made"
    assert how or line(process) == "499500"
    ended(process, by=signal.SIGKILL)
    assert files(name)
    SharedArrays(f"{name}x", lambda _: ARRAYS, "another table").close()
    assert files(name) == []
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert np.array_equal(shared["a"], ARRAYS["a"])
    shared.close()


def test_what_is_meant_for_the_disk_lies_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(scratch: Path | None) -> dict[str, np.ndarray]:
        assert scratch is not None
        pile = Pile(np.dtype(np.int32), scratch / "a")
        for part in np.split(ARRAYS["a"], 4):
            pile.add(part)
        return {"a": pile.gathered(np.array([500, 0]), np.array([500, 500]))}

    SharedArrays(f"{name}x", lambda _: ARRAYS, "the folders are there").close()
    for left in (name, f"{name}y"):  # by processes that were killed while they read this table, and another one
        scratch = tmp_path / OWN / f"{left}.scratch"
        scratch.mkdir()
        (scratch / "a").write_bytes(b"1")
        (MEMORY / OWN / f"{left}.lock").touch()
    shared = SharedArrays(name, make, "the table", on_disk=True)
    assert np.array_equal(shared["a"], np.roll(ARRAYS["a"], 500))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{name}.data"]
    other = SharedArrays(name, never, "the table", on_disk=True)
    shared.close()
    other.close()
    assert files(name) == []


def test_a_pile_without_values(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    for place in (tmp_path / "a", None):
        pile = Pile(np.dtype(np.int16), place)
        for found in (pile.whole(), pile.gathered(none, none)):
            assert (found.dtype, len(found)) == (np.int16, 0)


def test_an_error_is_raised_and_nothing_is_left(name: str) -> None:
    def fails(scratch: Path | None) -> dict[str, np.ndarray]:
        if scratch is not None:
            (scratch / "half").write_bytes(b"1")
        raise ValueError("a bad table")

    for on_disk in (False, True, False):
        with pytest.raises(ValueError, match="a bad table"):
            SharedArrays(name, fails, "the table", on_disk=on_disk)
    SharedArrays(f"{name}x", lambda _: ARRAYS, "another table").close()
    assert files(name) == []


def test_a_folder_of_somebody_else_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / OWN).mkdir()
    for mode in (0o777, 0o720, 0o702):
        (tmp_path / OWN).chmod(mode)
        with pytest.raises(PermissionError, match="can be written by others"):
            SharedArrays(name, never, "the table")


def test_where_memory_is_full_the_folder_for_temporary_files_serves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: namedtuple("Usage", "free")(0 if MEMORY in folder.parents else 1 << 40)
    )
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert (tmp_path / OWN / f"{name}.data").exists()
    assert np.array_equal(shared["a"], ARRAYS["a"])
    shared.close()
    assert files(name) == []
