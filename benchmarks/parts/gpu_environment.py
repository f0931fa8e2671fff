"""What this machine has and lacks for the GPU parts: `python benchmarks/parts/gpu_environment.py --results FOLDER`."""

import argparse
import importlib.util
import os
import platform
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # at the end: a file there is named like a module of Python's

from common.checks import Checks
from common.environment import gpu, packages

LACKING = {
    "triton": "no kernel of the project runs",
    "cuda.bindings": "no copy-engine, and no driver probe",
    "torchdata": "the loader cannot be measured",
    "torchrec": "exactness is measured with a stand-in only",
    "fbgemm_gpu": "exactness is measured with a stand-in only",
}


def why_none() -> str:
    """Why torch can use no CUDA device; an empty text if it can."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch"
    import torch

    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} finds no CUDA device"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, metavar="FOLDER")
    checks = Checks(parser.parse_args().results, "environment")
    why = why_none()
    checks.more = {"without_gpu": why, "measured_with": {"python": platform.python_version(), **packages()}}
    if why:
        checks.put("a CUDA device", "skipped", why)
        return
    checks.put("a CUDA device", "running")
    checks.more["measured_with"] |= gpu()  # type: ignore[operator]
    with checks.of("a kernel of torch runs"):
        import torch

        found = torch.ones(1 << 20, device="cuda").sum().item()
        if found != 1 << 20:
            raise RuntimeError(f"the sum of 2^20 ones is {found}")
    checks.put("a CUDA device", "passed", _device_text(gpu()))
    for name, consequence in LACKING.items():
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: a library of it does not fit to this machine
            checks.put(name, "skipped", f"no {name}: {consequence} ({error})")
        else:
            checks.put(name, "passed")


def _device_text(found: dict[str, object]) -> str:
    text = ", ".join(f"{name} {value}" for name, value in found.items())
    return f"{text}; CUDA_DEVICE_MAX_CONNECTIONS={os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS', 'not set')}"


if __name__ == "__main__":
    main()
