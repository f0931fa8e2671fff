"""Compiles kernels before their first call: in the constructor of a loader, or by `freescale warm`.

Numba compiles a kernel at its first call on a machine and caches it in a folder. The kernels of a loader take 10 s and
more. They are therefore compiled before ranks wait for each other, by several processes at once: each takes the first
kernel of the list that no other process is compiling. Ranks of a machine share the work in the same way.

The lists name the kernels that Python calls. Numba compiles the kernels that these call together with them, or reads
them from the cache.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsdata.kernels import columns, deal, footer, scalars, texts
from fsranks.libraries import compile_kernel, is_compiled_elsewhere, is_there
from fsranks.machine.cores import cores_of_this_rank

# Kernels that take long to compile come first, so that the processes end at about the same time.
COPYING = (columns.gather_fields, columns.find_spans, scalars.gather_flat)
READING = (footer.read_chunks, *COPYING, scalars.read_arrays, scalars.find_not_finite, scalars.spread)
RARE = (deal.to_fewest, texts.fnv1a)
_MOST_PROCESSES = 4  # more would only wait for the kernel that takes longest


def make_ready(kernels: Iterable[Any]) -> None:
    """Compile kernels that are not in numba's cache, on all cores of this rank. Blocks until its processes have ended.

    If all are in the cache, it takes a millisecond or two. Call it before other ranks wait for this one.
    """
    compile_missing(kernels, min(cores_of_this_rank(), _MOST_PROCESSES))


def compile_missing(kernels: Iterable[Any], jobs: int, on_compiled: Callable[[str], object] = str) -> int:
    """Compile kernels that are not in numba's cache, by `jobs` processes. Returns their number. Blocks until these
    processes have ended.

    on_compiled: called with the name of each kernel after its compilation.
    """
    missing = [kernel for kernel in kernels if not is_there(kernel)]
    cached = folders_of(missing)  # without a cache folder a process cannot use kernels that others compile
    with _helpers(min(jobs, len(missing)) - 1 if cached else 0, missing):
        for kernel in _free_first(missing):
            compile_kernel(kernel)
            on_compiled(_name(kernel))
    return len(missing)


def folders_of(kernels: Iterable[Any]) -> list[str]:
    """The folders of numba's cache; empty if it caches none of the kernels."""
    return sorted({str(kernel.stats.cache_path) for kernel in kernels} - {"None"})


def _free_first(kernels: Iterable[Any]) -> Iterator[Any]:
    """The kernels, first those that no other process is compiling."""
    remaining = list(kernels)
    while remaining:
        # Checked again each time, as the others make progress. If all are taken, this process waits for the first.
        kernel = next((kernel for kernel in remaining if not is_compiled_elsewhere(kernel)), remaining[0])
        remaining.remove(kernel)
        yield kernel


@contextmanager
def _helpers(count: int, kernels: Collection[Any]) -> Iterator[None]:
    """Runs `count` more processes that compile during the block. If none can be started, this process compiles all."""
    folder = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fsdata.kernels.warm", *map(_name, kernels)]
    # The folder of this package: the parent may import it from a path that a new interpreter does not have.
    environment, none = {**os.environ, "PYTHONPATH": paths}, subprocess.DEVNULL
    started: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):
            for _ in range(count if sys.executable else 0):  # a program that embeds Python has no interpreter to start
                started.append(subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=none))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _name(kernel: Any) -> str:
    return f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"


if __name__ == "__main__":  # one of `_helpers`; the arguments are the names of kernels
    names = (name.rpartition(".") for name in sys.argv[1:])
    compile_missing([getattr(importlib.import_module(module), kernel) for module, _, kernel in names], 1)
