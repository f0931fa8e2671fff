"""Trains one model on the same samples: plain, balanced, prioritized, both, and with shared histories.

Every rank runs this file: `torchrun --nproc-per-node 2 -m freescale_tools.demo.training.train <job file>`.
`train` is what a user of FreeScale writes: the usual loop, with another loader for fsdata and a `with` for
fscomm.
"""

import logging
import math
import pickle
import sys
import time
import warnings
from collections.abc import Iterable
from itertools import islice
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

import fscomm
from freescale_tools.console.ranks import join_ranks
from freescale_tools.demo.data import DemoData, schema, sources
from freescale_tools.demo.model.features import HISTORY, ModelSpec
from freescale_tools.demo.model.fingerprint import fingerprint
from freescale_tools.demo.model.sequence_model import SequenceModel, encode, seen
from freescale_tools.demo.training.job import Job, Outcome
from freescale_tools.demo.training.measure import WARMUP, Run, Step, typical
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.demo.training.progress import Progress, progress_of
from fscomm.report.report import Collisions
from fsdata import Balance, Batch, FreeScaleDataLoader, Polynomial, fit, global_mean
from fsmeter import BubbleMeter

ENOUGH_TO_FIT = 16  # measured steps of single ranks; with fewer the default cost model is used


def compare(job: Job, progress: Progress) -> Outcome:
    """Train four times, or six where histories can be shared. Needs a process group. Collective.

    The two runs of a pair follow each other, so that a machine that slows down affects both.
    """
    plain = train(job, plain_loader(job.data), "plain", progress)
    prioritized = train(job, plain_loader(job.data), "prioritized", progress, serve=True)
    cost = fit_cost(plain)
    with balanced_loader(job.data, cost) as loader:
        balanced = train(job, loader, "balanced", progress)
    with balanced_loader(job.data, cost) as loader:
        both = train(job, loader, "both", progress, serve=True)
    shared: list[Run] = []
    for name, serve in (("shared", False), ("shared, both", True)) if job.data.histories else ():
        with balanced_loader(job.data, cost, share=True) as loader:
            shared.append(train(job, loader, name, progress, serve=serve))
    return Outcome(plain=plain, balanced=balanced, prioritized=prioritized, both=both, shared=tuple(shared), cost=cost)


def plain_loader(data: DemoData) -> PlainLoader:
    return PlainLoader(data, rank=dist.get_rank(), world_size=dist.get_world_size())


def balanced_loader(data: DemoData, cost: Polynomial, *, share: bool = False) -> FreeScaleDataLoader:
    """A loader that balances. Collective, as every such loader. `share`: samples of a key share events."""
    return FreeScaleDataLoader(
        sources(data),
        schema(data, share=share),
        batch_size=data.batch_size,
        mix="time" if data.time else "sequential",
        num_threads=1,
        balance=Balance(cost=cost),
    )


def train(job: Job, loader: Iterable[Batch], name: str, progress: Progress, *, serve: bool = False) -> Run:
    """Train a fresh model for the job's steps and time them; `serve`: with fscomm. Collective."""
    spec = job.data.model
    model, optimizer = build(spec, job.seed)
    if not serve:
        with BubbleMeter(model) as meter:
            steps = _loop(job, model, optimizer, meter.watch(islice(loader, job.steps)), name, progress)
        return _gather(name, spec, steps, meter, None, fingerprint(model, optimizer))
    # The batch holds raw ids, and the model encodes them into rows. fscomm needs this function to know the
    # rows ahead.
    ids = {"embeddings": lambda batch: encode(batch, spec)}
    with fscomm.enable(model, features=ids) as comm, BubbleMeter(model) as meter:
        batches = islice(comm.lookahead(loader), job.steps)
        steps = _loop(job, model, optimizer, meter.watch(batches), name, progress)
    return _gather(name, spec, steps, meter, comm.report(), fingerprint(model, optimizer))


def _loop(job: Job, model: Any, optimizer: Any, batches: Iterable[Batch], name: str, progress: Progress) -> list[Step]:
    spec = job.data.model
    steps: list[Step] = []
    asked = time.perf_counter()
    for batch in batches:
        cpu = time.thread_time()

        optimizer.zero_grad()
        losses = model(batch)
        global_mean(losses, batch).backward()
        optimizer.step()

        compute, done = time.thread_time() - cpu, time.perf_counter()
        ids = [seen(batch, feature, spec) for feature in (*spec.history, *spec.context)]
        steps.append(
            Step(
                wall=done - asked,
                compute=compute,
                loss=float(losses.detach().double().sum()),
                lengths=ids[0].lengths().to(torch.int64).numpy(),
                held=len(batch.features[spec.item.name].values()),
                checksum=sum(int(each.values().sum()) for each in ids),
            )
        )
        progress(name, len(steps))
        asked = time.perf_counter()
    return steps


def build(spec: ModelSpec, seed: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model and its optimizer. Collective.

    Large tables are sharded by rows and updated in the backward pass; everything else is replicated.
    """
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
    """The cost model of this model on this machine, from the steps of an unbalanced run.

    Collective: rank 0 fits.
    """
    steps = [step for of_rank in run.ranks for step in of_rank[WARMUP:]]
    found = [Polynomial()]
    if dist.get_rank() == 0 and len(steps) >= ENOUGH_TO_FIT:
        found = [fit([{HISTORY: step.lengths} for step in steps], [step.compute for step in steps])]
    dist.broadcast_object_list(found)
    return found[0]


def _gather(
    name: str, spec: ModelSpec, steps: list[Step], meter: BubbleMeter, report: fscomm.Report | None, weights: str
) -> Run:
    """Gather the measurements of all ranks on every rank. Collective."""
    found: list[Any] = [None] * dist.get_world_size()
    counted = [each for step in report.steps[1:] for each in step.collisions.values()] if report else []
    dist.all_gather_object(found, (steps, weights, sum(counted, Collisions())))
    collisions = sum((collisions for _, _, collisions in found), Collisions())
    return Run(
        name=name,
        ranks=[steps for steps, _, _ in found],
        parts=typical(meter.report(skip=WARMUP)),
        guess=math.log(spec.negatives + 1),
        collisions=collisions.rate if report else None,
        weights=[weights for _, weights, _ in found],
        fallbacks=report.fallbacks if report else {},
    )


def _quiet() -> None:
    """Silence notices of TorchRec and torch.fx that do not help users of the demo."""
    for name in ("torchrec", "torch.fx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")


def main(job_file: str) -> None:
    """Entry of one rank."""
    _quiet()
    torch.set_num_threads(1)
    job: Job = pickle.loads(Path(job_file).read_bytes())
    join_ranks("gloo", timeout_s=1800)
    try:
        with progress_of(job.steps, shown=dist.get_rank() == 0) as progress:
            outcome = compare(job, progress)
        if dist.get_rank() == 0:
            job.out.write_bytes(pickle.dumps(outcome))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
