"""Room for files that lie in memory, taken only as far as memory is free: the system itself would go on until it ends
processes."""

import errno
import os
from pathlib import Path

_STEP = 1 << 24  # taken at a time, as others may take memory meanwhile
_SPARE = 1 << 27  # left to the processes that are there
_CGROUPS = Path("/sys/fs/cgroup")
# limit, what is used, and the line of `memory.stat` that says how much of it is given back at once: of version 2 and 1
_COUNTERS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def reserve(file: int, nbytes: int) -> None:
    """Zeros that are there: memory that is only promised would end a process at its first use.

    Raises:
        OSError: ENOMEM, so much memory is not free; ENOSPC, EFBIG: the file may not be so large. What was taken until
            then is given back when the file is cut or gone.
    """
    for begin in range(0, nbytes, _STEP):
        size = min(_STEP, nbytes - begin)
        if free_memory() < size + _SPARE:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.posix_fallocate(file, begin, size)


def free_memory() -> int:
    """Bytes that this process could use without the system ending one: of the machine, and within the limits of its
    container."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = [int(lines["MemAvailable"].split()[0]) << 10]
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, kind, own = line.split(":", 2)
        if kind in ("", "memory"):
            below = _CGROUPS / kind / own.strip("/")
            # a container may see its own group as the top one
            free += [_left_of(group) for group in (below, *below.parents) if group.is_relative_to(_CGROUPS)]
    return min(free)


def _left_of(group: Path) -> int:
    """Bytes that are left to the processes of a control group."""
    for limit, used, given_back in _COUNTERS:
        try:
            most = (group / limit).read_text().strip()
            if most != "max":
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                return int(most) - int((group / used).read_text()) + int(stat[given_back])
        except (OSError, KeyError, ValueError):
            continue
    return 1 << 62
