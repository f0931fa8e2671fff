"""Long histories in segments, stored once and shared by the samples of a batch: which repository comes next?

    torchrun --nproc-per-node 2 examples/segments.py [--events FOLDER]

FOLDER holds requests and histories as `oss_events` does; without it a small set is made up. Histories are taken as of
the time of each request. Samples of one user look up, send and update shared events once. A model of two layers sees
recent events, and two tokens in the place of every older segment.
"""

import argparse
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import fscomm
from fsdata import (
    AsOf,
    Balance,
    Batch,
    FreeScaleDataLoader,
    ParquetSource,
    Schema,
    Segmented,
    Sequence,
    Split,
    expand,
    global_mean,
    segment_mask,
)

ITEMS, ACTIONS, REPOS, WIDTH, HEADS = 1 << 16, 8, 32, 32, 2
SPLIT = Split(recent=16, segment=32, tokens=2)
FIELDS = ("item_ids", "actions")
HISTORY = Sequence("history", fields=FIELDS, max_length=192, share="user_id", split=SPLIT)
SCHEMA = Schema(sequences=[HISTORY], context=("repo_id",))
COST = Segmented(recent=SPLIT.recent, segment=SPLIT.segment, tokens=SPLIT.tokens, linear=WIDTH * 12)


def source(folder: Path) -> ParquetSource:
    item = pl.col("item_ids").list.eval(pl.element() * 2654435761 % ITEMS)  # ids that stand in no order
    histories = ParquetSource(str(folder / "interactions-*.parquet"), columns={"item_ids": item})
    as_of = AsOf(histories, on="user_id", at="ts", time="timestamps", fields=FIELDS)
    return ParquetSource(str(folder / "requests-*.parquet"), join=as_of)


def write_data(folder: Path, requests: int) -> None:
    """Users who go on with what they did last, in one of a few repositories each."""
    draw = np.random.default_rng(0)
    users = 40
    lengths = draw.integers(5, 300, users)
    home = draw.integers(0, REPOS, users)
    items = [1000 * home[user] + draw.integers(0, 50, n) for user, n in enumerate(lengths)]
    lists = {
        "item_ids": [each.tolist() for each in items],
        "actions": [draw.integers(0, ACTIONS, n).tolist() for n in lengths],
        "timestamps": [np.sort(draw.integers(0, 10_000, n)).tolist() for n in lengths],
    }
    histories = pl.DataFrame({"user_id": np.arange(users), **lists})
    histories.write_parquet(folder / "interactions-0.parquet")
    of = draw.integers(0, users, requests)
    asked = pl.DataFrame({"user_id": of, "repo_id": home[of], "ts": np.sort(draw.integers(0, 10_000, requests))})
    asked.write_parquet(folder / "requests-0.parquet", row_group_size=128)


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(name="item_table", num_embeddings=ITEMS, embedding_dim=WIDTH, feature_names=["item_ids"]),
            EmbeddingConfig(
                name="action_table", num_embeddings=ACTIONS, embedding_dim=WIDTH, feature_names=["actions"]
            ),
        ]
        self.embeddings = EmbeddingCollection(tables=tables, device=torch.device("meta"))
        self.tokens = nn.Parameter(torch.randn(SPLIT.tokens, WIDTH) * 0.1)
        self.layers = nn.ModuleList([layer(), layer()])
        self.repo = nn.Linear(WIDTH, REPOS)

    def forward(self, history: KeyedJaggedTensor, batch: Batch) -> Tensor:
        """[B, REPOS] logits of the repository of each request."""
        found, parts = self.embeddings(history), batch.split["history"]
        merged = found["item_ids"].values() + found["actions"].values()  # of shared events, once
        flat = parts.spread(expand(merged, batch.shared["history"]), self.tokens)
        at, lengths = parts.positions(), parts.lengths
        mask = segment_mask(batch, "history")
        values = flat.new_zeros(len(lengths), max(mask.shape[1], 1), WIDTH).index_put((at.sample, at.place), flat)
        mask = F.pad(mask, (0, values.shape[1] - mask.shape[2], 0, values.shape[1] - mask.shape[1]))
        mask = mask | torch.eye(values.shape[1], dtype=torch.bool)  # what stands behind the end sees itself
        for each in self.layers:
            values = each(values, src_mask=~mask.repeat_interleave(HEADS, 0))
        return self.repo(values[torch.arange(len(lengths)), (lengths - 1).clamp(min=0)])


def sharded(model: Model) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.1})
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
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=3e-3)
    )
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path, metavar="FOLDER")
    parser.add_argument("--requests", type=int, default=1_500, help="of the set that is made up")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Model())
    with tempfile.TemporaryDirectory() as made_up:
        if options.events is None:
            write_data(Path(made_up), options.requests)  # every rank writes the same files of its own
        data = source(options.events or Path(made_up))
        loader = FreeScaleDataLoader(data, SCHEMA, batch_size=32, balance=Balance(cost=COST), timeout_s=60)
        losses, held, seen = [], 0, 0
        with loader, nullcontext() if options.plain else fscomm.enable(model, strict=True) as comm:
            for batch in loader if comm is None else comm.lookahead(loader):
                repo, history = batch.features.split([1, 2])  # in the order of the schema
                optimizer.zero_grad()
                logits = model(history, batch)
                loss = global_mean(F.cross_entropy(logits, repo.values() % REPOS, reduction="none"), batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                held, seen = held + len(history["actions"].values()), seen + batch.shared["history"].total
                if len(losses) == options.steps:
                    break
        if dist.get_rank() == 0:
            mean = sum(losses[-5:]) / 5
            print(f"loss of the first step {losses[0]:.6f}, mean of the last five {mean:.6f}")
            print(
                f"events looked up: {held:,} for the {seen:,} that samples see", comm.report() if comm else "", sep="\n"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
