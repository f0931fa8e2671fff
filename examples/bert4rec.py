"""BERT4Rec under fscomm: masked items are predicted from both sides of a history.

    torchrun --nproc-per-node 2 examples/bert4rec.py

An ordinary PyTorch loop: a map-style dataset, a DataLoader with a DistributedSampler, batches that are lists of plain
tensors, a model that makes a KeyedJaggedTensor of them, dropout. Three lines are fscomm's, marked `fscomm`.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm

ITEMS, LENGTH, WIDTH = 6_000, 32, 64
MASK = ITEMS  # the id of a masked item


class Histories(Dataset[list[Tensor]]):
    """Histories of items, popular ones more often, a fifth of them masked: [ids [LENGTH], the items asked for]."""

    def __init__(self, users: int) -> None:
        draw = torch.Generator().manual_seed(0)
        popular = torch.rand(users, LENGTH, generator=draw) ** 3
        self.items = (popular * ITEMS).long()
        self.masked = torch.rand(users, LENGTH, generator=draw) < 0.2

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, user: int) -> list[Tensor]:
        items, masked = self.items[user], self.masked[user]
        return [items.masked_fill(masked, MASK), items.masked_fill(~masked, -100)]


class Bert4Rec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="item_table", num_embeddings=ITEMS + 1, embedding_dim=WIDTH, feature_names=["item"]
        )
        self.embeddings = EmbeddingCollection(tables=[table], device=torch.device("meta"))
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) / 8)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(WIDTH, ITEMS)

    def forward(self, ids: Tensor, asked: Tensor) -> Tensor:
        """Mean loss of the items asked for; ids, asked: [B, LENGTH]."""
        features = KeyedJaggedTensor(
            keys=["item"], values=ids.reshape(-1), lengths=torch.full((len(ids),), LENGTH, dtype=torch.int32)
        )
        items = self.embeddings(features)["item"].values().view(len(ids), LENGTH, WIDTH)
        found = self.encoder(items + self.positions)
        return F.cross_entropy(self.score(found).flatten(0, 1), asked.flatten())


def sharded(model: Bert4Rec) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The table over all ranks by rows, its optimizer fused into backward; the rest under DDP with Adam."""
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.05})
    plan = construct_module_sharding_plan(
        model.embeddings,
        {"item_table": row_wise()},
        local_size=dist.get_world_size(),
        world_size=dist.get_world_size(),
        device_type="cpu",
    )
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan({"embeddings": plan}))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Bert4Rec())
    data = Histories(options.users)
    sampler: DistributedSampler[list[Tensor]] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)

    def train(batches: DataLoader[list[Tensor]]) -> None:
        for epoch in range(options.epochs):
            batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for ids, asked in batches:
                optimizer.zero_grad()
                loss = model(ids, asked)
                loss.backward()
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.6f}")

    if options.plain:
        train(loader)
    else:
        with fscomm.enable(model) as comm:  # fscomm
            train(comm.lookahead(loader))  # fscomm
        if dist.get_rank() == 0:
            print(comm.report())  # fscomm
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
