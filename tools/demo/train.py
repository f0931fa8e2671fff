"""The training job: the same model, steps and samples with a plain DataLoader and with FreeScale.

Every rank runs this file under torchrun: `torchrun --nproc-per-node 2 -m freescale_tools.demo.train <job file>`.
What a user of FreeScale writes is `train`: the loop is the one they have, only the loader is another.
"""

import logging
import pickle
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from fsdata import Balance, FreeScaleDataLoader, Polynomial, fit, global_mean

from .baseline import PlainLoader
from .data import HISTORY, schema, sources
from .job import Job, Outcome
from .measure import WARMUP, Run, Step
from .model import SequenceModel
from .progress import Progress, progress_of
from .spec import ModelSpec

ENOUGH_TO_FIT = 16  # measured steps of single ranks; with fewer the default cost model is used


def compare(job: Job, progress: Progress) -> Outcome:
    """Train twice and return what was measured; needs a process group. Collective."""
    data, rank, world_size = job.data, dist.get_rank(), dist.get_world_size()
    plain_loader = PlainLoader(data, rank=rank, world_size=world_size)
    plain = _gather("DataLoader", train(job, plain_loader, "DataLoader", progress))
    cost = fit_cost(plain)
    with FreeScaleDataLoader(
        sources(data),
        schema(data),
        batch_size=data.batch_size,
        mix="time" if data.time else "sequential",
        num_threads=1,
        balance=Balance(cost=cost),
    ) as loader:
        balanced = _gather("FreeScale", train(job, loader, "FreeScale", progress))
    return Outcome(plain=plain, balanced=balanced, cost=cost)


def train(job: Job, loader: Iterable[Any], name: str, progress: Progress) -> list[Step]:
    """Train a fresh model for the job's steps and time them. Collective."""
    model, optimizer = build(job.data.model, job.seed)
    item = job.data.model.item.name
    steps: list[Step] = []
    batches = iter(loader)
    while len(steps) < job.steps:
        asked = time.perf_counter()
        batch = next(batches)
        got, cpu = time.perf_counter(), time.thread_time()

        optimizer.zero_grad()
        losses = model(batch)
        global_mean(losses, batch).backward()
        optimizer.step()

        compute, done = time.thread_time() - cpu, time.perf_counter()
        loss = float(losses.detach().double().sum())
        steps.append(
            Step(
                wall=done - asked,
                compute=compute,
                wait=got - asked,
                loss=loss,
                lengths=batch.features[item].lengths().to(torch.int64).numpy(),
                checksum=int(batch.features.values().sum()),
            )
        )
        progress(name, len(steps), loss / max(len(losses), 1))
    return steps


def build(spec: ModelSpec, seed: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model with row-wise sharded tables, updated in the backward pass, and a replicated dense half. Collective."""
    torch.manual_seed(seed)
    model = SequenceModel(spec)
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.05})
    sharder = EmbeddingCollectionSharder()
    row_wise = ParameterConstraints(sharding_types=["row_wise"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu"),
        storage_reservation=FixedPercentageStorageReservation(percentage=0.1),
        constraints={config.name: row_wise for config in model.embeddings.embedding_configs()},
    )
    plan = planner.collective_plan(model, [sharder], dist.group.WORLD)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[sharder])
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    adam = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=2e-3))
    return sharded, CombinedOptimizer([sharded.fused_optimizer, adam])


def fit_cost(run: Run) -> Polynomial:
    """The cost model of this model on this machine, from the steps of an unbalanced run. Collective: rank 0 fits."""
    steps = [step for of_rank in run.ranks for step in of_rank[WARMUP:]]
    found = [Polynomial()]
    if dist.get_rank() == 0 and len(steps) >= ENOUGH_TO_FIT:
        found = [fit([{HISTORY: step.lengths} for step in steps], [step.compute for step in steps])]
    dist.broadcast_object_list(found)
    return found[0]


def _gather(name: str, steps: list[Step]) -> Run:
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, steps)
    return Run(name=name, ranks=ranks)


def _quiet() -> None:
    """Keep notices of TorchRec and torch.fx that no user of the demo can act on away from its table."""
    for name in ("torchrec", "torch.fx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")


def main(job_file: str) -> None:
    """Entry of one rank."""
    _quiet()
    torch.set_num_threads(1)
    job: Job = pickle.loads(Path(job_file).read_bytes())
    dist.init_process_group("gloo")
    try:
        with progress_of(job.steps, shown=dist.get_rank() == 0) as progress:
            outcome = compare(job, progress)
        if dist.get_rank() == 0:
            job.out.write_bytes(pickle.dumps(outcome))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
