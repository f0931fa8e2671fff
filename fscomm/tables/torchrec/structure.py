"""How the parts of a TorchRec sharded module are reached."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torch import nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardedModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.tables.sharding_library import outermost

HOST = torch.device("cpu")
OF_HOSTS = ("table_row_wise", "grid_shard")  # a table, or some of its columns, lies on the ranks of one host
IN_PARTS = ("row_wise", *OF_HOSTS)  # vectors of pooled tables are added up from parts that several ranks have


def sharded_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return outermost(model, lambda module: isinstance(module, ShardedModule))


def is_pooled(module: Any) -> bool:
    return isinstance(module, ShardedEmbeddingBagCollection)


def dedups(module: Any) -> bool:
    """Whether every rank looks up each of its ids once."""
    return bool(getattr(module, "_use_index_dedup", False))


def where(module: Any) -> torch.device:
    """The device of its tables on this rank."""
    return module._device or HOST


def shardings(module: Any) -> list[tuple[str, Any]]:
    """(sharding type, TorchRec's sharding) of each group of its tables; none where there are no such groups."""
    if is_pooled(module):
        kinds, found = getattr(module, "_sharding_types", []), getattr(module, "_embedding_shardings", [])
        return list(zip(kinds, found, strict=True))
    return list(getattr(module, "_sharding_type_to_sharding", {}).items())


def parts(name: str, module: Any) -> list[str]:
    """What the groups of the module of this name are called."""
    return [f"{name} ({kind})" for kind, _ in shardings(module)]


def configs(sharding: Any) -> list[list[Any]]:
    """[W][...] of the tables of a group that have one kernel on a rank."""
    found: list[list[Any]] = sharding._grouped_embedding_configs_per_rank
    return found


def tables(sharding: Any) -> list[list[Any]]:
    """[W][...] the shards of tables on each rank."""
    return [[table for config in of_rank for table in config.embedding_tables] for of_rank in configs(sharding)]


def runs(sharding: Any) -> tuple[tuple[int, ...], ...]:
    """[W][T] features of each table of each rank, in the order in which ids are sent there."""
    return tuple(tuple(table.num_features() for table in of_rank) for of_rank in tables(sharding))


def row_columns(module: Any, kind: str, sharding: Any) -> int:
    """Of the rows of a group; of pooled tables the most that divides the columns of all of them."""
    if is_pooled(module):
        return math.gcd(*(table.local_cols for of_rank in tables(sharding) for table in of_rank))
    columns: int = module._embedding_dim_for_sharding_type(kind)
    return columns


def output_dtype(sharding: Any) -> torch.dtype:
    """Of the rows that a group gives out."""
    given = {
        (config.fused_params or {}).get("output_dtype") or SparseType.FP32
        for of_rank in configs(sharding)
        for config in of_rank
    }
    return given.pop().as_dtype() if given else torch.float32


def kernels(lookup: Any) -> list[Any]:
    """The fused kernels of one group on this rank."""
    return [embedding.emb_module for embedding in lookup._emb_modules]


def owners(module: Any, kind: str, sharding: Any) -> Any:
    """The process group of the ranks among which a vector of pooled tables lies in parts; None: it lies whole."""
    if not is_pooled(module) or kind not in IN_PARTS:
        return None
    return sharding._intra_pg if kind in OF_HOSTS else module._env.process_group


def asked(module: Any, features: Any) -> tuple[int, int]:
    """How many ids a forward of a module looks up, and the bytes of the embeddings that it gives for them."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    ids = features.values().numel()
    if isinstance(module, ShardedEmbeddingCollection):
        return ids, 4 * ids * module._embedding_dim
    return ids, 4 * features.stride() * sum(getattr(module, "_embedding_dims", []))


def asked_of_group(module: Any, sharding: Any, features: Any) -> tuple[int, int]:
    """The same of one of its groups."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    lengths = dict(zip(features.keys(), features.length_per_key(), strict=True))
    ids = sum(lengths[name] for name in set(sharding.feature_names()))
    if is_pooled(module):  # one vector a sample
        return ids, 4 * features.stride() * sum(sharding.embedding_dims())
    return ids, 4 * ids * module._embedding_dim
