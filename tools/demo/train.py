"""Trains one model on the same samples several times: what runs on every rank of the demo.

`train` is what a user of FreeScale writes: the usual loop, with another loader for fsdata and a `with` for fscomm. All
else in this file measures it, so that the runs can be compared. `PlainStep` is what prioritized communication in parts
has to be equal to.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torchrec import JaggedTensor
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.modules import hash_mc_evictions
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.data import DemoData
from freescale_tools.demo.model import SequenceModel, encode, lengths, seen
from freescale_tools.demo.results import STEPS_PER_HOUR, WARMUP, Run, Step
from fscomm.report.report import Collisions, Forwards, Managed
from fsdata import Balance, Batch, FreeScaleDataLoader, global_mean
from fsmeter import BubbleMeter

PIPELINE_DEPTH = 2  # batches that TrainPipelineSparseDist fetches beyond the one it trains on


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """How one run trains.

    Attributes:
        name: in the table.
        loop: "plain"; "pipeline", TorchRec's TrainPipelineSparseDist; "prioritized", in a block of `fscomm.enable`.
        parts: in how many parts each step is computed.
        balance: of fsdata; None: as the files have the samples.
        share: samples of one key share events.
        zch: tables are behind managed collision.
        like: the name of the run with whose losses and weights it must be bitwise identical; empty: of none.
    """

    name: str
    loop: Literal["plain", "pipeline", "prioritized"] = "plain"
    parts: int = 1
    balance: Balance | None = None
    share: bool = False
    zch: bool = False
    like: str = ""


def train(data: DemoData, variant: Variant, steps: int, seed: int) -> Run:
    """Train a fresh model and measure its steps. Collective."""
    model, optimizer = build(data, seed, zch=variant.zch)
    loader = FreeScaleDataLoader(
        data.sources,
        data.schema(share=variant.share),
        batch_size=data.batch_size,
        mix=data.mix,
        balance=variant.balance,
        num_threads=1,
        adapt=partial(encode, data=data),
    )
    done: list[Step] = []
    parts = variant.parts
    with (
        loader,
        played_clock() as clock,
        fscomm.enable(model, parts=parts) if variant.loop == "prioritized" else nullcontext() as comm,
        BubbleMeter(model) as meter,
    ):
        given: Iterable[Any] = loader
        if comm:
            given = comm.lookahead(loader)
        elif parts > 1:
            given = (PlainStep(batch, model, parts) for batch in loader)
        if variant.loop == "pipeline":
            batches = meter.watch(islice(loader, steps), ahead=PIPELINE_DEPTH)
            done = [measured(data, *step) for step in pipelined(model, optimizer, batches)]
            given = ()  # the pipeline is its own loop
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
            done.append(measured(data, batch, losses, time.thread_time_ns() - began))
        report = comm.report() if comm else None
    if dist.get_rank() == 0:
        Terminal().say(f"{variant.name}: trained {len(done)} steps")
    warm = min(WARMUP, len(done) - 1) + (PIPELINE_DEPTH if variant.loop == "pipeline" else 0)
    return _gather(variant, done, meter.report(skip=warm).mean(), report, weights(model, optimizer))


def pipelined(
    model: DistributedModelParallel, optimizer: CombinedOptimizer, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, list[Tensor], int]]:
    """Train through TorchRec's pipeline, and yield (batch, losses, CPU time in ns) of every step."""
    trained: list[tuple[Batch, list[Tensor]]] = []

    def forward(batch: Batch) -> tuple[Tensor, Tensor]:
        loss = model(batch)
        trained.append((batch, [loss.detach()]))
        return global_mean(loss, batch), loss.detach()

    pipeline: Any = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"), custom_model_fwd=forward)
    iterator = iter(batches)
    with suppress(StopIteration):
        while True:
            began = time.thread_time_ns()
            pipeline.progress(iterator)
            yield *trained.pop(), time.thread_time_ns() - began
    if not pipeline._pipelined_modules:  # it warns, and runs as a plain loop
        raise RuntimeError("TorchRec's pipeline could not trace the demo's model, so it has overlapped nothing")


def measured(data: DemoData, batch: Batch, losses: list[Tensor], compute_ns: int) -> Step:
    """What is kept of a step that this rank has trained."""
    rows = [batch.features[field.name].values() for field in (*data.context, *data.history)]
    ids = [*rows[: len(data.context)], *(seen(each, batch) for each in rows[len(data.context) :])]
    return Step(
        compute_ns=compute_ns,
        loss=float(torch.cat(losses).double().sum()),
        lengths=lengths(batch, data).numpy().astype(np.int64),
        stored=len(rows[-1]),
        checksum=sum(int(each.sum()) for each in ids),
    )


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
    variant: Variant, done: list[Step], seconds: Mapping[str, float], report: fscomm.Report | None, digest: str
) -> Run:
    """The run with the measurements of all ranks, on every rank. Collective."""
    # The first step runs as in plain TorchRec, so none of the second one's rows had to wait for it.
    counted = [each for step in report.steps[2:] for each in step.collisions.values()] if report else []
    ranks: list[Any] = [None] * dist.get_world_size()
    managed = report.total.managed if report else {}
    dist.all_gather_object(ranks, (done, digest, sum(counted, Collisions()), managed))
    return Run(
        name=variant.name,
        like=variant.like,
        steps=tuple(zip(*(steps for steps, *_ in ranks), strict=True)),
        seconds=seconds,
        weights=tuple(digest for _, digest, *_ in ranks),
        collisions=sum((collisions for _, _, collisions, _ in ranks), Collisions()).rate if report else None,
        fallbacks=dict(report.fallbacks) if report else {},
        managed={table: sum((of_rank[table] for *_, of_rank in ranks), Managed()) for table in managed},
        zch=variant.zch,
        forwards=sum(report.forwards.values(), Forwards()) if report else Forwards(),
    )
