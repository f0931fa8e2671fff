"""Small sharded modules that are made and thrown away: on them fscomm tries what it is about to do."""

from functools import partial
from typing import Any

import torch
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.tables.sharding_library import Trial
from fscomm.tables.torchrec import structure

ROWS, COLUMNS, SAMPLES, LONGEST = 12, 8, 4, 3
RANKS = 2  # at most
STEPS = 4
FEATURES = ("r0", "r1", "t0", "c0")
TABLES = {"r": ("r0", "r1"), "t": ("t0",), "c": ("c0",)}  # row-, table- and column-wise
RATE = {"lr": 0.1}


def trial(module: Any) -> Trial:
    """Of what is done with `module`."""
    pooled = structure.is_pooled(module)
    return Trial(
        kind="ShardedEmbeddingBagCollection" if pooled else "ShardedEmbeddingCollection",
        make=partial(_make, pooled=pooled),
        batches=partial(batches, ids=ROWS),
        tensors=_of_bags if pooled else tensors_of_rows,
    )


def _make(group: Any, *, pooled: bool) -> Any:
    """The same at every call."""
    torch.manual_seed(0)
    last = group.size() - 1
    ways = {"r": row_wise(), "t": table_wise(rank=last), "c": column_wise(ranks=[0, last])}
    module = _bags() if pooled else rows()
    sharder: Any = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
    apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), RATE)
    return sharded(module, ways, sharder, group)


def sharded(module: Any, ways: dict[str, Any], sharder: Any, group: Any) -> Any:
    size = group.size()
    plan = construct_module_sharding_plan(
        module, ways, sharder=sharder, local_size=size, world_size=size, device_type="cpu"
    )
    env = ShardingEnv.from_local(size, group.rank())
    env.process_group = group  # from_process_group makes more groups, and that on some ranks of the job only
    return sharder.shard(module, plan, env, structure.HOST)


def rows() -> EmbeddingCollection:
    return EmbeddingCollection(tables=[EmbeddingConfig(**table) for table in _tables()], device=structure.HOST)


def _bags() -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(pooling=PoolingType.MEAN if table["name"] == "r" else PoolingType.SUM, **table)
        for table in _tables()
    ]
    return EmbeddingBagCollection(tables=tables, device=structure.HOST)


def _tables() -> list[dict[str, Any]]:
    return [
        {"name": name, "num_embeddings": ROWS, "embedding_dim": COLUMNS, "feature_names": list(features)}
        for name, features in TABLES.items()
    ]


def batches(rank: int, *, ids: int) -> list[KeyedJaggedTensor]:
    """Of which each has rows of the one before, and others."""
    numbers = torch.Generator().manual_seed(rank)
    made = []
    for _ in range(STEPS):
        lengths = torch.randint(0, LONGEST + 1, (len(FEATURES) * SAMPLES,), generator=numbers)
        drawn = torch.randint(0, ids, (int(lengths.sum()),), generator=numbers)
        made.append(KeyedJaggedTensor(keys=list(FEATURES), values=drawn, lengths=lengths, stride=SAMPLES))
    return made


def tensors_of_rows(output: Any) -> list[torch.Tensor]:
    return [output[name].values() for name in FEATURES]


def _of_bags(output: Any) -> list[torch.Tensor]:
    return [output.values()]
