"""Arrays that the processes of a host share: made once, left behind by nobody."""

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
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from fsdata.catalog import shared_arrays
from fsdata.catalog.shared_arrays import KeptIn, SharedArrays
from fsdata.errors import DataError

MEMORY, OWN = Path("/dev/shm"), f"freescale-{os.getuid()}"
ARRAYS = {"a": np.arange(1000, dtype=np.int32), "none": np.empty(0, np.int64), "b": np.array([2.5], np.float32)}
SCRIPT = """
import sys, numpy as np
from pathlib import Path
from fsdata.catalog.shared_arrays import KeptIn, SharedArrays
name, how, folder = sys.argv[1:]
def make(scratch):
    if scratch is not None:
        (scratch / "some").write_bytes(bytes(100))
    print("made", flush=True)
    if how == "wait":
        sys.stdin.readline()
    return {"a": np.arange(1000, dtype=np.int32)}
kept = KeptIn(Path(folder), "the log") if folder else None
shared = SharedArrays(name, make, "the table", on_disk=bool(folder), kept=kept)
print(int(shared["a"].sum()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


def files(name: str) -> list[str]:
    folders = (MEMORY / OWN, Path(tempfile.gettempdir()) / OWN)
    return [path.name for folder in folders for path in folder.glob(f"*{name}*")]


@pytest.fixture(params=["shared", "kept"])
def folder(request, tmp_path: Path) -> Path | None:
    """The folder in which arrays are kept, if they are."""
    return tmp_path / "kept" if request.param == "kept" else None


def arrays(name: str, make, folder: Path | None = None) -> SharedArrays:
    kept = None if folder is None else KeptIn(folder, "the log")
    return SharedArrays(name, make, "the table", on_disk=folder is not None, kept=kept)


def left(name: str, folder: Path | None) -> list[str]:
    """Files of arrays that are shared, or what is kept."""
    return files(name) if folder is None else sorted(path.name for path in folder.iterdir())


def other(name: str, how: str = "", folder: Path | None = None) -> subprocess.Popen:
    """A process that holds the arrays until it is told to end; `how`: "wait" for a line before it has made them."""
    command = [sys.executable, "-c", SCRIPT, name, how, str(folder or "")]
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


def test_processes_wait_for_the_one_that_makes_them(
    name: str, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = other(name, "wait", folder)
    assert line(first) == "made"
    with monkeypatch.context() as patch:  # nobody waits for ever
        patch.setattr(shared_arrays, "PATIENCE_S", 0.1)
        with pytest.raises(DataError, match=f"the table: process {first.pid} of this host reads it for all"):
            arrays(name, never, folder)
    second = other(name, folder=folder)
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert [line(first), line(second)] == ["499500"] * 2
    ended(first)
    arrays(name, never, folder).close()
    assert left(name, folder)  # the other process holds it
    ended(second)
    assert [each.startswith("kept-") for each in left(name, folder)] == [True] * (folder is not None)


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


def test_what_a_killed_process_has_left_of_kept_arrays_is_not_used_and_goes(name: str, tmp_path: Path) -> None:
    process = other(name, "wait", tmp_path / "kept")
    assert line(process) == "made"
    ended(process, by=signal.SIGKILL)
    assert sorted(each.rpartition(".")[2] for each in left(name, tmp_path / "kept")) == ["data", "lock", "scratch"]
    shared = arrays(name, lambda _: ARRAYS, tmp_path / "kept")
    assert np.array_equal(shared["a"], ARRAYS["a"])
    assert [each.startswith("kept-") for each in left(name, tmp_path / "kept")] == [True]


def test_kept_arrays_have_the_types_that_they_had_and_are_compared_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that takes them compares the checksums, and the file is its own since then."""
    arrays(name, lambda _: ARRAYS, tmp_path / "kept").close()
    first = arrays(name, never, tmp_path / "kept")
    monkeypatch.setattr(shared_arrays, "_checksums", lambda _: [])
    second = arrays(name, never, tmp_path / "kept")
    for shared in (first, second):
        assert shared.arrays.keys() == ARRAYS.keys()
        assert all(np.array_equal(shared[key], each) for key, each in ARRAYS.items())
        assert [shared[key].dtype for key in ARRAYS] == [each.dtype for each in ARRAYS.values()]


def test_an_error_is_raised_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    def fails(scratch: Path | None) -> dict[str, np.ndarray]:
        if scratch is not None:
            (scratch / "half").write_bytes(b"1")
        raise ValueError("a bad table")

    kept = KeptIn(tmp_path / "kept", "the log")
    for options in ({}, {"on_disk": True}, {"on_disk": True, "kept": kept}, {}):
        with pytest.raises(ValueError, match="a bad table"):
            SharedArrays(name, fails, "the table", **options)
    SharedArrays(f"{name}x", lambda _: ARRAYS, "another table").close()
    assert files(name) == left(name, tmp_path / "kept") == []


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
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: [tmp_path / "link", own])
    shared = SharedArrays(name, lambda _: ARRAYS, "the table")
    assert [each.parent for each in tmp_path.rglob(f"arrays-{name}*") if each.parent != theirs] == [own]
    assert f"{tmp_path / 'link'} is a link" in caplog.text
    (own / f"arrays-{name}-fedcba9876543210.data").symlink_to(theirs / "uv.lock")
    shared.close()
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    assert sorted(each.name for each in theirs.iterdir()) == sorted(names)
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: [tmp_path / "link"])
    with pytest.raises(PermissionError, match="is a link"):
        SharedArrays(name, never, "the table")


def test_only_names_that_are_made_here_are_removed(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: [tmp_path])
    tmp_path.chmod(0o700)
    foreign = ["uv.lock", f"{name}.data", f"arrays-{name}.data", f"arrays-{name}-0123.data", f"arrays-{name}.half"]
    for each in foreign:
        (tmp_path / each).touch()
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(foreign)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "other TMPDIR"])
def test_what_nobody_holds_is_not_used(name: str, on_disk: bool, elsewhere: bool, tmp_path: Path, monkeypatch) -> None:
    """As a process that was killed left it, and with other contents since then."""
    folders = [tmp_path / each for each in ("memory", "disk", "other disk")]
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: folders[:2])
    first = SharedArrays(name, lambda _: ARRAYS, "the table", on_disk=on_disk)
    (path,) = (each for each in tmp_path.rglob("arrays-*") if each.is_file())
    raw = path.read_bytes()
    links = list(folders[0].glob("elsewhere-*"))
    assert len(links) == on_disk
    first.close()
    path.write_bytes(raw[:256] + bytes(len(raw) - 256))
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: [folders[0], folders[2 if elsewhere else 1]])
    second = SharedArrays(name, lambda _: ARRAYS, "the table", on_disk=on_disk)
    assert np.array_equal(second["a"], ARRAYS["a"])
    second.close()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_what_is_not_whole_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker was killed, and a process that it had forked still holds the file."""
    monkeypatch.setattr(shared_arrays, "_user_folders", lambda: [tmp_path / "own"])
    SharedArrays(name, lambda _: ARRAYS, "the table").close()
    with open(tmp_path / "own" / f"arrays-{name}-0123456789abcdef.data", "wb+") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        for raw in (b"", bytes(4096)):
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
