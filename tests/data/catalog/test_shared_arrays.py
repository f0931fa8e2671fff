"""Arrays that the processes of a host share: made once, left behind by nobody."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from patience import PATIENCE_S

from fsdata.catalog import shared_arrays
from fsdata.catalog.shared_arrays import SharedArrays
from fsdata.decode.joins.pile import Pile
from fsdata.errors import DataError

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
    return [path.name for folder in shared_arrays._folders() for path in folder.glob(f"{name}*")]


def other(name: str, how: str = "") -> subprocess.Popen:
    """A process that holds the arrays until it is told to end; `how`: "wait" for a line before it has made them."""
    command = [sys.executable, "-c", SCRIPT, name, how]
    env = os.environ | {"PYTHONPATH": str(Path(shared_arrays.__file__).parents[2])}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def ended(process: subprocess.Popen) -> list[str]:
    """What the process had still to say."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with process.stdout as out:
        said = out.read().split()
    process.wait(timeout=PATIENCE_S)
    return said


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


def test_processes_wait_for_the_one_that_makes_them(name: str) -> None:
    first = other(name, "wait")
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "made\n"
    others = [other(name) for _ in range(2)]
    first.stdin.write("\n")
    first.stdin.flush()
    said = [process.stdout.readline() for process in (first, *others) if process.stdout]  # all of them are there
    assert said == ["499500\n"] * 3
    assert [ended(process) for process in (first, *others)] == [[], [], []]
    assert files(name) == []


@pytest.mark.long
def test_a_killed_process_leaves_nothing_for_long(name: str) -> None:
    process = other(name)
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(2)] == ["made", "499500"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert files(name)
    shared = SharedArrays(f"{name}x", lambda _: ARRAYS, "another table")
    assert not [file for file in files(name) if not file.startswith(f"{name}x")]
    shared.close()
    assert files(name) == []


@pytest.mark.long
def test_whoever_is_killed_while_making_them_is_replaced(name: str) -> None:
    process = other(name, "wait")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "made"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert np.array_equal(shared["a"], ARRAYS["a"])
    shared.close()
    assert files(name) == []


def test_what_is_meant_for_the_disk_lies_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(scratch: Path | None) -> dict[str, np.ndarray]:
        assert scratch is not None
        pile = Pile(np.dtype(np.int32), scratch / "a")
        for part in np.split(ARRAYS["a"], 4):
            pile.add(part)
        return {"a": pile.gathered(np.array([500, 0]), np.array([500, 500]))}

    for left in (name, f"{name}y"):  # by processes that were killed while they read this table, and another one
        scratch = shared_arrays._folders()[-1] / f"{left}.scratch"
        scratch.mkdir()
        (scratch / "a").write_bytes(b"1")
        (shared_arrays._folders()[0] / f"{left}.lock").touch()
    shared = SharedArrays(name, make, "the table", on_disk=True)
    assert np.array_equal(shared["a"], np.roll(ARRAYS["a"], 500))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{name}.data"]
    other = SharedArrays(name, never, "the table", on_disk=True)
    shared.close()
    other.close()
    assert files(name) == []


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_pile_without_values(tmp_path: Path, on_disk: bool) -> None:
    pile = Pile(np.dtype(np.int16), tmp_path / "a" if on_disk else None)
    none = np.empty(0, np.int64)
    for found in (pile.whole(), pile.gathered(none, none)):
        assert found.dtype == np.int16
        assert len(found) == 0


def test_another_process_keeps_the_file(name: str) -> None:
    process = other(name)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    SharedArrays(name, never, "the table").close()
    assert files(name)
    process.communicate("")
    assert files(name) == []


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


def test_nobody_waits_for_ever(name: str) -> None:
    process = other(name, "wait")
    assert process.stdout is not None
    process.stdout.readline()
    with (
        mock.patch.object(shared_arrays, "PATIENCE_S", 0.1),
        pytest.raises(DataError, match=f"the table: process {process.pid} of this host reads it for all"),
    ):
        SharedArrays(name, never, "the table")
    process.kill()
    process.communicate()


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"freescale-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"freescale-{os.getuid()}").chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        shared_arrays._own_folder(tmp_path)


def test_where_memory_is_full_the_folder_for_temporary_files_serves(name: str) -> None:
    with mock.patch.object(shared_arrays, "_SPARE", 1 << 60):
        shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert any(each.name == f"{name}.data" for each in shared_arrays._folders()[-1].iterdir())
    assert np.array_equal(shared["a"], ARRAYS["a"])
    shared.close()
    assert files(name) == []
