"""Small sharded modules for trials, one for each kind of module that fscomm serves."""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import LRU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.tables.torchrec import cpu_kernels, sharded

ROWS, COLUMNS, SAMPLES, LONGEST = 12, 8, 4, 3
RANKS = 2  # at most; they make the trials for all ranks, which have the same versions
MANAGED_IDS = 60  # of fewer rows
STEPS = 4
FEATURES = ("r0", "r1", "t0", "c0")
TABLES = {"r": ("r0", "r1"), "t": ("t0",), "c": ("c0",)}  # row-, table- and column-wise
RATE = {"lr": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Of all modules of a kind.

    Attributes:
        kind: what the kind is called.
        make: a small module on the CPU, sharded over the ranks of a process group. The same at every call; it sets the
            seed of random numbers for what is done with it. Collective.
        batches: the features of each step, on this rank of the group.
        tensors: what the module's forward returned, as tensors.
    """

    kind: str
    make: Callable[[Any], Any]
    batches: Callable[[int], Sequence[Any]]
    tensors: Callable[[Any], list[torch.Tensor]]


def trial_of(module: Any) -> Trial:
    """The trial that modules of the kind of `module` need."""
    if sharded.is_managed(module):
        kinds = {type(each) for each in sharded.maps(module).values()}
        return Trial(
            kind=f"managed collision by {' and '.join(sorted(kind.__name__ for kind in kinds))}",
            make=partial(_make_managed, kinds=kinds),
            batches=partial(_batches, ids=MANAGED_IDS),
            tensors=lambda output: _of_rows(output[0]),
        )
    pooled = sharded.is_pooled(module)
    return Trial(
        kind="ShardedEmbeddingBagCollection" if pooled else "ShardedEmbeddingCollection",
        make=partial(_make, pooled=pooled),
        batches=partial(_batches, ids=ROWS),
        tensors=_of_bags if pooled else _of_rows,
    )


def _make(group: Any, *, pooled: bool) -> Any:
    """Tables of every kind of sharding, on the last rank where they are not on all."""
    torch.manual_seed(0)
    last = group.size() - 1
    shardings = {"r": row_wise(), "t": table_wise(rank=last), "c": column_wise(ranks=[0, last])}
    module = _bags() if pooled else _rows()
    sharder: Any = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
    apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), RATE)
    return _shard(module, shardings, sharder, group)


def _make_managed(group: Any, *, kinds: Collection[type]) -> Any:
    torch.manual_seed(0)
    kind_of = dict(zip(TABLES, itertools.cycle(sorted(kinds, key=lambda kind: kind.__name__)), strict=False))
    rows = _rows()
    apply_optimizer_in_backward(RowWiseAdagrad, rows.parameters(), RATE)
    maps = {name: _map(kind_of[name]) for name in TABLES}
    module = ManagedCollisionEmbeddingCollection(rows, ManagedCollisionCollection(maps, rows.embedding_configs()))
    made = _shard(module, dict.fromkeys(TABLES, row_wise()), ManagedCollisionEmbeddingCollectionSharder(), group)
    cpu_kernels.install(made)
    return made


def _map(kind: Any) -> Any:
    """MCH that evicts in every step. MPZCH evicts by the hour only, so a trial sees none of that."""
    if kind is MCHManagedCollisionModule:
        return kind(ROWS, sharded.HOST, LRU_EvictionPolicy(), eviction_interval=1, input_hash_size=MANAGED_IDS)
    return kind(ROWS, sharded.HOST, total_num_buckets=RANKS, max_probe=3)


def _shard(module: Any, shardings: dict[str, Any], sharder: Any, group: Any) -> Any:
    size = group.size()
    plan = construct_module_sharding_plan(
        module, shardings, sharder=sharder, local_size=size, world_size=size, device_type="cpu"
    )
    env = ShardingEnv.from_local(size, group.rank())
    env.process_group = group  # from_process_group makes more groups, and that on some ranks of the job only
    return sharder.shard(module, plan, env, sharded.HOST)


def _rows() -> EmbeddingCollection:
    return EmbeddingCollection(tables=[EmbeddingConfig(**table) for table in _tables()], device=sharded.HOST)


def _bags() -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(pooling=PoolingType.MEAN if table["name"] == "r" else PoolingType.SUM, **table)
        for table in _tables()
    ]
    return EmbeddingBagCollection(tables=tables, device=sharded.HOST)


def _tables() -> list[dict[str, Any]]:
    return [
        {"name": name, "num_embeddings": ROWS, "embedding_dim": COLUMNS, "feature_names": list(features)}
        for name, features in TABLES.items()
    ]


def _batches(rank: int, *, ids: int) -> list[KeyedJaggedTensor]:
    """Each has some rows of the one before: without shared rows a trial would not try the collision class."""
    numbers = torch.Generator().manual_seed(rank)
    made = []
    for _ in range(STEPS):
        lengths = torch.randint(0, LONGEST + 1, (len(FEATURES) * SAMPLES,), generator=numbers)
        drawn = torch.randint(0, ids, (int(lengths.sum()),), generator=numbers)
        made.append(KeyedJaggedTensor(keys=list(FEATURES), values=drawn, lengths=lengths, stride=SAMPLES))
    return made


def _of_rows(output: Any) -> list[torch.Tensor]:
    return [output[name].values() for name in FEATURES]


def _of_bags(output: Any) -> list[torch.Tensor]:
    return [output.values()]
