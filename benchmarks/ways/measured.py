"""One epoch of one way, in a process of its own: `loader.py` starts this and reads the JSON line it prints.

The clock runs from the end of the imports (torch, torchrec and the way's own) to the end of the epoch, the construction
of the loader included. CPU time is user + system of the process and of the workers it has waited for.
"""

import argparse
import gc
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torchrec  # noqa: F401  imported before the clock in every way, the yardstick included

from ways import WAYS, Way, checksum
from ways.common import READ, Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("--paths", nargs="+", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--only-first", action="store_true", help="stop after the first batch")
    parser.add_argument("--checksum", action="store_true", help="read a second, untimed epoch and hash it")
    arguments = parser.parse_args()
    (way,) = (way for way in WAYS if way.name == arguments.way)
    run = Run(paths=arguments.paths, batch_size=arguments.batch_size, cache=arguments.cache)
    result = measure(way, run, only_first=arguments.only_first)
    if arguments.checksum:
        result["checksum"] = sum(checksum.of(batch) for batch in way.load()(run, **way.options)) % 2**64
    print(json.dumps(result), flush=True)
    if arguments.only_first:
        os._exit(0)  # a streaming data set of Hugging Face that is left early aborts at Python's end


def measure(way: Way, run: Run, *, only_first: bool) -> dict[str, Any]:
    """cpu_s, wall_s, first_batch_s, rows, elements (of the keys; None for the yardstick), peak_mib."""
    batches = way.load()
    gc.collect()
    rows, elements, first_s = 0, 0, 0.0
    with peak_memory(way.workers) as peak:
        cpu, start = cpu_s(), time.perf_counter()
        for batch in batches(run, **way.options):
            first_s = first_s or time.perf_counter() - start
            if isinstance(batch, int):
                rows += batch
                continue
            rows += batch.features.stride()
            elements += batch.features.values().numel()
            if only_first:
                break
        wall = time.perf_counter() - start
        used = cpu_s() - cpu
    return {
        "cpu_s": used,
        "wall_s": wall,
        "first_batch_s": first_s,
        "rows": rows,
        "elements": elements or None,
        "peak_mib": peak["mib"],
        "columns": len(READ),
    }


def cpu_s() -> float:
    """User + system seconds of this process and its ended children."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return used


@contextmanager
def peak_memory(workers: int) -> Iterator[dict[str, float]]:
    """Peak resident memory over what the imports left, in MiB.

    Without workers the kernel keeps the peak; with them it is sampled every 50 ms: the process's resident memory and
    what is private to each worker.
    """
    peak: dict[str, float] = {}
    if workers:
        with _sampled() as samples:
            yield peak
        peak["mib"] = (max(samples) - samples[0]) / 2**20
        return
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status_kib("VmRSS")
    yield peak
    peak["mib"] = (_status_kib("VmHWM") - before) / 2**10


@contextmanager
def _sampled() -> Iterator[list[int]]:
    me = psutil.Process(os.getpid())
    samples = [me.memory_info().rss]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            private = 0
            for child in me.children(recursive=True):
                try:
                    private += child.memory_full_info().uss
                except psutil.Error:
                    continue  # it has just ended
            samples.append(me.memory_info().rss + private)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux")


if __name__ == "__main__":
    main()
