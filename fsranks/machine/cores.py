"""How many threads are worth starting."""

import os


def usable_cores() -> int:
    """Cores this process may run on; where the system does not tell (macOS), all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
