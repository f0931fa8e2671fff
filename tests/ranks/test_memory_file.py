"""Room for files in memory: it is there, or an error says that it is not."""

import errno
from pathlib import Path

import pytest

from fsranks.machine import memory_file
from fsranks.machine.memory_file import free_memory, reserve

MIB = 1 << 20


def test_memory_is_there_when_it_was_promised(tmp_path: Path) -> None:
    """Else a process would end at its first use."""
    with (tmp_path / "file").open("wb") as file:
        reserve(file.fileno(), 20 * MIB)
    assert (tmp_path / "file").stat().st_size == 20 * MIB
    assert (tmp_path / "file").stat().st_blocks >= 20 * MIB // 512


def test_memory_that_is_not_free_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may take memory meanwhile: it is looked at before each step."""
    free = iter([1024 * MIB, 100 * MIB])
    monkeypatch.setattr(memory_file, "free_memory", lambda: next(free))
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="Cannot allocate") as caught:
        reserve(file.fileno(), 64 * MIB)
    assert caught.value.errno == errno.ENOMEM
    assert (tmp_path / "file").stat().st_size < 64 * MIB


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 9\ninactive_file 300\n"}, 1300),
        ({"memory.max": "max", "memory.current": "4000", "memory.stat": "inactive_file 300"}, 1 << 62),
        (
            {
                "memory.limit_in_bytes": "5000",
                "memory.usage_in_bytes": "4000",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 300",
            },
            1300,
        ),
        ({}, 1 << 62),
    ],
    ids=["version 2", "without a limit", "version 1", "no such group"],
)
def test_the_limits_of_a_container_count(limits: dict[str, str], free: int, tmp_path: Path) -> None:
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    assert memory_file._left_of(tmp_path) == free
    assert 0 < free_memory() < 1 << 62
