"""How far does the host run ahead of the GPU, and how much of a step is communication that is not hidden?

    python benchmarks/run_ahead.py [--steps 30] [--transports host-staged copy-engine nccl nccl-ce]
    python benchmarks/run_ahead.py --device cpu --transports gloo      only shows that the program runs

Two ranks, each on a GPU of its own, train one model: without look-ups (compute), plainly, with TorchRec's
TrainPipelineSparseDist, and with fscomm over each transport. What all but the first leave in the tables must be the
same to the bit: a way that leaves something else is said to, and has no times. Ranks that share the only GPU have no
times either: they take turns on it, and NCCL takes them for ranks of two hosts.

host ms: of a step, until the loop has issued it. step ms: until the device has done it, too. ahead ms: how much later
than the host the device is done with the last step. exposed ms: a step minus one without look-ups. Needs torchrec.
"""

import argparse
import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from common.checks import Checks
from common.ranks import run_ranks, slowest
from common.table import RESULTS, add_results_option, emit
from torch import nn

RANKS = 2
COMPUTE, PLAIN, PIPELINE = "compute", "plain", "TrainPipelineSparseDist"
TRANSPORTS = ("host-staged", "copy-engine", "nccl", "nccl-ce")
COLUMNS = ("way", "host ms", "step ms", "ahead ms", "exposed ms", "same to the bit")
FEATURES = ("a", "b")
SHARED = {"FREESCALE_SHARED_GPU": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}  # by ranks with one GPU
WARM, TAIL = 6, 2  # steps at the start and at the end that are not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """ids: of each feature of a rank's batch. hidden, layers: of the dense part."""

    rows: int
    width: int
    ids: int
    hidden: int
    layers: int


SIZES = {
    "cuda": Sizes(rows=1_000_000, width=128, ids=32_768, hidden=2_048, layers=6),
    "cpu": Sizes(rows=2_000, width=16, ids=256, hidden=32, layers=2),
}


class Model(nn.Module):
    """Gives (loss, rows), as TorchRec's pipelines want it. `tables`: None, where rows are given."""

    def __init__(self, sizes: Sizes, tables: nn.Module | None) -> None:
        super().__init__()
        self.tables = tables
        widths = [sizes.width, *[sizes.hidden] * sizes.layers]
        layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
        self.dense = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.tables is None:
            rows = given.requires_grad_()
        else:
            found = self.tables(given)
            rows = torch.cat([found[name].values() for name in FEATURES])
        return self.dense(rows).mean(), rows.detach()


@dataclass(frozen=True, slots=True)
class Trained:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    where: torch.device

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        loss, _ = self.model(batch)
        loss.backward()
        self.optimizer.step()


Steps = Callable[[Trained, Sequence[Any]], Iterator[None]]
"""Trains on the batches, which lie on the host, one by one."""


def plain(trained: Trained, batches: Sequence[Any]) -> Iterator[None]:
    for batch in batches:
        trained.step(batch.to(trained.where, non_blocking=True))
        yield


def pipeline(trained: Trained, batches: Sequence[Any]) -> Iterator[None]:
    from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist

    made = TrainPipelineSparseDist(trained.model, trained.optimizer, trained.where)
    coming = iter(batches)
    try:
        for _ in batches:
            made.progress(coming)
            yield
    finally:
        made.detach()


def served(trained: Trained, batches: Sequence[Any], *, transport: str) -> Iterator[None]:
    import fscomm

    with fscomm.enable(trained.model, transport=transport, strict=True) as comm:
        for batch in comm.lookahead(batches, trained.where):
            trained.step(batch)
            yield


def without_tables(sizes: Sizes, where: torch.device) -> Trained:
    torch.manual_seed(0)
    model = Model(sizes, None).to(where)
    return Trained(model, torch.optim.SGD(model.parameters(), lr=0.01), where)


def with_tables(sizes: Sizes, where: torch.device, group: dist.ProcessGroup) -> Trained:
    """The same weights at every call, on all ranks; tables are row-wise."""
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    torch.manual_seed(0)
    configs = [
        EmbeddingConfig(name=name, num_embeddings=sizes.rows, embedding_dim=sizes.width, feature_names=[name])
        for name in FEATURES
    ]
    net = Model(sizes, EmbeddingCollection(tables=configs, device=torch.device("meta")))
    apply_optimizer_in_backward(RowWiseAdagrad, net.tables.parameters(), {"lr": 0.02})
    sharder: Any = EmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        net.tables, dict.fromkeys(FEATURES, row_wise()), sharder=sharder, local_size=gpus() or RANKS, world_size=RANKS,
        device_type=where.type,
    )  # fmt: skip
    env, plans = ShardingEnv.from_process_group(group), ShardingPlan({"tables": plan})
    model = DistributedModelParallel(net, env=env, device=where, plan=plans, sharders=[sharder])
    dense = [weight for name, weight in model.named_parameters() if "dense" in name]
    return Trained(model, torch.optim.SGD(dense, lr=0.01), where)


def batches(sizes: Sizes, rank: int, steps: int, where: torch.device) -> list[Any]:
    """Of random ids, of which two steps have some in common; in page-locked memory for a GPU."""
    from torchrec import KeyedJaggedTensor

    made = []
    for step in range(steps):
        numbers = torch.Generator().manual_seed(step * RANKS + rank)
        ids = torch.randint(0, sizes.rows // 4, (len(FEATURES) * sizes.ids,), generator=numbers)
        ids = (ids + step * sizes.rows // 8) % sizes.rows
        lengths = torch.ones(len(ids), dtype=torch.int64)
        features = KeyedJaggedTensor(keys=list(FEATURES), values=ids, lengths=lengths)
        made.append(features.pin_memory() if where.type == "cuda" else features)
    return made


def timed(steps: Iterator[None], measured: int, where: torch.device) -> list[float]:
    """host, step and ahead ms; steps that are left over run without a look at the clock."""
    wait = partial(torch.cuda.synchronize, where) if where.type == "cuda" else lambda: None
    start = issued = done = 0.0
    for number, _ in enumerate(steps, 1):
        if number == WARM:
            wait()
            start = time.perf_counter()
        if number == WARM + measured:
            issued = time.perf_counter()
            wait()
            done = time.perf_counter()
    return [1e3 * (issued - start) / measured, 1e3 * (done - start) / measured, 1e3 * (done - issued)]


def digest(model: nn.Module) -> str:
    """Of this rank's tables and of the dense weights."""
    found = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        shards = [each.tensor for each in value.local_shards()] if hasattr(value, "local_shards") else [value]
        for shard in shards:
            found.update(shard.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def work(rank: int, world_size: int, device: str, transports: Sequence[str], measured: int) -> dict[str, Any]:
    """By way: times of the slowest rank, and what this rank's tables hold; or why there are none."""
    where = torch.device(device, rank % gpus()) if device == "cuda" else torch.device(device)
    sizes, count = SIZES[device], WARM + measured + TAIL
    group: Any = dist.group.WORLD
    if device == "cuda":
        torch.cuda.set_device(where)
        if gpus() < RANKS:
            os.environ |= SHARED | {"NCCL_HOSTID": f"run-ahead-{rank}"}
        group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    rows = torch.rand(len(FEATURES) * sizes.ids, sizes.width)
    results: dict[str, Any] = {
        COMPUTE: (slowest(timed(plain(without_tables(sizes, where), [rows] * count), measured, where)), "")
    }
    data = batches(sizes, rank, count, where)
    ways: dict[str, Steps] = {PLAIN: plain, PIPELINE: pipeline}
    ways |= {f"fscomm, {name}": partial(served, transport=name) for name in transports}
    for way, steps in ways.items():
        trained = with_tables(sizes, where, group)
        try:
            results[way] = slowest(timed(steps(trained, data), measured, where)), digest(trained.model)
        except Exception as error:  # all ranks have the same reason: a transport that is not there
            results[way] = f"{type(error).__name__}: {error}"
    return results


def gpus() -> int:
    """That the ranks use; a shard of a table is placed on GPU `rank % gpus()`."""
    return min(RANKS, torch.cuda.device_count())


def table(of_ranks: Sequence[dict[str, Any]], *, shared: bool) -> tuple[list[list[Any]], list[str]]:
    """Rows, and what could not be measured and why. shared: the GPU, by all ranks."""
    rows, notes = [], []
    (_, without, _), _ = of_ranks[0][COMPUTE]
    for way, first in of_ranks[0].items():
        if isinstance(first, str):
            notes.append(f"{way}: {first}")
            continue
        (host, step, ahead), _ = first
        same = way == COMPUTE or all(of_rank[way][1] == of_rank[PLAIN][1] for of_rank in of_ranks)
        times = [host, step, ahead, step - without] if same and not shared else [None] * 4
        rows.append([way, *times, "yes" if same else "NO"])
    return rows, notes


def lacking(device: str) -> str:
    if importlib.util.find_spec("torchrec") is None:
        return "torchrec is not installed"
    if device == "cuda" and not gpus():
        return "there is no GPU"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--transports", nargs="*", default=TRANSPORTS)
    parser.add_argument("--steps", type=int, default=30)
    add_results_option(parser)
    given = parser.parse_args()
    if why := lacking(given.device):
        print(f"skipped: {why}")
        if given.results != RESULTS:  # a record stays
            Checks(given.results, "run_ahead").put("two ranks", "skipped", why)
        return
    of_ranks = run_ranks(RANKS, work, given.device, given.transports, given.steps)
    rows, notes = table(of_ranks, shared=given.device == "cuda" and gpus() < RANKS)
    emit(
        "run_ahead",
        f"Two ranks on {given.device}: what the host issues, and what the device does",
        COLUMNS,
        rows,
        notes,
        extra={"sizes": asdict(SIZES[given.device])},
        data="random ids, made as it runs",
        results=given.results,
    )


if __name__ == "__main__":
    main()
