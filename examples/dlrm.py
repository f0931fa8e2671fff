"""DLRM under fscomm: dense features, 26 one-hot features in pooled tables, TorchRec's pipeline replaced by one name.

    torchrun --nproc-per-node 2 examples/dlrm.py

The loop is one that is written for TorchRec's `TrainPipelineSparseDist`: a batch class of its own, a model that gives
(loss, output), `pipeline.progress`. `TrainPipelineFreeScale` takes that pipeline's place.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineBase
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.streamable import Pipelineable

from fscomm.pipeline import TrainPipelineFreeScale

DENSE, WIDTH = 13, 32
ROWS = [(50_000, 20_000, 5_000, 1_000, 200)[number % 5] for number in range(26)]  # of the table of each feature
KEYS = [f"feature_{number}" for number in range(26)]
BATCH = 128


@dataclass
class Batch(Pipelineable):
    dense: Tensor  # [BATCH, DENSE]
    sparse: KeyedJaggedTensor
    clicked: Tensor  # [BATCH]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        parts = (self.dense, self.sparse, self.clicked)
        return Batch(*(part.to(device, non_blocking=non_blocking) for part in parts))

    def record_stream(self, stream: torch.Stream) -> None:
        for part in (self.dense, self.sparse, self.clicked):
            part.record_stream(stream)


def batches(steps: int, rank: int) -> Iterator[Batch]:
    """Popular ids occur more often. Every rank has batches of its own, the same at every call."""
    draw = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        ids = torch.cat([(torch.rand(BATCH, generator=draw) ** 6 * rows).long() for rows in ROWS])
        sparse = KeyedJaggedTensor(keys=KEYS, values=ids, lengths=torch.ones_like(ids, dtype=torch.int32))
        dense = torch.rand(BATCH, DENSE, generator=draw)
        yield Batch(dense, sparse, (dense.sum(1) + ids.view(26, BATCH)[0] % 3 > 7.5).float())


class Trained(nn.Module):
    """What a pipeline trains: from a batch to (loss, logits)."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=f"of_{key}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=[key])
            for key, rows in zip(KEYS, ROWS, strict=True)
        ]
        bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.dlrm = DLRM(bags, DENSE, [64, WIDTH], [64, 32, 1])

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.dlrm(batch.dense, batch.sparse).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, batch.clicked), logits.detach()


def sharded(model: Trained) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Large tables by rows, small ones whole, in turn on every rank."""
    bags = model.dlrm.sparse_arch.embedding_bag_collection
    apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": 0.05})
    ranks = dist.get_world_size()
    ways = {
        f"of_{key}": row_wise() if rows > 10_000 else table_wise(rank=number % ranks)
        for number, (key, rows) in enumerate(zip(KEYS, ROWS, strict=True))
    }
    plan = construct_module_sharding_plan(bags, ways, local_size=ranks, world_size=ranks, device_type="cpu")
    where = {"dlrm.sparse_arch.embedding_bag_collection": plan}
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(where))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Trained())
    here = torch.device("cpu")
    given = batches(options.steps, dist.get_rank())
    if options.plain:
        pipeline, comm = TrainPipelineBase(model, optimizer, here), None
        train(pipeline, given)
    else:
        with closing(TrainPipelineFreeScale(model, optimizer, here, strict=True)) as pipeline:
            train(pipeline, given)
        comm = pipeline.comm
    loss, _ = model.eval()(next(batches(1, dist.get_rank())))
    if dist.get_rank() == 0:
        print(f"loss of the first batch, after training: {loss.item():.6f}", comm.report() if comm else "", sep="\n")
    dist.destroy_process_group()


def train(pipeline: TrainPipelineBase | TrainPipelineFreeScale, given: Iterator[Batch]) -> None:
    while True:
        try:
            pipeline.progress(given)
        except StopIteration:
            return


if __name__ == "__main__":
    main()
