"""One rank of `test_fscomm_cuda`: trains a sharded model on its GPU plainly and with fscomm, and compares every bit."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import fscomm

ROWS, WIDTH, SAMPLES, STEPS = 400, 16, 8, 20
FEATURES = {"a0": "a", "a1": "a", "b0": "b"}


class Model(nn.Module):
    """Every occurrence has a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=table,
                    num_embeddings=ROWS,
                    embedding_dim=WIDTH,
                    feature_names=[feature for feature, of in FEATURES.items() if of == table],
                )
                for table in ("a", "b")
            ],
            device=torch.device("meta"),
        )
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        rows = torch.cat([jagged.values() for jagged in self.embeddings(features).values()])
        weight = 1 + torch.arange(len(rows), device=rows.device)[:, None] / 10
        return self.last(torch.tanh(rows * weight)).mean()


def batch(step: int, rank: int, device: torch.device) -> KeyedJaggedTensor:
    random = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 6, (len(FEATURES) * SAMPLES,), generator=random)
    values = (torch.randint(0, ROWS // 2, (int(lengths.sum()),), generator=random) + step * ROWS // 4) % ROWS
    return KeyedJaggedTensor(keys=list(FEATURES), values=values, lengths=lengths, stride=SAMPLES).to(device)


def train(rank: int, size: int, device: torch.device, *, served: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    net = Model()
    apply_optimizer_in_backward(RowWiseAdagrad, net.embeddings.parameters(), {"lr": 0.05})
    plan = construct_module_sharding_plan(
        net.embeddings,
        {"a": row_wise(), "b": table_wise(rank=size - 1)},
        sharder=EmbeddingCollectionSharder(),
        local_size=size,
        world_size=size,
        device_type="cuda",
    )
    group = dist.group.WORLD
    assert group is not None
    model = DistributedModelParallel(
        net, env=ShardingEnv.from_process_group(group), device=device, plan=ShardingPlan({"embeddings": plan})
    )
    dense = torch.optim.SGD([p for name, p in model.named_parameters() if "last" in name], lr=0.05)
    losses = []

    def loop(batches) -> None:
        for features in batches:
            dense.zero_grad()
            loss = model(features)
            loss.backward()
            dense.step()
            losses.append(loss.detach())

    data = [batch(step, rank, device) for step in range(STEPS)]
    if served:
        with fscomm.enable(model, transport=sys.argv[1], strict=True) as comm:
            loop(comm.lookahead(data))
        assert sum(each.unique_colliding for each in comm.report().total.collisions.values()) > 0
    else:
        loop(data)
    found = {"losses": torch.stack(losses)}
    for name, value in model.state_dict().items():
        shards = value.local_shards() if hasattr(value, "local_shards") else None
        for number, shard in enumerate(shards or ()):
            found[f"{name}/{number}"] = shard.tensor.clone()
        if shards is None:
            found[name] = value.clone()
    return found


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    plain, again, served = (train(rank, size, device, served=each) for each in (False, False, True))
    assert [name for name in plain if not torch.equal(plain[name], again[name])] == [], "the plain loop does not repeat"
    assert [name for name in plain if not torch.equal(plain[name], served[name])] == []
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
