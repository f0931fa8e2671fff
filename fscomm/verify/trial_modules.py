"""Small sharded modules for trials, one for each kind of module that fscomm serves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

from fscomm.tables.torchrec import sharded
from fscomm.tables.torchrec.features import output_tensors
from fscomm.tables.torchrec.requirements import METHODS

ROWS, COLUMNS, SAMPLES, LONGEST = 12, 8, 4, 3
RANKS = 2  # at most; they make the trials for all ranks, which have the same versions
STEPS = 4
FEATURES = ("r0", "r1", "t0", "c0")
TABLES = {"r": ("r0", "r1"), "t": ("t0",), "c": ("c0",)}  # row-, table- and column-wise
RATE = {"lr": 0.1}
_SIZES: list[dict[str, Any]] = [
    {"name": name, "num_embeddings": ROWS, "embedding_dim": COLUMNS, "feature_names": list(features)}
    for name, features in TABLES.items()
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Of all modules of a kind.

    Attributes:
        kind: what the kind is called.
        make: a small module on the CPU, sharded over the ranks of a process group. The same at every call; it sets the
            seed of random numbers for what is done with it. Collective.
        ids: features have ids below this number.
        methods: of TorchRec's classes, through which a served forward goes.
    """

    kind: str
    make: Callable[[Any], Any]
    ids: int = ROWS
    methods: Mapping[type, Sequence[str]] = field(default_factory=lambda: METHODS)


def trial_of(module: Any) -> Trial:
    """The trial that modules of the kind of `module` need."""
    pooled = sharded.is_pooled(module)
    return Trial(
        kind="ShardedEmbeddingBagCollection" if pooled else "ShardedEmbeddingCollection",
        make=partial(_make, pooled=pooled),
    )


def _make(group: Any, *, pooled: bool) -> Any:
    """Tables of every kind of sharding, on the last rank where they are not on all."""
    torch.manual_seed(0)
    last = group.size() - 1
    shardings = {"r": row_wise(), "t": table_wise(rank=last), "c": column_wise(ranks=[0, last])}
    module = _bags() if pooled else rows()
    sharder: Any = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
    apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), RATE)
    return shard(module, shardings, sharder, group)


def shard(module: Any, shardings: dict[str, Any], sharder: Any, group: Any) -> Any:
    size = group.size()
    plan = construct_module_sharding_plan(
        module, shardings, sharder=sharder, local_size=size, world_size=size, device_type="cpu"
    )
    env = ShardingEnv.from_local(size, group.rank())
    env.process_group = group  # from_process_group makes more groups, and that on some ranks of the job only
    return sharder.shard(module, plan, env, sharded.HOST)


def rows() -> EmbeddingCollection:
    return EmbeddingCollection(tables=[EmbeddingConfig(**table) for table in _SIZES], device=sharded.HOST)


def _bags() -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(pooling=PoolingType.MEAN if table["name"] == "r" else PoolingType.SUM, **table)
        for table in _SIZES
    ]
    return EmbeddingBagCollection(tables=tables, device=sharded.HOST)


def batches(rank: int, ids: int) -> list[KeyedJaggedTensor]:
    """The features of each step on this rank. Each has some rows of the one before: without shared rows a trial would
    not try the collision class."""
    numbers = torch.Generator().manual_seed(rank)
    made = []
    for _ in range(STEPS):
        lengths = torch.randint(0, LONGEST + 1, (len(FEATURES) * SAMPLES,), generator=numbers)
        drawn = torch.randint(0, ids, (int(lengths.sum()),), generator=numbers)
        made.append(KeyedJaggedTensor(keys=list(FEATURES), values=drawn, lengths=lengths, stride=SAMPLES))
    return made


def numbers_of(output: Any) -> torch.Tensor:
    """All that a module's forward returned, in one row."""
    embeddings = output[0] if isinstance(output, tuple) else output  # managed collision also returns the ids
    return torch.cat([each.flatten() for each in output_tensors(embeddings.wait())])
