"""One rank of `test_fscomm_cuda`: trains a sharded model on its GPU plainly and with fscomm, and compares every bit.

    torchrun --nproc-per-node 2 tests/gpu/fscomm_on_cuda.py TRANSPORT [rows | bags | hot]

rows: an EmbeddingCollection, row- and table-wise. bags: an EmbeddingBagCollection, the same; on CUDA row-wise bags are
served on two ranks. hot: rows again, most ids one of three. fbgemm adds up more than 1,024 gradients of a row by
atomics, in any order, unless deterministic algorithms are on: without them the plain loop must not repeat, with them it
must.

Ranks for which there are too few GPUs share one, which NCCL takes for GPUs of several hosts. Without any GPU it runs on
the CPU (TRANSPORT: gloo), which only shows that the program runs.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import fscomm

ROWS, WIDTH, SAMPLES, STEPS = 400, 16, 8, 20
FEATURES = {"a0": "a", "a1": "a", "b0": "b"}
HOT, LONGEST_HOT = 3, 2_000  # two ranks have some 4,800 gradients for each hot row of b in a step, twice as many of a
SHARED = {"FREESCALE_SHARED_GPU": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}


class Model(nn.Module):
    """Every occurrence has a gradient of its own; of bags, every vector."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled
        config: Any = EmbeddingBagConfig if pooled else EmbeddingConfig
        tables = [
            config(
                name=table,
                num_embeddings=ROWS,
                embedding_dim=WIDTH,
                feature_names=[feature for feature, of in FEATURES.items() if of == table],
            )
            for table in ("a", "b")
        ]
        collection: Any = EmbeddingBagCollection if pooled else EmbeddingCollection
        self.embeddings = collection(tables=tables, device=torch.device("meta"))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found = self.embeddings(features)
        if self.pooled:
            vectors = found.values().view(-1, WIDTH)
        else:
            vectors = torch.cat([found[feature].values() for feature in FEATURES])
        weight = 1 + torch.arange(len(vectors), device=vectors.device)[:, None] % 97 / 10
        return self.last(torch.tanh(vectors * weight)).mean()


def batch(step: int, rank: int, *, hot: bool) -> KeyedJaggedTensor:
    random = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, LONGEST_HOT if hot else 6, (len(FEATURES) * SAMPLES,), generator=random)
    values = torch.randint(0, ROWS // 2, (int(lengths.sum()),), generator=random)
    values = (values + step * ROWS // 4) % ROWS
    if hot:
        often = torch.rand(len(values), generator=random) < 0.9
        values[often] %= HOT
    return KeyedJaggedTensor(keys=list(FEATURES), values=values, lengths=lengths, stride=SAMPLES)


def train(rank: int, size: int, device: torch.device, kind: str, *, served: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    net = Model(pooled=kind == "bags")
    apply_optimizer_in_backward(RowWiseAdagrad, net.embeddings.parameters(), {"lr": 0.05})
    sharder: Any = EmbeddingBagCollectionSharder() if net.pooled else EmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        net.embeddings,
        {"a": row_wise(), "b": table_wise(rank=size - 1)},
        sharder=sharder,
        local_size=gpus_here() or size,  # a shard is placed on device `rank % local_size`: it must be that of the rank
        world_size=size,
        device_type=device.type,
    )
    group = dist.group.WORLD
    assert group is not None
    model = DistributedModelParallel(
        net,
        env=ShardingEnv.from_process_group(group),
        device=device,
        plan=ShardingPlan({"embeddings": plan}),
        sharders=[sharder],
    )
    dense = torch.optim.SGD([p for name, p in model.named_parameters() if "last" in name], lr=0.05)
    losses = []

    def loop(batches: Iterable[KeyedJaggedTensor]) -> None:
        for features in batches:
            dense.zero_grad()
            loss = model(features)
            loss.backward()
            dense.step()
            losses.append(loss.detach())

    data = [batch(step, rank, hot=kind == "hot") for step in range(STEPS)]
    if device.type == "cuda":
        data = [each.pin_memory() for each in data]
    if served:
        with fscomm.enable(model, transport=sys.argv[1], strict=True) as comm:
            loop(comm.lookahead(data, device))
        assert sum(each.unique_colliding for each in comm.report().total.collisions.values()) > 0
    else:
        loop(each.to(device) for each in data)
    found = {"losses": torch.stack(losses)}
    for name, value in model.state_dict().items():
        shards = value.local_shards() if hasattr(value, "local_shards") else None
        for number, shard in enumerate(shards or ()):
            found[f"{name}/{number}"] = shard.tensor.clone()
        if shards is None:
            found[name] = value.clone()
    return found


def differ(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in one if not torch.equal(one[name], two[name])]


def gpus_here() -> int:
    """GPUs that ranks of this host use."""
    return min(int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count())


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind = sys.argv[2] if len(sys.argv) > 2 else "rows"
    device = torch.device("cpu")
    if gpus_here():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus_here())
        torch.cuda.set_device(device)
    if 0 < gpus_here() < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ |= SHARED | {"NCCL_HOSTID": f"fscomm-on-cuda-{rank}"}
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    if kind == "hot":
        if device.type == "cuda":
            without = [train(rank, size, device, kind, served=False) for _ in range(2)]
            assert differ(*without), "the plain loop repeats without deterministic algorithms, too"
        torch.use_deterministic_algorithms(True, warn_only=True)
    plain, again, served = (train(rank, size, device, kind, served=each) for each in (False, False, True))
    assert differ(plain, again) == [], "the plain loop does not repeat"
    assert differ(plain, served) == []
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
