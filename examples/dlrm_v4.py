"""MLPerf DLRMv4 in small: an event log is histories and samples at once, trained day by day, evaluated on the next.

    torchrun --nproc-per-node 2 examples/dlrm_v4.py

A sample is a listen; its history is what its user did before it, in three pools that are merged by position. Artists
and albums are looked up per event, context is crossed by hash: all of it is a description, see `source`. Held-out users
are never trained on. The model has the 11 tables of DLRMv4, narrow, and one HSTU layer.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineBase
from torchrec.distributed.types import ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from fscomm.pipeline import TrainPipelineFreeScale
from fsdata import AsOf, Batch, FreeScaleDataLoader, Lookup, ParquetSource, Schema, Sequence, cross

ITEMS, ARTISTS, ALBUMS, USERS, WIDTH, DAY, DAYS = 5_000, 300, 900, 200, 16, 86_400, 4
LISTEN, PLAYED, HOUR = pl.col("type") == 0, pl.col("ratio") >= 50, pl.col("ts") // 3600 % 24
POOLS = {"listen_plus": LISTEN & PLAYED, "like": pl.col("type") == 1, "skip": LISTEN & ~PLAYED}
CROSSES = {
    name: cross(*(HOUR if each == "hour" else each for each in name.split("_x_")), buckets=1_000, seed=seed)
    for seed, name in enumerate(
        ("uid_x_item", "uid_x_artist", "uid_x_album", "uid_x_hour", "item_x_hour", "artist_x_hour", "uid_x_organic")
    )
}
EVENT, CANDIDATE = ("item", "artist", "album"), ("candidate", "candidate_artist", "candidate_album")
CONTEXT = ("user", *CROSSES)
SCHEMA = Schema(
    sequences=[Sequence("uih", fields=(*EVENT, "ts", "pools"), max_length=96)],
    candidates=Sequence("candidates", fields=CANDIDATE),
    context=CONTEXT,
    labels=("played",),
)


def write_data(folder: Path, users: int) -> None:
    """Histories of log-normal length, one row per user, as `freescale histories` makes them of a log; and the items."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.5, 1, users), 1, 2_000).astype(np.int64)
    ends, events = lengths.cumsum(), int(lengths.sum())
    ts = draw.integers(0, DAY * DAYS // 5, events) * 5  # rounded, so that ties are common
    lists = {
        "item": (ITEMS * draw.random(events) ** 3).astype(np.int32),
        "ts": ts[np.lexsort((ts, np.repeat(np.arange(users), lengths)))],
        "type": draw.choice(np.array([0, 1, 2], np.int8), events, p=(0.9, 0.07, 0.03)),
        "ratio": draw.integers(0, 101, events).astype(np.int8),
        "organic": draw.integers(0, 2, events).astype(np.int8),
    }
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    columns = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in lists.items()}
    pq.write_table(pa.table({"uid": np.arange(users), **columns}), folder / "histories.parquet", row_group_size=64)
    items = {"item": np.arange(ITEMS), "artist": np.arange(ITEMS) % ARTISTS, "album": np.arange(ITEMS) % ALBUMS}
    pq.write_table(pa.table(items), folder / "items.parquet")


def source(folder: Path, keep: tuple[float, float]) -> ParquetSource:
    """The samples of a part of the users."""
    table, items = (ParquetSource(folder / f"{name}.parquet") for name in ("histories", "items"))
    pools = {"pools": POOLS, "cap": 32, "mask": "pools"}
    histories = AsOf(table, on="uid", at="position", time="ts", fields=("item", "ts"), scan=20_000, **pools)
    own = {"candidate": "item", "candidate_artist": "artist", "candidate_album": "album"}
    return histories.anchors(
        where=LISTEN,
        min_history=5,
        time_window=DAY,
        split="uid",
        keep=keep,
        join=Lookup(items, on="item", fields=("artist", "album")),
        columns={**own, "user": "uid", "played": PLAYED, **CROSSES},
    )


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = zip(EVENT, CANDIDATE, (ITEMS, ARTISTS, ALBUMS), strict=True)
        tables = [(name, rows, [name, candidate]) for name, candidate, rows in shared]
        tables += [("user", USERS, ["user"]), *((name, 1_000, [name]) for name in CROSSES)]
        self.embeddings = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=features)
                for name, rows, features in tables
            ],
            device=torch.device("meta"),
        )
        self.pools = nn.Embedding(8, WIDTH)
        self.project, self.norm, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(loss, losses [B])."""
        found = self.embeddings(batch.features)
        lengths = batch.features["item"].lengths().tolist()
        events = sum(found[name].values() for name in EVENT) + self.pools(batch.features["pools"].values())
        asked = sum(found[name].values() for name in CANDIDATE)
        context = sum(found[name].values() for name in CONTEXT)
        sequences = [torch.cat([own, ask[None]]) for own, ask in zip(events.split(lengths), asked, strict=True)]
        read = self.read(nn.utils.rnn.pad_sequence(sequences, batch_first=True))
        logits = self.score(read[torch.arange(len(lengths)), torch.tensor(lengths)] + context).squeeze(1)
        losses = F.binary_cross_entropy_with_logits(logits, batch.labels["played"], reduction="none")
        return losses.mean(), losses.detach()

    def read(self, events: Tensor) -> Tensor:
        """One pointwise-attention layer over each history and its candidate: [B, L, WIDTH]."""
        gate, value, query, key = F.silu(self.project(events)).chunk(4, dim=2)
        weight = F.silu(query @ key.transpose(1, 2)).tril() / events.shape[1]
        return events + self.out(self.norm(weight @ value) * gate)


def sharded(model: Dlrm) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Large tables by rows, small ones whole; the gradients of the dense part are clipped by their norm."""
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.02})
    ranks = dist.get_world_size()
    configs = model.embeddings.embedding_configs()
    ways = {
        each.name: row_wise() if each.num_embeddings >= ITEMS else table_wise(rank=number % ranks)
        for number, each in enumerate(configs)
    }
    plan = construct_module_sharding_plan(model.embeddings, ways, local_size=ranks, world_size=ranks, device_type="cpu")
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan({"embeddings": plan}))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    clipped = GradientClippingOptimizer(dense, clipping=GradientClipping.NORM, max_gradient=1.0)
    return parallel, CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", clipped)])


def trained(pipeline: TrainPipelineBase | TrainPipelineFreeScale, batches: Iterator[Batch]) -> None:
    while True:
        try:
            pipeline.progress(batches)
        except StopIteration:
            return


def evaluated(model: nn.Module, batches: Iterator[Batch]) -> float:
    """The mean loss of all samples of all ranks."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches:
            losses = model(batch)[1]
            total += torch.tensor([losses.sum().item(), len(losses)])
    model.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Dlrm())
    here, lines, given = torch.device("cpu"), [], {"batch_size": 32, "drop_last": True}
    served = None if options.plain else TrainPipelineFreeScale(model, optimizer, here, strict=True)
    with tempfile.TemporaryDirectory() as name, closing(served) if served else nullcontext():
        folder = Path(name)
        write_data(folder, options.users)  # every rank writes the same files of its own
        train = FreeScaleDataLoader(source(folder, (0, 0.9)), SCHEMA, shuffle=True, shuffle_window=0.25, **given)
        with train, FreeScaleDataLoader(source(folder, (0.9, 1)), SCHEMA, **given) as held_out:
            for day in range(DAYS - 1):
                train.set_epoch(day)
                trained(served or TrainPipelineBase(model, optimizer, here), iter(train))  # this one takes one iterator
                held_out.set_epoch(day + 1)
                loss = evaluated(model, iter(held_out))
                lines.append(f"loss of day {day + 1}, held-out users, {train.share:.0%} trained: {loss:.6f}")
    if dist.get_rank() == 0:
        print(*lines, served.comm.report() if served else "", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
