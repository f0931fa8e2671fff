"""What figures were measured with: the head of every record."""

import ctypes
import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGES = (
    *("torch", "triton", "numba", "numpy", "cuda-bindings", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"),
    *("torchdata", "pyarrow", "polars", "datasets"),
)


def head(data: str) -> dict[str, Any]:
    """What every record begins with. `data`: what was measured on, in a few words.

    Folders of this machine are left out of the command. A commit ends in `-dirty` if files differ from it, other than
    records: a benchmark that writes two has changed one when it writes the other.
    """
    program = Path(sys.argv[0]).resolve()
    script = program.relative_to(_ROOT).as_posix() if program.is_relative_to(_ROOT) else program.name
    options = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "command": shlex.join(["python", script, *options]),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": data,
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(), **gpu()},
        "versions": packages(),
    }


def _commit() -> str:
    git = ("git", "-C", str(_ROOT))
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (_output(*git, "describe", "--always", "--exclude=*") or "unknown") + ("-dirty" if changed else "")


def need_gpu() -> None:
    """Ends a program that can measure nothing here, with status 2."""
    import torch

    if not torch.cuda.is_available():
        print(f"{Path(sys.argv[0]).name} needs a GPU, and there is none here: nothing measured, nothing written")
        sys.exit(2)


def packages() -> dict[str, str]:
    """Those that are installed, with their versions."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def gpu() -> dict[str, Any]:
    """The first CUDA device, how many there are, driver and CUDA versions; empty where torch cannot use any."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
        "driver_cuda": _driver_cuda(),  # 13000: the newest CUDA that the driver serves
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    """None in containers that lack the program."""
    printed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return printed.split("\n")[0] if printed else None


def _output(*command: str) -> str:
    """What a command prints; an empty text where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _driver_cuda() -> int:
    """Asked of the driver itself: not every torch with CUDA has a call for it."""
    version = ctypes.c_int()
    if problem := ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
        raise RuntimeError(f"cuDriverGetVersion ended with {problem}")
    return version.value
