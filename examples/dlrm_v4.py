"""MLPerf DLRMv4 in small: an event log is histories and samples at once, trained day by day until an AUC is reached.

    torchrun --nproc-per-node 2 examples/dlrm_v4.py

A sample is a listen; its history is what its user did before it, in three pools that are merged by position. Artists
and albums are looked up per event, context is crossed by hash: all of it is a description, see `source`. Held-out users
are never trained on, and their samples of the last day are evaluated every tenth of the training samples.

Rules, structure and order are those of the reference. What differs, so that a laptop trains it in a minute:
- Lengths are 96 / 4,086 of its own: the history, a pool (a third), the least history, the scan, the users' events.
- The tables, 11 as there, have 16 columns for 512, and few rows; HSTU, 3 layers as there, has one head, and neither
  positions nor times. Learning rates are constant and larger.
- 4 days for 300; evaluations every 10 % of the samples for 0.1 %, of them none is skipped at the beginning.
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

ITEMS, ARTISTS, ALBUMS, USERS, WIDTH, LAYERS, BATCH, DAY, DAYS = 5_000, 300, 900, 1_500, 16, 3, 32, 86_400, 4
HISTORY = 96  # for 4,086 of the reference, and so with every other length
SCAN, MEDIAN, MOST = (round(HISTORY * each / 4_086) for each in (20_000, 2_695, 27_738))
TRAINED, EVERY, GOAL = 0.9, 0.1, 0.75  # share of the users; evaluate every share of the samples, until this AUC
LISTEN, PLAYED, HOUR = pl.col("type") == 0, pl.col("ratio") >= 50, pl.col("ts") // 3600 % 24
POOLS = {"listen_plus": LISTEN & PLAYED, "like": pl.col("type") == 1, "skip": LISTEN & ~PLAYED}
CROSSES = {
    name: cross(*(HOUR if each == "hour" else each for each in name.split("_x_")), buckets=1_000)
    for name in (
        *("uid_x_artist", "uid_x_album", "uid_x_hour", "item_x_hour", "artist_x_hour"),
        *("uid_x_organic", "uid_x_artist_x_hour"),
    )
}
EVENT, CANDIDATE = ("item", "artist", "album"), ("candidate", "candidate_artist", "candidate_album")
CONTEXT = ("user", *CROSSES)
SCHEMA = Schema(
    sequences=[Sequence("uih", fields=(*EVENT, "ts", "pools"), max_length=HISTORY)],
    candidates=Sequence("candidates", fields=CANDIDATE),
    context=CONTEXT,
    labels=("played",),
)


def write_data(folder: Path, users: int) -> None:
    """Histories of log-normal length, one row per user, as `freescale histories` makes them of a log; and the items.

    Users finish more or fewer of their listens, and items are finished more or less often: that can be learned.
    """
    draw = np.random.default_rng(0)
    lengths = np.clip(MEDIAN * draw.lognormal(0, 1.1, users), 1, MOST).astype(np.int64)
    ends, events = lengths.cumsum(), int(lengths.sum())
    ts = draw.integers(0, DAY * DAYS // 5, events) * 5  # rounded, so that ties are common
    item = (ITEMS * draw.random(events) ** 3).astype(np.int32)
    liking = np.repeat(draw.normal(0.5, 1.5, users), lengths) + draw.normal(0, 1, ITEMS)[item]
    finished = draw.random(events) < 1 / (1 + np.exp(-liking))
    lists = {
        "item": item,
        "ts": ts[np.lexsort((ts, np.repeat(np.arange(users), lengths)))],
        "type": draw.choice(np.array([0, 1, 2], np.int8), events, p=(0.972, 0.019, 0.009)),
        "ratio": np.where(finished, draw.integers(50, 101, events), draw.integers(0, 50, events)).astype(np.int8),
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
    pools = {"pools": POOLS, "cap": HISTORY // 3, "mask": "pools"}
    histories = AsOf(table, on="uid", at="position", time="ts", fields=("item", "ts"), scan=SCAN, **pools)
    own = {"candidate": "item", "candidate_artist": "artist", "candidate_album": "album"}
    return histories.anchors(
        where=LISTEN,
        min_history=HISTORY,
        time_window=DAY,
        split="uid",
        keep=keep,
        join=Lookup(items, on="item", fields=("artist", "album")),
        columns={**own, "user": "uid", "played": PLAYED, **CROSSES},
    )


class Layer(nn.Module):
    """Pointwise attention of HSTU over each history and its candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, events: Tensor) -> Tensor:
        """events, result: [B, L, WIDTH]."""
        gate, value, query, key = F.silu(self.project(self.before(events))).chunk(4, dim=2)
        weight = F.silu(query @ key.transpose(1, 2)).tril() / HISTORY
        return events + self.out(self.after(weight @ value) * gate)


class Dlrm(nn.Module):
    def __init__(self, users: int) -> None:
        super().__init__()
        shared = zip(EVENT, CANDIDATE, (ITEMS, ARTISTS, ALBUMS), strict=True)
        tables = [(name, rows, [name, candidate]) for name, candidate, rows in shared]
        tables += [("user", users, ["user"]), *((name, 1_000, [name]) for name in CROSSES)]
        self.embeddings = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=features)
                for name, rows, features in tables
            ],
            device=torch.device("meta"),
        )
        self.pools = nn.Embedding(8, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(loss, (losses [B], logits [B])). B may be 0: on a rank that has evaluated its samples before others."""
        found = self.embeddings(batch.features)
        lengths = batch.features["item"].lengths().long()
        events = sum(found[name].values() for name in EVENT) + self.pools(batch.features["pools"].values())
        asked = sum(found[name].values() for name in CANDIDATE)
        context = sum(found[name].values() for name in CONTEXT)
        longest = int(lengths.max()) if len(lengths) else 0
        padded = events.new_zeros(len(lengths), longest + 1, WIDTH)
        padded[torch.arange(longest + 1) < lengths[:, None]] = events
        padded[torch.arange(len(lengths)), lengths] = asked
        read = self.layers(padded)[torch.arange(len(lengths)), lengths]
        logits = self.score(read + context).squeeze(1)
        losses = F.binary_cross_entropy_with_logits(logits, batch.labels["played"], reduction="none")
        return losses.mean(), (losses.detach(), logits.detach())


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


def days(loader: FreeScaleDataLoader) -> Iterator[Batch]:
    """The days before the last one, in order."""
    for day in range(DAYS - 1):
        loader.set_epoch(day)
        yield from loader


def evaluated(model: nn.Module, batches: Iterator[Batch]) -> tuple[float, float]:
    """(mean loss, AUC) of all samples of all ranks, which may have different numbers of them."""
    model.eval()
    with torch.no_grad():
        each = [torch.stack([*model(batch)[1], batch.labels["played"]]) for batch in batches]
    model.train()
    own = torch.cat(each, dim=1).double()
    most = torch.tensor(own.shape[1])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    padded = F.pad(own, (0, int(most) - own.shape[1]), value=torch.nan)
    of_ranks = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, padded)
    losses, logits, labels = (of[~of.isnan()] for of in torch.cat(of_ranks, dim=1))
    return float(losses.mean()), auc(logits, labels)


def auc(scores: Tensor, labels: Tensor) -> float:
    """The share of pairs of a positive and a negative sample that the scores put in order; a tie counts half."""
    place = torch.unique(scores, return_inverse=True)[1]
    positive, negative = torch.bincount(place, labels), torch.bincount(place, 1 - labels)
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--plain", action="store_true", help="the same loop without fscomm: the same losses")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = sharded(Dlrm(options.users))
    here, lines = torch.device("cpu"), []
    served = None if options.plain else TrainPipelineFreeScale(model, optimizer, here, strict=True)
    with tempfile.TemporaryDirectory() as name, closing(served) if served else nullcontext():
        folder = Path(name)
        write_data(folder, options.users)  # every rank writes the same files of its own
        train = FreeScaleDataLoader(source(folder, (0, TRAINED)), SCHEMA, batch_size=BATCH, drop_last=True)
        held_out = source(folder, (TRAINED, 1))
        with train, FreeScaleDataLoader(held_out, SCHEMA, batch_size=BATCH, uneven="empty") as evaluation:
            steps = 0
            for day in range(DAYS - 1):
                train.set_epoch(day)
                steps += len(train)
            every = max(round(EVERY * steps), 1)
            pipeline, batches = served or TrainPipelineBase(model, optimizer, here), days(train)
            for step in range(1, steps + 1):
                pipeline.progress(batches)
                if step % every:
                    continue
                evaluation.set_epoch(DAYS - 1)
                loss, score = evaluated(model, iter(evaluation))
                lines.append(f"{step / steps:.0%} trained: loss of held-out users {loss:.6f}, AUC {score:.6f}")
                if score >= GOAL:
                    break
    if dist.get_rank() == 0:
        print(*lines, served.comm.report() if served else "", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
