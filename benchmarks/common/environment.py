"""What figures were measured with: packages, and the GPU if torch sees one."""

import importlib.metadata
import subprocess
from typing import Any

_PACKAGES = (
    *("torch", "triton", "numba", "numpy", "cuda-bindings", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"),
    *("torchdata", "pyarrow", "polars", "datasets"),
)


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
        "driver_cuda": torch._C._cuda_getDriverVersion(),  # 13000: the newest CUDA that the driver serves
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return None  # containers may lack the program
