"""Programs of the kinds that others train, small and in our words: models from a batch to (loss, logits), and loaders.

One set of impressions is read by the FreeScale DataLoader or by torch's, as batches of a program's own kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from patience import PATIENCE_S
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from fsdata import Batch, FreeScaleDataLoader, Jagged, ParquetSource, Schema
from fsdata import Sequence as Events

ITEMS, ACTIONS, USERS, CATEGORIES = 2_000, 16, 500, 300
ONE_HOT = tuple(f"c{number}" for number in range(26))
DENSE = tuple(f"d{number}" for number in range(4))
ASKED = 3  # candidates of a sample
SAMPLES, STEPS, WIDTH = 16, 22, 8
SCHEMA = Schema(
    sequences=[Events("history", fields=("item", "action"), max_length=40)],
    candidates=Events("candidates", fields=("candidate",)),
    context=("user", *ONE_HOT),
    dense=DENSE,
    labels=("clicked", "bought"),
)


def write(folder: Path, ranks: int) -> None:
    """Popular ids occur more often; histories have log-normal lengths."""
    rows = SAMPLES * STEPS * ranks
    draw = np.random.default_rng(ranks)

    def skewed(most: int, count: int) -> np.ndarray:
        return (most * draw.random(count) ** 3).astype(np.int64)

    def lists(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(values))

    lengths = np.clip(draw.lognormal(2, 1, rows), 1, 40).astype(np.int64)
    asked = np.full(rows, ASKED)
    columns = {
        "item": lists(lengths, skewed(ITEMS, int(lengths.sum()))),
        "action": lists(lengths, draw.integers(0, ACTIONS, lengths.sum())),
        "candidate": lists(asked, skewed(ITEMS, rows * ASKED)),
        "clicked": lists(asked, draw.integers(0, 2, rows * ASKED).astype(np.float32)),
        "bought": draw.integers(0, 2, rows).astype(np.float32),
        "user": draw.integers(0, USERS, rows),
        **{name: skewed(CATEGORIES, rows) for name in ONE_HOT},
        **{name: draw.random(rows).astype(np.float32) for name in DENSE},
    }
    pq.write_table(pa.table(columns), folder / "impressions.parquet", row_group_size=SAMPLES)


@dataclass
class Inputs:
    """What the programs train on.

    ids: all keys. dense: [B, 4]. clicked: [B * ASKED] of the candidates. bought: [B].
    """

    ids: KeyedJaggedTensor
    dense: Tensor
    clicked: Tensor
    bought: Tensor


def by_freescale(folder: str, rank: int, size: int, adapt: Callable[[Inputs], Any]) -> Any:
    """A loader of all batches of one epoch, each given to `adapt` in the thread that makes it."""
    del rank, size  # it finds them itself

    def inputs(batch: Batch) -> Any:
        clicked, bought = batch.labels["clicked"], batch.labels["bought"]
        assert isinstance(clicked, Jagged)
        assert isinstance(bought, Tensor)
        return adapt(Inputs(batch.features, batch.dense, clicked.values, bought))

    return FreeScaleDataLoader(
        ParquetSource(folder), SCHEMA, batch_size=SAMPLES, shuffle=True, adapt=inputs, timeout_s=PATIENCE_S
    )


def by_torch(folder: str, rank: int, size: int, adapt: Callable[[Inputs], Any]) -> Any:
    """Torch's own loader, with a collate function such as people write them."""

    def collate(rows: list[dict[str, Any]]) -> Any:
        lists = [[row[key] if isinstance(row[key], list) else [row[key]] for row in rows] for key in SCHEMA.keys]
        ids = KeyedJaggedTensor(
            keys=list(SCHEMA.keys),
            values=torch.tensor([value for of_key in lists for ids in of_key for value in ids]),
            lengths=torch.tensor([len(ids) for of_key in lists for ids in of_key]),
        )
        dense = torch.tensor([[row[name] for name in DENSE] for row in rows])
        clicked = torch.tensor([value for row in rows for value in row["clicked"]])
        return adapt(Inputs(ids, dense, clicked, torch.tensor([row["bought"] for row in rows])))

    rows = pq.read_table(folder).to_pylist()[rank::size]
    return DataLoader(rows, batch_size=SAMPLES, collate_fn=collate)


def rows_of(**tables: tuple[int, Sequence[str]]) -> EmbeddingCollection:
    """name -> (rows, features)."""
    configs = [
        EmbeddingConfig(name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=list(features))
        for name, (rows, features) in tables.items()
    ]
    return EmbeddingCollection(tables=configs, device=torch.device("meta"))


def means_of(**tables: tuple[int, Sequence[str]]) -> EmbeddingBagCollection:
    mean = PoolingType.MEAN
    configs = [
        EmbeddingBagConfig(
            name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=list(features), pooling=mean
        )
        for name, (rows, features) in tables.items()
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def picked(ids: KeyedJaggedTensor, *keys: str) -> KeyedJaggedTensor:
    return ids.permute([SCHEMA.keys.index(key) for key in keys])


def attended(events: Tensor, lengths: Tensor, asked: Tensor) -> Tensor:
    """Each candidate looks at its sample's history: [B * ASKED, WIDTH]."""
    looked = [
        F.softmax(of_sample @ part.T, dim=1) @ part
        for part, of_sample in zip(events.split(lengths.tolist()), asked.split(ASKED), strict=True)
    ]
    return torch.cat(looked)


class Program(nn.Module):
    """A model with its collections in `embeddings`."""

    optimizers: tuple[tuple[type[torch.optim.Optimizer], float], ...] = ((RowWiseAdagrad, 0.05),)
    adapt: Callable[[Inputs], Any] = staticmethod(lambda inputs: inputs)

    def __init__(self, inputs: int, outputs: int, **collections: EmbeddingCollection | EmbeddingBagCollection) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(collections)
        self.last = nn.Linear(inputs, outputs)


class Hstu(Program):
    """Its batch is a bare list. It merges the histories' and the candidates' KJTs and looks both up in one call."""

    adapt = staticmethod(lambda inputs: list(vars(inputs).values()))

    def __init__(self) -> None:
        tables = rows_of(items=(ITEMS, ["item", "candidate"]), actions=(ACTIONS, ["action"]))
        super().__init__(WIDTH, WIDTH, all=tables)

    def forward(self, batch: list[Any]) -> tuple[Tensor, Tensor]:
        ids, _, clicked, _ = batch
        history, candidates = picked(ids, "action", "item"), picked(ids, "candidate")
        merged = KeyedJaggedTensor(
            keys=["action", "item", "candidate"],
            values=torch.cat([history.values(), candidates.values()]),
            lengths=torch.cat([history.lengths(), candidates.lengths()]),
        )
        found = self.embeddings["all"](merged)
        asked = found["candidate"].values()
        read = attended(found["item"].values() + found["action"].values(), found["item"].lengths(), asked)
        logits = (self.last(read) * asked).sum(1)
        return F.binary_cross_entropy_with_logits(logits, clicked), logits.detach()


class MultiTask(Program):
    """Two tasks; candidates attend to the history, and what is known of the user is pooled: two kinds of collections,
    with an optimizer each."""

    optimizers = ((RowWiseAdagrad, 0.05), (torch.optim.SGD, 0.1))

    def __init__(self) -> None:
        shown = rows_of(items=(ITEMS, ["item", "candidate"]))
        known = means_of(read=(ITEMS, ["item"]), users=(USERS, ["user"]), first=(CATEGORIES, ["c0"]))
        super().__init__(5 * WIDTH, 1, shown=shown, known=known)
        self.buys = nn.Linear(3 * WIDTH, 1)

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        known = self.embeddings["known"](batch.ids).values()
        shown = self.embeddings["shown"](picked(batch.ids, "candidate", "item"))
        asked = shown["candidate"].values()
        read = attended(shown["item"].values(), shown["item"].lengths(), asked)
        clicked = self.last(torch.cat([asked, read, known.repeat_interleave(ASKED, 0)], dim=1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(clicked, batch.clicked)
        return loss + F.binary_cross_entropy_with_logits(self.buys(known).squeeze(1), batch.bought), clicked.detach()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "HSTU": Hstu,
    "multi-task": MultiTask,
}


def build(program: str, size: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Tables in turn by rows, whole and by columns."""
    model = PROGRAMS[program]()
    plan = {}
    for at, (name, collection) in enumerate(model.embeddings.items()):
        pooled = isinstance(collection, EmbeddingBagCollection)
        kind, rate = model.optimizers[at % len(model.optimizers)]
        apply_optimizer_in_backward(kind, collection.parameters(), {"lr": rate})
        configs = collection.embedding_bag_configs() if pooled else collection.embedding_configs()
        ways = (row_wise(), table_wise(rank=size - 1), column_wise(ranks=[0, size - 1]))
        plan[f"embeddings.{name}"] = construct_module_sharding_plan(
            collection,
            {config.name: ways[number % 3] for number, config in enumerate(configs)},
            sharder=EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder(),
            local_size=size,
            world_size=size,
            device_type="cpu",
        )
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(plan))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    return parallel, CombinedOptimizer([("fused", parallel.fused_optimizer), ("dense", dense)])
