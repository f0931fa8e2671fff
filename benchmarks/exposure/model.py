"""The model of the benchmark: sharded embeddings, compute that takes a given time, and a small dense network.

The compute lies between the embeddings' forward and their backward, where a model has it. Emulated compute is a sleep:
a GPU at work leaves the CPU idle too. Real compute is matrix products on the rank's own core.
"""

import importlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from exposure.ids import windows
from exposure.shape import Shape
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

CPU = torch.device("cpu")
HIDDEN = 32
PROBES, HOURS = 32, 12
_MATRIX = 256


@dataclass
class Batch(Pipelineable):
    """What one rank trains on in one step, or in a part of it. rows: by feature, where they were looked up already."""

    features: KeyedJaggedTensor
    labels: torch.Tensor
    rows: list[torch.Tensor] | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(
            features=self.features.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )

    def record_stream(self, stream: Any) -> None:
        """Nothing: on the CPU there are no streams."""

    def pin_memory(self) -> "Batch":
        return self

    def parts(self, number: int) -> list["Batch"]:
        """Of equally many samples; all samples have as many ids."""
        keys = self.features.keys()
        values = self.features.values().view(len(keys), len(self.labels), -1).tensor_split(number, dim=1)
        lengths = self.features.lengths().view(len(keys), -1).tensor_split(number, dim=1)
        given = zip(values, lengths, self.labels.tensor_split(number), strict=True)
        return [
            Batch(KeyedJaggedTensor(keys, ids.flatten(), lengths=of_bags.flatten(), stride=len(labels)), labels)
            for ids, of_bags, labels in given
        ]


class Clock:
    """How the compute of a step is spent. One instance for all models of a process: `set` changes it for all."""

    forward_s = 0.0
    backward_s = 0.0
    after_s = 0.0
    products_per_s = 0.0  # 0: sleep

    def set(self, compute_s: float, *, after_s: float = 0.0, products_per_s: float = 0.0) -> None:
        """`after_s` of it after the backward (optimizer, metrics), a third of the rest in the forward."""
        self.after_s = after_s
        self.forward_s, self.backward_s = (compute_s - after_s) / 3, (compute_s - after_s) * 2 / 3
        self.products_per_s = products_per_s

    def spend(self, seconds: float) -> None:
        if not self.products_per_s:
            time.sleep(seconds)
            return
        for _ in range(round(seconds * self.products_per_s)):
            torch.mm(_LEFT, _LEFT, out=_OUT)


_LEFT = torch.full((_MATRIX, _MATRIX), 1e-3)
_OUT = torch.empty(_MATRIX, _MATRIX)
clock = Clock()


def products_per_s() -> float:
    """Matrix products a second on this core at its best, while all ranks work; the slowest rank's."""
    best = 0.0
    dist.barrier()
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(100):
            torch.mm(_LEFT, _LEFT, out=_OUT)
        best = max(best, 100 / (time.perf_counter() - start))
    slowest = torch.tensor(best)
    dist.all_reduce(slowest, dist.ReduceOp.MIN)
    return slowest.item()


class _Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, share: float) -> torch.Tensor:
        ctx.share = share
        clock.spend(clock.forward_s * share)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        clock.spend(clock.backward_s * ctx.share)
        return gradient, None


@torch.fx.wrap
def compute(values: torch.Tensor, share: float) -> torch.Tensor:
    """`values`, after the forward's part of the compute of a `share` of the samples; its backward takes the rest."""
    return _Compute.apply(values, share)


class Dense(nn.Module):
    """Means over each sample's rows, a small network, and (if asked for) a wide one that DDP has to reduce."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.first = nn.Linear(len(shape.sharding) * shape.width, HIDDEN)
        wide = shape.dense_parameters // (2 * HIDDEN)
        pair = (nn.Linear(HIDDEN, wide), nn.ReLU(), nn.Linear(wide, HIDDEN)) if wide else ()
        self.wide = nn.Sequential(*pair)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, values: list[torch.Tensor], labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = 1 if self.shape.pooled else self.shape.ids_per_sample
        samples = len(labels)
        share = samples / self.shape.samples
        rows = compute(torch.cat(values), share).view(len(values), samples, ids, self.shape.width)
        means = rows.mean(2).transpose(0, 1).reshape(samples, -1)
        logits = self.last(self.wide(torch.relu(self.first(means)))).squeeze(1)
        return share * nn.functional.binary_cross_entropy_with_logits(logits, labels), logits


class Model(nn.Module):
    """An embedding collection (`embeddings`) below the dense part. Returns (loss, logits)."""

    def __init__(self, shape: Shape, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dense = Dense(shape)
        self.features = shape.features
        self.pooled = bool(shape.pooled)
        self.managed = bool(shape.slots)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        # TorchRec's pipelines trace this with a proxy in the place of the batch: it must take the way of the tables.
        given = isinstance(batch.rows, list)
        return self.dense(batch.rows if given else self.look_up(batch.features), batch.labels)

    def look_up(self, features: KeyedJaggedTensor) -> list[torch.Tensor]:
        """What the collection gives for each feature."""
        found = self.embeddings(features)
        found = (found[0] if self.managed else found).wait()
        if self.pooled:
            vectors = found.to_dict()
            return [vectors[name] for name in self.features]
        return [found[name].values() for name in self.features]


class Constant(nn.Module):
    """Model without embeddings: rows of the right shape that are always there. Measures the compute alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dense = Dense(shape)
        size = (shape.samples if shape.pooled else shape.events if shape.dedup else shape.ids, shape.width)
        self._rows = [torch.randn(*size, requires_grad=True) for _ in shape.sharding]
        self._which = None
        if shape.dedup:
            self._which = torch.from_numpy(
                windows(np.arange(shape.events), users=shape.users, length=shape.ids_per_sample)
            )

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        which = self._which  # index dedup selects the rows of a batch, and adds up their gradients
        rows = self._rows if which is None else [rows.index_select(0, which) for rows in self._rows]
        return self.dense(rows, batch.labels)


def sharded(shape: Shape, *, pec: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as a user has it: DistributedModelParallel, row-wise Adagrad in the tables, SGD elsewhere.

    The same weights in every process and at every call. `pec`: with TorchRec's PECEmbeddingCollection around the
    collection, as its pipeline wants it.
    """
    torch.manual_seed(0)
    config = EmbeddingBagConfig if shape.pooled else EmbeddingConfig
    tables: Any = [
        config(
            name=f"t{table}",
            num_embeddings=shape.slots or rows,
            embedding_dim=shape.width,
            feature_names=[f"f{table}"],
        )
        for table, rows in enumerate(shape.table_rows)
    ]
    collection: Any = EmbeddingBagCollection(tables) if shape.pooled else EmbeddingCollection(tables)
    # A layer below the tables starts from the same weights, however large the tables are.
    torch.manual_seed(1)
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.02})
    sharder: Any = EmbeddingBagCollectionSharder()
    if not shape.pooled:
        sharder = EmbeddingCollectionSharder(use_index_dedup=shape.dedup)
    if shape.dedup:
        sys.path.append(str(Path(__file__).parents[2] / "tests/comm/exact"))
        importlib.import_module("cpu_kernels")  # fbgemm finds the distinct ids of a batch on CUDA only
    ranks = dist.get_world_size()
    if pec:
        sharder = PECEmbeddingCollectionSharder()
        collection = PECEmbeddingCollection(collection)
    if shape.slots:
        sharder = ManagedCollisionEmbeddingCollectionSharder()
        collection = managed(collection, ranks)
    plan = construct_module_sharding_plan(
        collection,
        {f"t{table}": _sharding(kind, table, shape.width) for table, kind in enumerate(shape.sharding)},
        sharder=sharder,
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    assert dist.group.WORLD is not None
    model = DistributedModelParallel(
        Model(shape, collection),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=CPU,
        plan=ShardingPlan({"embeddings": plan}),
        sharders=[sharder],
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False),  # which cannot add up gradients of parts
    )
    if shape.slots:
        import fscomm  # it costs memory, which other modes are measured without

        fscomm.cpu_kernels.install(model)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.SGD(parameters, lr=0.02))
    return model, CombinedOptimizer([model.fused_optimizer, optimizer])


def managed(collection: Any, ranks: int) -> ManagedCollisionEmbeddingCollection:
    """Its tables behind MPZCH, which evicts ids that nobody used for a block: an hour is a step there."""
    maps = {
        table.name: HashZchManagedCollisionModule(
            zch_size=table.num_embeddings,
            device=CPU,
            total_num_buckets=ranks,
            max_probe=PROBES,
            eviction_policy_name=HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
            eviction_config=HashZchEvictionConfig(features=table.feature_names, single_ttl=HOURS),
        )
        for table in collection.embedding_configs()
    }
    return ManagedCollisionEmbeddingCollection(
        collection,
        ManagedCollisionCollection(maps, collection.embedding_configs()),
        allow_in_place_embed_weight_update=True,
    )


def alone(shape: Shape) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The compute-only model under DDP."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Constant(shape))
    return model, torch.optim.SGD(model.parameters(), lr=0.02)


def _sharding(kind: str, table: int, width: int) -> Any:
    ranks = dist.get_world_size()
    if kind == "row":
        return row_wise()
    if kind == "table":
        return table_wise(rank=table % ranks)
    if kind == "column":
        return column_wise(ranks=[(table + part) % ranks for part in range(2)])
    raise ValueError(f"sharding must be row, table or column, got {kind!r}")
