"""Arrays of histories that are spilled to the disk."""

import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest
from test_shared_arrays import ARRAYS, MEMORY, OWN, files, never

from fsdata.catalog.shared_arrays import SharedArrays
from fsdata.histories.history_table import Pile


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


@pytest.fixture(params=["shared", "kept"])
def folder(request, tmp_path: Path) -> Path | None:
    """The folder in which arrays are kept, if they are."""
    return tmp_path / "kept" if request.param == "kept" else None


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
        scratch = tmp_path / OWN / f"arrays-{left}-0123456789abcdef.scratch"
        scratch.mkdir()
        (scratch / "a").write_bytes(b"1")
        scratch.with_suffix(".data").touch()
        (MEMORY / OWN / f"arrays-{left}.lock").touch()
    shared = SharedArrays(name, make, "the table", on_disk=True)
    assert np.array_equal(shared["a"], np.roll(ARRAYS["a"], 500))
    (path,) = (path.name for path in tmp_path.rglob("*") if path.is_file())
    assert path.startswith(f"arrays-{name}-")
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
