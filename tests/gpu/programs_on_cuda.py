"""One rank of a job that plays training programs on its GPU, plainly and with fscomm, and compares every bit.

    torchrun --nproc-per-node 2 tests/gpu/programs_on_cuda.py --transport nccl --random 20 --seed 1

The programs are those of `tests/comm/exactness`: what loops often do, on models of all shardings, and random ones.
Ranks for which there are too few GPUs share one, which NCCL takes for GPUs of several hosts. Without any GPU everything
runs on the CPU (`--transport gloo`). Rank 0 prints a line of JSON for each program, which says what differs on which
rank. The status is 1 where something does; an error ends the program, and `--first N` goes on after it.

--hot: thousands of gradients for each row. fbgemm adds up more than 1,024 by atomics, in any order, unless
deterministic algorithms are on: without them the plain loop must not repeat.
"""

import argparse
import json
import logging
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SHARED = {"FREESCALE_SHARED_GPU": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
MODELS = ("several", "pooled mixed", "tiny", "one KJT", "called twice", "pooled table mean", "quantised")
LIMIT_S = 60  # of an exchange
# Others have kernels of their own for every option, which builds of fbgemm for one kind of GPU leave out.
OPTIMIZERS = ("sgd", "adagrad", "rowwise", "adam")


def place(rank: int) -> torch.device:
    """Sets where models and batches are: `exact_model` reads it when it is imported."""
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ["FREESCALE_TEST_DEVICE"] = str(device)
    if gpus < ranks:
        os.environ |= SHARED | {"NCCL_HOSTID": f"programs-on-cuda-{rank}"}
    return device


def chosen(given: argparse.Namespace) -> list[tuple[str, Any, Any]]:
    """Name, model and operations of each program; the same on all ranks."""
    from exact_configs import CONFIGS, configs
    from hypothesis import HealthCheck, Phase, seed, settings
    from hypothesis import given as drawn
    from programs import SHORT, Different, operations_of, programs
    from usual_programs import USUAL

    found: list[tuple[str, Any, Any]] = []
    if given.hot:
        found.append(("hot", hot(), operations_of("train_on:3 train_on:2")))
    for number, (name, text) in enumerate(USUAL.items()):
        for model in given.models[number % len(given.models) :][: given.usual]:
            found.append((f"{name}; {model}", repeating(CONFIGS[model]), operations_of(text)))

    @seed(given.seed)
    @settings(
        max_examples=4 * given.random + 1,  # of which some cannot run, or are no programs worth it
        derandomize=False,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @drawn(config=configs(), operations=programs(SHORT))
    def draw(config: Any, operations: Any) -> None:
        if can_run(config) and len(operations) > SHORT // 2 and len(drawn_ones) < given.random:
            with different.check(config, operations):
                drawn_ones.append((f"{' '.join(map(str, operations))}; {config}", repeating(config), operations))

    drawn_ones: list[tuple[str, Any, Any]] = []
    different = Different()
    draw()
    everyones = [found + drawn_ones]
    dist.broadcast_object_list(everyones)
    return everyones[0]


def hot() -> Any:
    from exact_model import Config, Table

    row = Table(name="r", rows=6, sharding="row", features=("r0", "r1"))
    table = Table(name="t", rows=6, sharding="table", features=("t0",), home=1)
    return Config(modules={"a": (row, table)}, static_graph=False, max_batch=8, even=True, max_length=2_000)


def repeats(rank: int, size: int, config: Any, loop: Any) -> bool:
    """Whether the plain loop does, on this rank, without deterministic algorithms."""
    from exact import differences, train

    torch.use_deterministic_algorithms(False)
    one, other = (train(rank, size, config, loop, "plain").log for _ in range(2))
    torch.use_deterministic_algorithms(True, warn_only=True)
    return not differences(one, other)


def can_run(config: Any) -> bool:
    ways = {table.sharding for tables in config.modules.values() for table in tables}
    halves = any(table.precision != "FP32" for tables in config.modules.values() for table in tables)
    fails = config.optimizer == "adam" and halves  # fbgemm's own kernel
    return config.optimizer in OPTIMIZERS and not fails and not config.fused and not ways & {"host", "grid"}


def repeating(config: Any) -> Any:
    """On CUDA fp16 rows are rounded at random, if not asked otherwise, and then not served."""
    tables = [table for of_module in config.modules.values() for table in of_module]
    rounds = any(table.precision != "FP32" for table in tables)
    return config.but(fused={**config.fused, "stochastic_rounding": False}) if rounds else config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="host-staged")
    parser.add_argument("--models", nargs="+", default=MODELS, help="that the usual programs train")
    parser.add_argument("--usual", type=int, default=0, help="models that each of the usual programs trains")
    parser.add_argument("--random", type=int, default=0, help="how many random programs")
    parser.add_argument("--seed", type=int, default=1, help="of the random programs")
    parser.add_argument("--hot", action="store_true", help="thousands of gradients for a row")
    parser.add_argument("--first", type=int, default=0, help="number of the first program that is played")
    given = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = place(rank)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("fscomm").setLevel(logging.ERROR)  # each line says what ran plainly
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import conftest  # noqa: F401  the folders of the tests can be imported from
    from exact import compare
    from programs import play

    backends = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backends, timeout=timedelta(seconds=LIMIT_S))
    status = 0
    for number, (name, config, operations) in enumerate(chosen(given)):
        if number < given.first:
            continue
        if rank == 0:
            print(json.dumps({"program": number, "plays": name}), flush=True)
        start = time.monotonic()
        options = {"timeout_s": LIMIT_S, "transport": given.transport}
        loop = play(operations)
        found, said = compare(rank, size, config, loop, "fscomm", options)
        if name == "hot" and device.type == "cuda" and repeats(rank, size, config, loop):
            found.append("the plain loop repeats without deterministic algorithms, too")
        answers: list[Any] = [None] * size
        dist.all_gather_object(answers, found)
        differ = {by: each for by, each in enumerate(answers) if each}
        if rank == 0:
            line = {"program": number, "differ": differ, "plainly": said.get("fallbacks")}
            print(json.dumps(line | {"seconds": round(time.monotonic() - start, 1)}), flush=True)
        status |= bool(differ)
    dist.destroy_process_group()
    sys.exit(status)


if __name__ == "__main__":
    main()
