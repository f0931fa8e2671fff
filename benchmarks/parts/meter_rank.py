"""One rank of benchmarks/meter.py: a small TorchRec model, and delays put into its loop under the meter."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from fsmeter import BubbleMeter

WIDTH = 16
SAMPLES = 64
LENGTH = 4
ROWS = 10_000
COMPUTE_S = 0.02
SKIPPED = 2
# The awaitables and autograd functions of TorchRec in which each exchange is waited for.
_PLACES = {
    "ids": ("dist_data", "SplitsAllToAllAwaitable"),
    "embeddings": ("comm_ops", "forward"),
    "gradients": ("comm_ops", "backward"),
}


class Net(nn.Module):
    """Embeddings, emulated compute, a small network."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(name="t", num_embeddings=ROWS, embedding_dim=WIDTH, feature_names=["f"])
        self.embeddings = EmbeddingCollection(tables=[table], device=torch.device("meta"))
        self.over = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
        self.compute_s = COMPUTE_S

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        rows = self.embeddings(ids)["f"].values()
        time.sleep(self.compute_s)
        return self.over(rows).mean()


def build(state: dict[str, Any]) -> None:
    """The model of this rank, kept in `state`."""
    world = dist.group.WORLD
    assert world is not None
    torch.manual_seed(0)
    net = Net()
    apply_optimizer_in_backward(torch.optim.SGD, net.embeddings.parameters(), {"lr": 0.01})
    sharder = EmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        net.embeddings,
        {"t": row_wise()},
        sharder=sharder,  # type: ignore[arg-type]
        local_size=world.size(),
        world_size=world.size(),
        device_type="cpu",
    )
    model = DistributedModelParallel(
        net,
        env=ShardingEnv.from_process_group(world),
        device=torch.device("cpu"),
        plan=ShardingPlan({"embeddings": plan}),
        sharders=[sharder],  # type: ignore[list-item]
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False),  # LateHook needs a backward to end
    )
    hook = LateHook()
    assert isinstance(model._dmp_wrapped_module, DistributedDataParallel)
    model._dmp_wrapped_module.register_comm_hook(hook, LateHook.reduce)
    state.update(model=model, net=net, hook=hook)


class LateHook:
    """DDP's all-reduce, `delay_s` after the backward pass has ended."""

    delay_s = 0.0

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def arrive() -> None:
            time.sleep(self.delay_s)
            dist.all_reduce(bucket.buffer())
            answer.set_result(bucket.buffer().div_(dist.get_world_size()))

        torch.autograd.Variable._execution_engine.queue_callback(arrive)  # type: ignore[attr-defined]
        return answer


@contextmanager
def late_waits(kind: str, delay_s: float) -> Iterator[None]:
    """Every exchange of `kind` takes `delay_s` longer, as over a slow link."""
    original = vars(dist.Work)["wait"]
    module, name = _PLACES[kind]

    def wait(work: Any, *args: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and not frame.f_globals["__name__"].startswith("torchrec."):
            frame = frame.f_back
        where = type(frame.f_locals.get("self")).__name__, frame.f_code.co_name
        if frame.f_globals["__name__"] == f"torchrec.distributed.{module}" and name in where:
            time.sleep(delay_s)
        return original(work, *args)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.Work.wait = original  # type: ignore[method-assign]


def loader(rank: int, *, steps: int, delay_s: float) -> Iterator[KeyedJaggedTensor]:
    random = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        time.sleep(delay_s)
        values = torch.randint(0, ROWS, (SAMPLES * LENGTH,), generator=random)
        yield KeyedJaggedTensor(keys=["f"], values=values, lengths=torch.full((SAMPLES,), LENGTH), stride=SAMPLES)


def block(state: dict[str, Any], *, what: str, delay_ms: float, steps: int) -> list[dict[str, Any]]:
    """Steps with `what` delayed: those of all ranks as the meter reports them, without the first two."""
    if not state.get("model"):
        build(state)
    rank = dist.get_rank()
    delay_s = delay_ms / 1e3
    late = rank == 1
    state["net"].compute_s = COMPUTE_S + (delay_s if what == "rank 1 computes" and late else 0)
    state["hook"].delay_s = delay_s if what == "dense" else 0
    data_s = delay_s if what == "data" or (what == "rank 1's data" and late) else 0
    waits = late_waits(what, delay_s) if what in _PLACES else late_waits("ids", 0)
    dist.barrier()
    with waits, BubbleMeter(state["model"]) as meter:
        for batch in meter.watch(loader(rank, steps=steps + SKIPPED, delay_s=data_s)):
            state["model"](batch).backward()
    return meter.report(skip=SKIPPED).to_dict()["steps"]
