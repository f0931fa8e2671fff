"""Trains one model on the same samples several times: what runs on every rank of the demo.

`train` is what a user of FreeScale writes: the usual loop, with another loader for fsdata and a `with` for fscomm. All
else in this file measures it, so that the runs can be compared. `compare` runs on every rank. `PlainStep` is what
prioritized communication in parts has to be equal to.
"""

import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torchrec import JaggedTensor
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules import hash_mc_evictions
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm
from freescale_tools.console.ranks import join_ranks
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.data import HISTORY, DemoData
from freescale_tools.demo.model import SequenceModel, encode, lengths, seen
from freescale_tools.demo.results import STEPS_PER_HOUR, WARMUP, Outcome, Run, Step
from fscomm.report.report import Collisions, Forwards, Managed
from fsdata import Balance, Batch, FreeScaleDataLoader, Polynomial, fit, global_mean
from fsmeter import BubbleMeter


def train(
    data: DemoData,
    name: str,
    steps: int,
    seed: int,
    *,
    balance: Balance | None = None,
    share: bool = False,
    serve: bool = False,
    parts: int = 1,
    zch: bool = False,
) -> Run:
    """Train a fresh model and measure its steps. `serve`: with fscomm; `share`: samples share events; `parts`: in how
    many parts each step is computed; `zch`: tables are behind managed collision. Collective.
    """
    model, optimizer = build(data, seed, zch=zch)
    loader = FreeScaleDataLoader(
        data.sources,
        data.schema(share=share),
        batch_size=data.batch_size,
        mix=data.mix,
        balance=balance,
        num_threads=1,
        adapt=partial(encode, data=data),
    )
    done: list[Step] = []
    with (
        loader,
        played_clock() as clock,
        fscomm.enable(model, parts=parts) if serve else nullcontext() as comm,
        BubbleMeter(model) as meter,
    ):
        given: Iterable[Any] = loader
        if comm:
            given = comm.lookahead(loader)
        elif parts > 1:
            given = (PlainStep(batch, model, parts) for batch in loader)
        for number, step in enumerate(meter.watch(islice(given, steps))):
            clock.hour = number // STEPS_PER_HOUR
            batch = step.batch if parts > 1 else step
            began = time.thread_time_ns()
            optimizer.zero_grad()
            losses = []
            for part in step.parts() if parts > 1 else [step]:
                loss = model(part)
                global_mean(loss, part).backward()
                losses.append(loss.detach())
            optimizer.step()
            compute_ns = time.thread_time_ns() - began

            rows = [batch.features[field.name].values() for field in (*data.context, *data.history)]
            ids = [*rows[: len(data.context)], *(seen(each, batch) for each in rows[len(data.context) :])]
            done.append(
                Step(
                    compute_ns=compute_ns,
                    loss=float(torch.cat(losses).double().sum()),
                    lengths=lengths(batch, data).numpy().astype(np.int64),
                    held=len(rows[-1]),
                    checksum=sum(int(each.sum()) for each in ids),
                )
            )
        report = comm.report() if comm else None
    if dist.get_rank() == 0:
        Terminal().say(f"{name}: trained {len(done)} steps")
    return _gather(name, done, meter, report, weights(model, optimizer), zch=zch)


@contextmanager
def played_clock() -> Iterator[SimpleNamespace]:
    """The clock by which ids expire: `hour` is what the loop says, so that every run has the same hour in a step."""
    clock = SimpleNamespace(hour=0)
    clock.time = lambda: 3_600.0 * clock.hour
    with mock.patch.object(hash_mc_evictions, "time", clock):
        yield clock


class PlainStep:
    """A step of plain TorchRec, computed in parts.

    The embeddings are called once, for the whole batch, and the parts compute on what that call gave. The gradients of
    all parts go back through it together, so each table has one update. Dense gradients are exchanged with the last
    part.

    Attributes:
        batch: all samples of this rank.
    """

    def __init__(self, batch: Batch, model: DistributedModelParallel, number: int) -> None:
        self.batch = batch
        self._model = model
        self._number = number

    def parts(self) -> Iterator[Batch]:
        """The parts in order. Each is to have its forward and its backward pass before the next is asked for."""
        embeddings: Any = self._model.module.embeddings
        (ddp,) = (each for each in self._model.modules() if isinstance(each, DistributedDataParallel))
        parts = self.batch.parts(self._number)
        whole = {name: jagged.values() for name, jagged in embeddings(self.batch.features).items()}
        answers: list[dict[str, Any]] = [{} for _ in parts]
        for name, rows in whole.items():
            of_parts = [part.features[name] for part in parts]
            pieces = rows.detach().split([len(ids.values()) for ids in of_parts])
            for answer, ids, piece in zip(answers, of_parts, pieces, strict=True):
                answer[name] = JaggedTensor(piece.requires_grad_(), lengths=ids.lengths())

        given = iter(answers)
        embeddings.forward = lambda features: next(given)  # of the instance: hides that of its class
        for part in parts[:-1]:
            with ddp.no_sync():
                yield part
        yield parts[-1]
        del embeddings.forward
        gradients = [torch.cat([answer[name].values().grad for answer in answers]) for name in whole]
        torch.autograd.backward(list(whole.values()), gradients)


def build(data: DemoData, seed: int, *, zch: bool = False) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model and its optimizer: tables are sharded by rows and updated in the backward pass. Collective."""
    torch.manual_seed(seed)
    ranks = dist.get_world_size()
    model = SequenceModel(data, buckets=ranks if zch else 0)
    rows = [each for each in model.embeddings.parameters() if each.requires_grad]  # and not the ids that have them
    apply_optimizer_in_backward(RowWiseAdagrad, rows, {"lr": 0.05})
    plan = construct_module_sharding_plan(
        model.embeddings,
        {table.name: row_wise() for table in model.tables},
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=ShardingPlan({"embeddings": plan}),
        # A static graph cannot add up gradients of parts.
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False),
    )
    if zch:
        fscomm.cpu_kernels.install(sharded)  # TorchRec has kernels that write maps on CUDA only
    trained = ((name, each) for name, each in sharded.named_parameters() if each.requires_grad)
    dense = dict(in_backward_optimizer_filter(trained))
    adam = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=2e-3))
    return sharded, CombinedOptimizer([("tables", sharded.fused_optimizer), ("dense", adam)])


def weights(model: torch.nn.Module, optimizer: Any) -> str:
    """SHA-256 of the bytes of this rank's tables, maps of managed collision, dense weights and optimizer states."""
    digest = sha256()
    for leaf in tree_leaves((dict(model.state_dict()), dict(optimizer.state_dict()))):
        parts = [shard.tensor for shard in leaf.local_shards()] if isinstance(leaf, ShardedTensor) else [leaf]
        for part in parts:
            if isinstance(part, torch.Tensor):
                digest.update(part.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _gather(
    name: str, done: list[Step], meter: BubbleMeter, report: fscomm.Report | None, digest: str, *, zch: bool
) -> Run:
    """The run with the measurements of all ranks, on every rank. Collective."""
    counted = [each for step in report.steps[1:] for each in step.collisions.values()] if report else []
    ranks: list[Any] = [None] * dist.get_world_size()
    managed = report.total.managed if report else {}
    dist.all_gather_object(ranks, (done, digest, sum(counted, Collisions()), managed))
    return Run(
        name=name,
        steps=tuple(zip(*(steps for steps, *_ in ranks), strict=True)),
        seconds=meter.report(skip=WARMUP if len(done) > WARMUP else 0).mean(),
        weights=tuple(digest for _, digest, *_ in ranks),
        collisions=sum((collisions for _, _, collisions, _ in ranks), Collisions()).rate if report else None,
        fallbacks=dict(report.fallbacks) if report else {},
        managed={table: sum((of_rank[table] for *_, of_rank in ranks), Managed()) for table in managed},
        zch=zch,
        forwards=sum(report.forwards.values(), Forwards()) if report else Forwards(),
    )


def compare(data: DemoData, steps: int, seed: int, parts: int = 1, zch: bool = False) -> Outcome | None:
    """What one rank that torch's launcher started does: train four times, or six where samples can share histories.
    With `parts` above 1 it trains twice more, and computes each step in so many parts; with `zch` twice more, with
    tables behind managed collision.

    Runs that are compared follow each other, so that a machine that slows down affects both. Returns the outcome on
    rank 0.
    """
    for name in ("torchrec", "torch.fx"):  # notices that do not help users of the demo
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")
    warnings.filterwarnings("ignore", "To copy construct from a tensor")  # of MPZCH
    torch.set_num_threads(1)
    join_ranks("gloo", timeout_s=1_800)
    try:
        plain = train(data, "plain", steps, seed)
        pairs = [(plain, train(data, "prioritized", steps, seed, serve=True))]
        in_parts = []
        if parts > 1:
            alone = train(data, f"plain, {parts} parts", steps, seed, parts=parts)
            in_parts = [(alone, train(data, f"prioritized, {parts} parts", steps, seed, serve=True, parts=parts))]
        measured = [step for ranks in plain.steps[WARMUP:] for step in ranks]  # which all ranks know alike
        try:
            cost = fit([{HISTORY: step.lengths} for step in measured], [step.compute_ns / 1e9 for step in measured])
        except ValueError:  # too few steps, or steps that do not get longer with their samples
            cost = Polynomial()
        for one, both, share in (("balanced", "both", False), ("shared", "shared, both", True)):
            if data.key or not share:
                options: Any = {"balance": Balance(cost=cost), "share": share}
                alone = train(data, one, steps, seed, **options)
                pairs.append((alone, train(data, both, steps, seed, **options, serve=True)))
        if zch:
            alone = train(data, "plain, zch", steps, seed, zch=True)
            pairs.append((alone, train(data, "prioritized, zch", steps, seed, serve=True, zch=True)))
        return Outcome(pairs=(*pairs, *in_parts), cost=cost, parts=parts) if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()
