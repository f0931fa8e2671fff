"""A two-tower retrieval model under fscomm: pooled histories, in-batch negatives, on the FreeScale DataLoader.

    torchrun --nproc-per-node 2 examples/two_tower.py

The user's tower reads the mean of the items of a history, the item's tower one item; one collection of pooled tables
serves both. Every other item of the batch is a negative.
"""

import argparse
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm
from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Schema, Sequence

USERS, ITEMS, WIDTH = 5_000, 20_000, 32
SCHEMA = Schema(sequences=[Sequence("uih", fields=("history",), max_length=64)], context=("user", "item"))


def write_data(folder: Path, rows: int) -> None:
    """Visits: a user, the items seen before, the item chosen. Popular items occur more often."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(2, 1, rows), 1, 64).astype(np.int64)
    seen = (ITEMS * draw.random(int(lengths.sum())) ** 3).astype(np.int64)
    ends = np.cumsum(lengths)
    columns = {
        "history": pa.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), pa.array(seen)),
        "user": draw.integers(0, USERS, rows),
        "item": (seen[ends - 1] * 7 + draw.integers(0, 50, rows)) % ITEMS,
    }
    pq.write_table(pa.table(columns), folder / "visits.parquet", row_group_size=256)


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name="item_table",
                num_embeddings=ITEMS,
                embedding_dim=WIDTH,
                feature_names=["history", "item"],
                pooling=PoolingType.MEAN,
            ),
            EmbeddingBagConfig(name="user_table", num_embeddings=USERS, embedding_dim=WIDTH, feature_names=["user"]),
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.user = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        self.item = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """How well each item suits each user of the batch: [B, B]."""
        found = self.bags(features).to_dict()
        user = F.normalize(self.user(torch.cat([found["history"], found["user"]], dim=1)))
        return user @ F.normalize(self.item(found["item"])).T / 0.1


def sharded(model: TwoTower) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    apply_optimizer_in_backward(RowWiseAdagrad, model.bags.parameters(), {"lr": 0.05})
    ranks = dist.get_world_size()
    ways = {"item_table": row_wise(), "user_table": column_wise(ranks=[0, 1 % ranks])}
    plan = construct_module_sharding_plan(model.bags, ways, local_size=ranks, world_size=ranks, device_type="cpu")
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan({"bags": plan}))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=6_400)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(TwoTower())
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.rows)  # every rank writes the same file of its own
        loader = FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=64, shuffle=True, balance=Balance())
        with loader, nullcontext() if options.plain else fscomm.enable(model, strict=True) as comm:
            for batch in loader if comm is None else comm.lookahead(loader):
                optimizer.zero_grad()
                scores = model(batch.features)
                loss = F.cross_entropy(scores, torch.arange(len(scores)))
                loss.backward()
                optimizer.step()
        if dist.get_rank() == 0:
            print(f"loss of the last step: {loss.item():.6f}", comm.report() if comm else "", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
