"""All that needs a GPU, on any machine that has one: one command, one part per question.

    make gpu                                    all parts
    make gpu PARTS="kernels probes"             some of them
    python benchmarks/gpu.py kernels probes     the same

Each part has its own time limit. A part and the environment, which always comes first, fit into 10 minutes. The run
goes on when a part fails. Every part writes `benchmarks/results/gpu/<part>.json`. At the end stands a table: what was
asked, what was reached, what failed and where. The status is 1 if something failed. Without a GPU it says so, and the
status is 0.

torch, triton, numpy, numba and pytest are enough. What else is lacking is told by the part `environment`.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.run_parts import RESULTS, Part, Step, run, summary
from common.table import argument_parser

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "gpu"
ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # which every transport asks for
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # else a look for a GPU spoils CUDA for processes that are forked later
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), str(ROOT / "benchmarks" / "parts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
}


def python(script: str, *arguments: str, limit_s: float, **environment: str) -> Step:
    command = (sys.executable, f"benchmarks/{script}", *arguments, "--results", RESULTS)
    return Step(command=command, limit_s=limit_s, environment=environment)


def tests(*arguments: str, limit_s: float) -> Step:
    """Those with the mark `gpu`. Warnings of other versions than those of `make test` are no errors."""
    options = ("-m", "gpu", "-o", "filterwarnings=default", "-p", "pytest_outcomes", "--outcomes", RESULTS)
    return Step(command=(sys.executable, "-m", "pytest", *options, *arguments), limit_s=limit_s)


PARTS = (
    Part(
        name="environment",
        asked="what is here, and what is lacking",
        steps=(python("parts/gpu_environment.py", limit_s=80),),
    ),
    Part(
        name="kernels",
        asked="are kernels right, how fast (Figure 7)",
        steps=(tests("tests/gpu/kernels", limit_s=180), python("kernels.py", limit_s=240)),
    ),
    Part(
        name="transports",
        asked="do rows travel without SMs, and right",
        steps=(tests("tests/gpu/transports", limit_s=480),),
    ),
    Part(
        name="probes",
        asked="what does the driver do",
        steps=(
            python("gpu_probe.py", "stalls", limit_s=100),
            python("gpu_probe.py", "stalls", limit_s=100, CUDA_DEVICE_MAX_CONNECTIONS="8"),
            python("gpu_probe.py", "copies", limit_s=100),
            python("gpu_probe.py", "growth", limit_s=120),
        ),
    ),
    Part(
        name="contention",
        asked="what do transfers cost compute (Figure 10)",
        steps=(python("contention.py", limit_s=480),),
    ),
    Part(
        name="feeding",
        asked="how long a GPU waits for the loader",
        steps=(python("feeding.py", limit_s=480),),
    ),
    Part(
        name="exactness",
        asked="two processes: equal to the bit",
        steps=(tests("tests/gpu", "--ignore=tests/gpu/kernels", "--ignore=tests/gpu/transports", limit_s=480),),
    ),
)


def chosen(names: Sequence[str]) -> list[Part]:
    """In the order of `PARTS`; all for no name. The environment always comes first: the others tell their versions."""
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no part {', '.join(unknown)}: the parts are {', '.join(known)}")
    return [part for part in PARTS if not names or part.name in (*names, PARTS[0].name)]


def report(record: dict[str, Any], folder: Path) -> None:
    """Writes `<part>.json`, and prints what failed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['part']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['part']}: {record['reached']}; {record['seconds']:.0f} s -> {_shown(path)}", flush=True)
    for step in record["steps"]:
        if step["problem"]:
            tail = step["output"][-3000:]
            print(f"--- {step['step']}: {step['problem']}. The end of what it printed:\n{tail}", flush=True)


def run_all(parts: Sequence[Part], folder: Path) -> int:
    """The first part tells whether there is a GPU. Returns the status of the process."""
    first = run(parts[0])
    found = first["steps"][0]["found"].get("environment", {})
    if why := found.get("without_gpu"):
        print(f"no GPU to measure on, nothing measured and nothing written: {why}")
        return 0
    records = []
    for record in itertools.chain([first], map(run, parts[1:])):
        records.append(record | {"measured_with": found.get("measured_with", {})})
        report(records[-1], folder)
    print(summary(records))
    print(f"all that was found: {_shown(folder)}")
    return int(any(record["failures"] for record in records))


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.set_defaults(results=KEPT)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in PARTS))
    arguments = parser.parse_args()
    parts, folder = chosen(arguments.parts), arguments.results.resolve()
    os.chdir(ROOT)
    os.environ.update(ENVIRONMENT)
    sys.exit(run_all(parts, folder))


if __name__ == "__main__":
    main()
