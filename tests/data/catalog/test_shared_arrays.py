"""Arrays that the processes of a host share: made once, and removed with the last process."""

import errno
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import namedtuple
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from fsdata.catalog import shared_arrays
from fsdata.catalog.shared_arrays import SharedArrays
from fsdata.errors import DataError

MEMORY, OWN = Path("/dev/shm"), f"freescale-{os.getuid()}"
ARRAYS = {"a": np.arange(1000, dtype=np.int32), "none": np.empty(0, np.int64), "b": np.array([2.5], np.float32)}
SCRIPT = """
import sys, numpy as np
from pathlib import Path
from fsdata.catalog import shared_arrays
from fsdata.catalog.shared_arrays import SharedArrays
name, how, where, *folders = sys.argv[1:]
if folders:
    shared_arrays._folder_paths = lambda: list(map(Path, folders))
def make(scratch):
    if scratch is not None:
        (scratch / "some").write_bytes(bytes(100))
    print("made", flush=True)
    if how == "wait":
        sys.stdin.readline()
    return {"a": np.arange(1000, dtype=np.int32)}
shared = SharedArrays(name, make, "the table", on_disk=where == "disk")
print(int(shared["a"].sum()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


def files(name: str) -> list[str]:
    folders = (MEMORY / OWN, Path(tempfile.gettempdir()) / OWN)
    return [path.name for folder in folders for path in folder.glob(f"*{name}*")]


def other(name: str, how: str = "", where: str = "memory", folders: Sequence[Path] = ()) -> subprocess.Popen:
    """A process that uses the arrays until its input ends; `how`: "wait" for a line before it has made them.

    folders: in place of those of this user.
    """
    env = os.environ | {"PYTHONPATH": str(Path(shared_arrays.__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT, name, how, where, *map(str, folders)]
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


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_processes_wait_for_the_one_that_makes_them(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk = where == "disk"
    first = other(name, "wait", where)
    assert line(first) == "made"
    with monkeypatch.context() as patch:  # they do not wait for ever
        patch.setattr(shared_arrays, "PATIENCE_S", 0.1)
        with pytest.raises(DataError, match=f"the table: process {first.pid} of this host reads it for all"):
            SharedArrays(name, never, "the table", on_disk=on_disk)
    second = other(name, where=where)
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert [line(first), line(second)] == ["499500"] * 2
    ended(first)
    SharedArrays(name, never, "the table", on_disk=on_disk).close()
    assert files(name)  # the other process uses it
    ended(second)
    assert files(name) == []


@pytest.mark.long
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("how", ["", "wait"], ids=["using", "making"])
def test_a_killed_process_leaves_nothing_for_long(
    name: str, how: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In folders of its own: any other process of this user would remove what is left."""
    folders = [tmp_path / "memory", tmp_path / "disk"]
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: folders)
    process = other(name, how, where, folders)
    assert line(process) == "made"
    assert how or line(process) == "499500"
    ended(process, by=signal.SIGKILL)
    assert list(tmp_path.rglob("arrays-*"))
    SharedArrays(f"{name}x", lambda _: ARRAYS, "another table").close()
    assert list(tmp_path.rglob("arrays-*")) == []
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert np.array_equal(shared["a"], ARRAYS["a"])
    shared.close()


def test_what_is_meant_for_the_disk_lies_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(scratch: Path | None) -> dict[str, np.ndarray]:
        assert scratch is not None
        made = np.memmap(scratch / "a", np.int32, "w+", shape=1000)
        made[:] = ARRAYS["a"]
        return {"a": made}

    SharedArrays(f"{name}x", lambda _: ARRAYS, "the folders are there").close()
    for left in (name, f"{name}y"):  # by processes that were killed while they read this table, and another one
        scratch = tmp_path / OWN / f"arrays-{left}-0123456789abcdef.scratch"
        scratch.mkdir()
        (scratch / "a").write_bytes(b"1")
        scratch.with_suffix(".data").touch()
        (MEMORY / OWN / f"arrays-{left}.lock").touch()
    shared = SharedArrays(name, make, "the table", on_disk=True)
    assert np.array_equal(shared["a"], ARRAYS["a"])
    (path,) = (path.name for path in tmp_path.rglob("*") if path.is_file())
    assert path.startswith(f"arrays-{name}-")
    other = SharedArrays(name, never, "the table", on_disk=True)
    shared.close()
    other.close()
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


def test_a_folder_of_somebody_else_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / OWN).mkdir()
    for mode in (0o777, 0o720, 0o702):
        (tmp_path / OWN).chmod(mode)
        with pytest.raises(PermissionError, match="can be written by others"):
            SharedArrays(name, never, "the table")


def test_a_link_is_not_followed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """A folder in /dev/shm may have been made by anybody."""
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    theirs.mkdir()
    names = ["poetry.lock", "uv.lock", "poetry.data", f"arrays-{name}.lock", f"arrays-{name}-0123456789abcdef.data"]
    for each in names:
        (theirs / each).touch()
    (tmp_path / "link").symlink_to(theirs)
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: [tmp_path / "link", own])
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert [each.parent for each in tmp_path.rglob(f"arrays-{name}*") if each.parent != theirs] == [own]
    assert f"{tmp_path / 'link'} is a link" in caplog.text
    (own / f"arrays-{name}-fedcba9876543210.data").symlink_to(theirs / "uv.lock")
    shared.close()
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    assert sorted(each.name for each in theirs.iterdir()) == sorted(names)
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: [tmp_path / "link"])
    with pytest.raises(PermissionError, match="is a link"):
        SharedArrays(name, never, "the table")


def test_only_names_that_are_made_here_are_removed(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: [tmp_path])
    tmp_path.chmod(0o700)
    foreign = ["uv.lock", f"{name}.data", f"arrays-{name}.data", f"arrays-{name}-0123.data", f"arrays-{name}.half"]
    for each in foreign:
        (tmp_path / each).touch()
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(foreign)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_file_without_a_lock_is_not_used(name: str, on_disk: bool, tmp_path: Path, monkeypatch) -> None:
    """As a process that was killed left it, and with other contents since then."""
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: [tmp_path / "memory", tmp_path / "disk"])
    first = SharedArrays(name, lambda _: ARRAYS, "the table", on_disk=on_disk)
    (path,) = (each for each in tmp_path.rglob("arrays-*") if each.is_file())
    raw = path.read_bytes()
    first.close()
    path.write_bytes(raw[:256] + bytes(len(raw) - 256))
    second = SharedArrays(name, lambda _: ARRAYS, "the table", on_disk=on_disk)
    assert np.array_equal(second["a"], ARRAYS["a"])
    second.close()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_what_is_not_whole_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker was killed, and a process that it had forked still holds the file."""
    monkeypatch.setattr(shared_arrays, "_folder_paths", lambda: [tmp_path / "own"])
    first = SharedArrays(name, lambda _: ARRAYS, "the table")
    (path,) = (tmp_path / "own").iterdir()
    raw = path.read_bytes()
    first.close()
    damaged = raw[:40] + bytes([raw[40] ^ 4]) + raw[41:]  # in the head
    with open(tmp_path / "own" / f"arrays-{name}-0123456789abcdef.data", "wb+") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        for raw in (b"", bytes(4096), damaged):
            held.seek(0)
            held.write(raw)
            held.flush()
            shared = SharedArrays(name, lambda _: ARRAYS, "the table")
            assert np.array_equal(shared["a"], ARRAYS["a"])
            shared.close()
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    assert files(name) == list((tmp_path / "own").iterdir()) == []


def test_where_memory_is_full_the_folder_for_temporary_files_serves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system says before, or when it turns out: not even the number of a process could be written there."""

    class Full(FileIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "full")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "full")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = namedtuple("Usage", "free")
    for patches in (
        [(shutil, "disk_usage", lambda folder: free(0 if MEMORY in folder.parents else 1 << 40))],
        [(shared_arrays, "FileIO", Full), (shared_arrays, "reserve", full)],
    ):
        with monkeypatch.context() as patch:
            for place, of, double in patches:
                patch.setattr(place, of, double)
            shared = SharedArrays(name, lambda _: ARRAYS, "the table")
            assert len(list((tmp_path / OWN).iterdir())) == len(files(name)) == 1
            assert np.array_equal(shared["a"], ARRAYS["a"])
            shared.close()
    monkeypatch.setattr(shared_arrays, "_write", full)
    with pytest.raises(OSError, match=rf"the table: .*, {tmp_path / OWN}: set TMPDIR to a folder with more room"):
        SharedArrays(name, lambda _: ARRAYS, "the table")
    assert files(name) == []
