"""Plays seeds of `test_faults`, in as many processes as there are cores; says which of them break a promise.

make faults                        10,000 seeds
make faults SEEDS="4711 4712"      from 4711 up to 4712, without the latter: to replay a failure
"""

import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import conftest  # noqa: F401  every folder of tests can be imported from
from test_faults import play

PER_TASK = 100


def failures(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            play(seed)
        except BaseException:
            found.append(f"seed {seed}:\n{traceback.format_exc()}")
    return found


def main(first: int, end: int) -> int:
    tasks = [range(at, min(at + PER_TASK, end)) for at in range(first, end, PER_TASK)]
    broken = 0
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for found in processes.map(failures, tasks):
            broken += len(found)
            print(*found, sep="\n", end="", flush=True)
    print(f"{end - first} seeds, {broken} broken promises")
    return broken > 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
