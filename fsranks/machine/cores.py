"""How many threads are worth starting."""

import os


def usable_cores() -> int:
    """Cores this process may run on; where the system does not tell (macOS), all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of_this_rank() -> int:
    """Cores this process may use, shared with the other ranks on the host."""
    return max(usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
