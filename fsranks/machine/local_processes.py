"""Which processes of this machine still run: what a rank can know of its neighbours without asking them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Neighbours:
    """The other ranks whose process runs on this machine; `pids` by rank."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = pids

    @classmethod
    def among(cls, processes: Mapping[int, Mapping[str, Any]], rank: int) -> "Neighbours":
        """Of `rank`, from what every rank's `own_process` gave."""
        here = processes[rank]["machine"]
        return cls({peer: each["pid"] for peer, each in processes.items() if peer != rank and each["machine"] == here})

    def __len__(self) -> int:
        return len(self._pids)

    def gone(self) -> list[int]:
        """The ranks whose process has ended."""
        return [rank for rank, pid in self._pids.items() if not runs(pid)]

    def active(self) -> list[int]:
        """The ranks whose process runs, and neither a signal nor a debugger holds it."""
        return [rank for rank, pid in self._pids.items() if runs(pid) and _state(pid) not in ("T", "t")]


def own_process() -> dict[str, Any]:
    """What this rank tells the others, so that they can look whether its process runs."""
    return {"machine": machine(), "pid": os.getpid()}


def machine() -> str:
    """What the processes of this machine share: its boot, and the namespace that numbers processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/pid")
    if not boot.exists() or not space.is_symlink():
        return f"of process {os.getpid()} alone"
    return f"{boot.read_text().strip()}/{os.readlink(space)}"


def runs(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not collected by its parent does not."""
    return _state(pid) not in ("", "Z", "X")


def _state(pid: int) -> str:
    """The letter of /proc; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
