"""Which processes of this machine still run: what a rank can know of its neighbours without asking them."""

import os
from pathlib import Path


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


def is_active(pid: int) -> bool:
    """Whether the process runs and neither a signal nor a debugger holds it."""
    return runs(pid) and _state(pid) not in ("T", "t")


def _state(pid: int) -> str:
    """The letter of /proc; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
