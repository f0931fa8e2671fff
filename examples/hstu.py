"""An HSTU-style ranking model on the FreeScale DataLoader, under fscomm: histories of any length, candidates to score.

    torchrun --nproc-per-node 2 examples/hstu.py

The loader gives every rank histories of equal total cost. The model looks up the ids of histories and of candidates in
one call, as generative-recommenders does: it merges two KeyedJaggedTensors, and fscomm finds their keys in the batch.
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
from torchrec import EmbeddingCollection, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm
from fsdata import Balance, Batch, FreeScaleDataLoader, ParquetSource, Schema, Sequence, global_mean

ITEMS, ACTIONS, WIDTH, CANDIDATES = 20_000, 16, 32, 4
SCHEMA = Schema(
    sequences=[Sequence("history", fields=("item", "action"), max_length=128)],
    candidates=Sequence("candidates", fields=("candidate",)),
    labels=("clicked",),
)


def write_data(folder: Path, rows: int) -> None:
    """Impressions with histories of log-normal length; popular items occur more often."""
    draw = np.random.default_rng(0)

    def lists(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(values))

    lengths = np.clip(draw.lognormal(3, 1, rows), 1, 128).astype(np.int64)
    events, asked = int(lengths.sum()), np.full(rows, CANDIDATES)
    items = (ITEMS * draw.random(events) ** 3).astype(np.int64)
    columns = {
        "item": lists(lengths, items),
        "action": lists(lengths, draw.integers(0, ACTIONS, events)),
        "candidate": lists(asked, (ITEMS * draw.random(rows * CANDIDATES) ** 3).astype(np.int64)),
        "clicked": lists(asked, draw.integers(0, 2, rows * CANDIDATES).astype(np.float32)),
    }
    pq.write_table(pa.table(columns), folder / "impressions.parquet", row_group_size=256)


class Hstu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(
                name="item_table", num_embeddings=ITEMS, embedding_dim=WIDTH, feature_names=["item", "candidate"]
            ),
            EmbeddingConfig(name="action_table", num_embeddings=ACTIONS, embedding_dim=WIDTH, feature_names=["action"]),
        ]
        self.embeddings = EmbeddingCollection(tables=tables, device=torch.device("meta"))
        self.project = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, history: KeyedJaggedTensor, candidates: KeyedJaggedTensor) -> Tensor:
        """One logit for every candidate."""
        merged = KeyedJaggedTensor(
            keys=history.keys() + candidates.keys(),
            values=torch.cat([history.values(), candidates.values()]),
            lengths=torch.cat([history.lengths(), candidates.lengths()]),
        )
        found = self.embeddings(merged)
        user = self.read(found["item"], found["action"].values())
        asked = found["candidate"]
        return (asked.values() * user.repeat_interleave(asked.lengths().long(), 0)).sum(1)

    def read(self, items: JaggedTensor, actions: Tensor) -> Tensor:
        """One pointwise-attention layer over each history, and what its last event comes to: [B, WIDTH]."""
        lengths = items.lengths().tolist()
        events = nn.utils.rnn.pad_sequence((items.values() + actions).split(lengths), batch_first=True)
        gate, value, query, key = F.silu(self.project(events)).chunk(4, dim=2)
        weight = F.silu(query @ key.transpose(1, 2)).tril() / events.shape[1]
        read = events + self.out(self.norm(weight @ value) * gate)
        return read[torch.arange(len(lengths)), torch.tensor(lengths) - 1]


def sharded(model: Hstu) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.05})
    ranks = dist.get_world_size()
    plan = construct_module_sharding_plan(
        model.embeddings,
        {"item_table": row_wise(), "action_table": table_wise(rank=0)},
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan({"embeddings": plan}))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    parts = batch.features.split([2, 1])  # in the order of the schema: the history's fields, the candidates'
    clicked = batch.labels["clicked"].values
    return global_mean(
        F.binary_cross_entropy_with_logits(model(*parts), clicked, reduction="none"), batch, over="clicked"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Hstu())
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.rows)  # every rank writes the same file of its own
        loader = FreeScaleDataLoader(ParquetSource(folder), SCHEMA, batch_size=32, shuffle=True, balance=Balance())
        with loader, nullcontext() if options.plain else fscomm.enable(model, strict=True) as comm:
            for batch in loader if comm is None else comm.lookahead(loader):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
        if dist.get_rank() == 0:
            print(f"loss of the last step: {loss.item():.6f}", comm.report() if comm else "", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
