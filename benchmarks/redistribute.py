"""What does redistribution add to a training step, and where does its time go?

    python benchmarks/redistribute.py [--rounds 3] [--steps 40] [--quick] [--data FOLDER]

1. Data wait: the FreeScale DataLoader on the reference set with and without `balance`, alternating in the same
   processes, in a loop of 200 ms of *emulated* compute (a sleep) and a barrier for the gradient exchange. Per step the
   longest wait of any rank counts; the share is that of the step.
2. Stages: exchanges one after another, nothing to hide behind, of samples in memory; time and bytes per rank and step.
3. Embedding stage: the same samples, moved behind the look-up as rows of D float32, there and back.
"""

import argparse
import functools
import json
import multiprocessing
import os
import queue
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common.lengths import PAPER_LIKE, REFERENCE
from common.table import emit
from parts.redistribute_embedding import DIMS, embedding_stage

from freescale_tools.write.synth.presets import reference_set
from fsdata import Balance, FreeScaleDataLoader, ParquetSource
from fsdata.balance.exchange import Assignment, GlobalBatch, RecordSpec, StatusWord, StepExchange
from fsdata.balance.options import StepPlanner
from fsdata.balance.packing import Method
from fsdata.decode.block import Block, Column, RowRefs, run
from fsranks.rank_context import resolve

WORLDS = (2, 4)
STEP_S = 0.2
PER_RANK = 128
FEW = 16  # samples a rank where embeddings travel: 4,000 events of 64 floats are a megabyte
WARM_UP = 5
STAGES = ("statuses and lengths", "plan", "plans compared", "samples")
METHODS: tuple[Method, ...] = ("fbs+swap", "repair")
SETS = {"reference set": REFERENCE, "paper-like": PAPER_LIKE}
SPEC = RecordSpec(
    names=("item", "action", "time", "user", "dense"),
    itemsize=np.array([8, 8, 8, 8, 4]),
    group=np.array([0, 0, 0, -1, -1]),
    width=np.array([0, 0, 0, 12, 10]),
    groups=("uih",),
    group_field=np.array([0]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every rank is to do."""

    paths: tuple[str, ...]
    rounds: int
    steps: int


def waits(run: Run, balance: Balance | None) -> list[float]:
    """Seconds the slowest rank waited for its batch, per step."""
    from ways.freescale import SCHEMA

    out = []
    with FreeScaleDataLoader(
        [ParquetSource(list(run.paths))], SCHEMA, batch_size=PER_RANK, num_threads=1, balance=balance
    ) as loader:
        batches = iter(loader)
        for step in range(WARM_UP + run.steps):
            dist.barrier()
            start = time.perf_counter()
            next(batches)
            waited = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(waited, dist.ReduceOp.MAX)
            if step >= WARM_UP:
                out.append(waited.item())
            time.sleep(STEP_S)
    return out


class Stopwatch:
    """Times the stages of an exchange: its collectives, in the order in which a step makes them, and the plan."""

    def __init__(self, exchange: StepExchange, planner: StepPlanner) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.sent_bytes = 0
        self._planner = planner
        group = exchange._group
        for stage, part, name in (
            ("statuses and lengths", exchange._statuses, "gather"),
            ("plans compared", exchange._plans, "gather"),
            ("samples", exchange._transfer, "move"),
        ):
            setattr(part, name, functools.partial(self._timed, stage, getattr(part, name)))
        group.all_to_all = self._counted(group.all_to_all)  # type: ignore[method-assign]

    def plan(self, batch: GlobalBatch) -> Assignment:
        return self._timed("plan", self._planner, batch)

    def _counted(self, all_to_all: Any) -> Any:
        def call(out: Any, mine: torch.Tensor, *splits: Any) -> None:
            self.sent_bytes += len(mine)
            all_to_all(out, mine, *splits)

        return call

    def _timed(self, stage: str, function: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        self.seconds[stage] += time.perf_counter() - start
        return result


def rows_of(lengths: np.ndarray, values: np.ndarray) -> RowRefs:
    """Samples of these lengths, all of whose values begin one array."""
    table, nothing = run(values.ctypes.data, len(values)), np.zeros_like(lengths)
    lists = [Column(table, nothing, lengths, owners=(values,))] * 3
    return RowRefs.of(Block.of([*lists, *(Column(table, step=0, width=width) for width in (12, 10))], len(lengths)))


def stages(
    rank: int, world_size: int, steps: int, method: Method, name: str, samples: int = PER_RANK
) -> dict[str, float]:
    """Milliseconds per stage and step of this rank, and MB sent."""
    exchange = StepExchange(resolve(), timeout_s=60)
    planner = StepPlanner(Balance(method), world_size)
    values = np.ones(SETS[name].longest, np.int64)
    watch: Stopwatch | None = None
    total = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            watch = Stopwatch(exchange, planner)
        lengths = SETS[name].batch(samples, seed=step * world_size + rank)
        table = rows_of(lengths, values)
        dist.barrier()
        start = time.perf_counter()
        exchange.step(table, SPEC, watch.plan if watch else planner, StatusWord(epoch=0, step=step))
        total += (time.perf_counter() - start) * (watch is not None)
    exchange.close()
    assert watch is not None
    milliseconds = {stage: seconds * 1e3 / steps for stage, seconds in watch.seconds.items()}
    return {**milliseconds, "all": total * 1e3 / steps, "MB sent": watch.sent_bytes / 1e6 / steps}


def _behind(rank: int, world_size: int, steps: int, name: str, dim: int) -> dict[str, float]:
    return embedding_stage(
        rank, world_size, steps=steps, samples=FEW, lengths=SETS[name], dim=dim,
        planner=StepPlanner(Balance(), world_size),
    )  # fmt: skip


def work(rank: int, world_size: int, port: int, run: Run, results: Any) -> None:
    """One rank; rank 0 reports."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    waited: dict[str, list[list[float]]] = {"plain": [], "balanced": []}
    for number in range(run.rounds):
        ways: list[tuple[str, Balance | None]] = [("plain", None), ("balanced", Balance())]
        for name, balance in ways if number % 2 == 0 else reversed(ways):
            waited[name].append(waits(run, balance))
    raw = [(name, method, stages(rank, world_size, run.steps, method, name)) for name in SETS for method in METHODS]
    steps = min(run.steps, 10)
    moved = [
        (name, dim, _behind(rank, world_size, steps, name, dim), stages(rank, world_size, steps, METHODS[0], name, FEW))
        for name in SETS
        for dim in DIMS
    ]
    if rank == 0:
        results.put((waited, raw, moved))
    dist.barrier()
    dist.destroy_process_group()


def measure(world_size: int, run: Run) -> Any:
    """Run all of it on `world_size` ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=work, args=(r, world_size, port, run, results)) for r in range(world_size)]
    for process in ranks:
        process.start()
    answer = None
    while answer is None:
        try:
            answer = results.get(timeout=1)
        except queue.Empty:
            failed = [process.exitcode for process in ranks if process.exitcode]
            if failed:
                raise SystemExit(f"a rank ended with exit code {failed[0]}; see above") from None
    for process in ranks:
        process.join()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="1 round of 10 steps; not for the record")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "freescale-reference")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the ranks: OpenMP threads that spin would take the decoder's cores
    print(f"reference set in {arguments.data} ...", file=sys.stderr)
    paths = tuple(str(path) for path in reference_set(arguments.data))
    quick = Run(paths=paths, rounds=1, steps=10)
    run = quick if arguments.quick else Run(paths=paths, rounds=arguments.rounds, steps=arguments.steps)
    answers = {world_size: measure(world_size, run) for world_size in WORLDS}

    rows = []
    for world_size, (waited, *_) in answers.items():
        plain, balanced = ([1e3 * statistics.mean(steps) for steps in waited[name]] for name in ("plain", "balanced"))
        added = [with_balance - without for with_balance, without in zip(balanced, plain, strict=True)]
        share = 100 * statistics.median(added) / (1e3 * STEP_S)
        rows.append(
            [world_size, statistics.median(plain), statistics.median(balanced), statistics.median(added), share]
        )
    emit(
        "redistribute",
        f"Data wait per step, ms ({1e3 * STEP_S:.0f} ms compute emulated by sleeping, {PER_RANK} samples a rank)",
        ["ranks", "without balance", "with balance", "added", "added, % of the step"],
        rows,
        notes=["Reference set, slowest rank of every step, mean per round, median of rounds; goal: at most 2 %."],
        extra={"waits_s": {str(world_size): waited for world_size, (waited, *_) in answers.items()}},
        data="the reference set",
    )
    emit(
        "redistribute_stages",
        "One exchange by itself, ms per step on rank 0",
        ["set", "method", "ranks", *STAGES, "all", "MB sent"],
        [
            [name, method, world_size, *(found[stage] for stage in (*STAGES, "all", "MB sent"))]
            for world_size, (_, raw, _) in answers.items()
            for name, method, found in raw
        ],
        notes=[
            "The first collective includes waiting for the slowest rank. Three int64 lists, 12 ids, 10 floats a sample."
        ],
        extra={"settings": json.loads(json.dumps({"rounds": run.rounds, "steps": run.steps}))},
        data="the reference set, lengths of the paper",
    )
    emit(
        "redistribute_embedding",
        f"Embedding stage against input stage, ms per step on rank 0, {FEW} samples a rank",
        ["set", "ranks", "D", "plan", "forward", "backward", "MB sent", "input stage: ms", "input stage: MB sent"],
        [
            [name, world_size, dim, *found.values(), before["all"], before["MB sent"]]
            for world_size, (_, _, moved) in answers.items()
            for name, dim, found, before in moved
        ],
        notes=[
            "Input stage: three int64 lists of the sample, in the prefetch thread, hidden behind the step before. "
            "Embedding stage: D float32 an event forward and back, in the training thread, not hidden.",
            "Move inputs wherever the loader is yours to change. Move embeddings where it is not (samples of a "
            "service, features made in the model), or where the inputs of an event are larger than its columns.",
        ],
        data="the reference set, lengths of the paper",
    )


if __name__ == "__main__":
    main()
