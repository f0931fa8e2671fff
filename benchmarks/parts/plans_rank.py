"""What the ranks of `plans.py` do when called: time exchanges, and train steps on sharding plans."""

import gc
import logging
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from freescale_tools.plan.torchrec import from_document
from freescale_tools.write import exchange_times

CPU = torch.device("cpu")


class Model(nn.Module):
    """Tables alone: the loss is a sum, so that a step is look-ups, exchanges and updates."""

    def __init__(self, tables: list[dict[str, Any]], *, pooled: bool) -> None:
        super().__init__()
        config: Any = EmbeddingBagConfig if pooled else EmbeddingConfig
        configs = [
            config(
                name=one["name"], num_embeddings=one["rows"], embedding_dim=one["dim"], feature_names=one["features"]
            )
            for one in tables
        ]  # fmt: skip
        self.embeddings: nn.Module = EmbeddingBagCollection(configs) if pooled else EmbeddingCollection(configs)
        self.pooled = pooled

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found = self.embeddings(features)
        if self.pooled:
            return found.values().sum()
        return torch.stack([one.values().sum() for one in found.values()]).sum()


def links(state: dict[str, Any], *, sizes: list[int], repeats: int) -> dict[str, Any]:
    """All-to-alls of all ranks by size, and one all-reduce."""
    points = exchange_times.all_to_alls(CPU, [dist.get_world_size()], sizes, repeats=repeats)
    reduce_s = exchange_times.all_reduce(CPU, sizes[-1], repeats=repeats)
    return {"points": points, "all_reduce": {"bytes": sizes[-1], "seconds": reduce_s}}


def drawn_ids(table: dict[str, Any], ids: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [ids]: row r is used in proportion to 1 / (r + 1) ** skew, with rows shuffled if `hashed`."""
    weight = 1.0 / np.arange(1, table["rows"] + 1) ** table["skew"]
    ends = np.cumsum(weight)
    found = np.minimum(np.searchsorted(ends, rng.random(ids) * ends[-1]), table["rows"] - 1)
    if table["hashed"]:
        found = np.random.default_rng(table["rows"]).permutation(table["rows"])[found]
    return found.astype(np.int64)


def prepare(
    state: dict[str, Any], *, tables: list[dict[str, Any]], pooled: bool, plans: list[Any], samples: int, batches: int,
    seed: int,
) -> None:  # fmt: skip
    """Make one model per plan, and the batches that all of them train on."""
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    state.clear()
    gc.collect()  # sharded models hold themselves
    rng = np.random.default_rng([seed, dist.get_rank()])
    names = [feature for table in tables for feature in table["features"]]
    state["batches"] = []
    for _ in range(batches):
        lengths, values = [], []
        for table in tables:
            for _ in table["features"]:
                length = 1 + rng.poisson(table["ids_per_sample"] - 1, samples)
                lengths.append(length)
                values.append(drawn_ids(table, int(length.sum()), rng))
        state["batches"].append(
            KeyedJaggedTensor(
                keys=names,
                values=torch.from_numpy(np.concatenate(values)),
                lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
                stride=samples,
            )
        )
    state["models"] = [_sharded(tables, plan, pooled=pooled) for plan in plans]


def _sharded(tables: list[dict[str, Any]], plan: Any, *, pooled: bool) -> nn.Module:
    model = Model(tables, pooled=pooled)
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.01})
    sharders: Any = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    assert dist.group.WORLD is not None
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=CPU,
        plan=from_document(plan, "benchmark"),
        sharders=sharders,
    )


def block(state: dict[str, Any], *, plan: int, warm: int, steps: int) -> list[float]:
    """Seconds of each of `steps` steps on one plan, after `warm` others, behind a barrier."""
    model, batches = state["models"][plan], state["batches"]
    marks = []
    dist.barrier()
    for step in range(warm + steps):
        marks.append(time.perf_counter())
        model(batches[step % len(batches)]).backward()
    dist.barrier()
    marks.append(time.perf_counter())
    return np.diff(marks)[warm:].tolist()
