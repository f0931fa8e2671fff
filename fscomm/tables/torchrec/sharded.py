"""How the parts of a TorchRec sharded module are reached: its tables, their groups, and the kernels on this rank.

Most of it is private to TorchRec. `requirements` looks up whether all of it is there before any of it is used.
"""

import math
from collections.abc import Collection
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.mc_embedding import ShardedManagedCollisionEmbeddingCollection
from torchrec.distributed.types import ShardedModule

HOST = torch.device("cpu")
OF_HOSTS = ("table_row_wise", "grid_shard")  # a table, or some of its columns, is on the ranks of one host
IN_PARTS = ("row_wise", *OF_HOSTS)  # several ranks have parts of a vector of a pooled table: these are added up


def is_sharded(module: Any) -> bool:
    return isinstance(module, ShardedModule)


def rows_of(module: Any) -> Any:
    """The sharded collection that has the tables of a sharded module: what lies behind managed collision, or itself."""
    return module._embedding_module if isinstance(module, ShardedManagedCollisionEmbeddingCollection) else module


def is_managed(module: Any) -> bool:
    return rows_of(module) is not module


def is_pooled(module: Any) -> bool:
    return isinstance(module, ShardedEmbeddingBagCollection)


def dedups(module: Any) -> bool:
    """Whether every rank looks up each of its ids once."""
    return bool(getattr(rows_of(module), "_use_index_dedup", False))


def is_quantised(module: Any) -> bool:
    """Whether rows and gradients may travel encoded, by codecs that the sharder was given."""
    return bool(getattr(rows_of(module), "qcomm_codecs_registry", None))


def where(module: Any) -> torch.device:
    """The device of the module's tables on this rank."""
    return module._device or HOST


def groups(name: str, module: Any) -> list[tuple[str, str, Any]]:
    """(name, sharding type, TorchRec's sharding) of each sharding group of the module of this name; none where there
    are no such groups."""
    module = rows_of(module)
    found = getattr(module, "_sharding_type_to_sharding", {}).items()
    if is_pooled(module):
        kinds, shardings = getattr(module, "_sharding_types", []), getattr(module, "_embedding_shardings", [])
        found = zip(kinds, shardings, strict=True)
    return [(f"{name} ({kind})", kind, sharding) for kind, sharding in found]


def group_names(name: str, module: Any) -> list[str]:
    return [group for group, _, _ in groups(name, module)]


def configs(sharding: Any) -> list[Any]:
    """The configurations of a group on all ranks; each describes the tables of one kernel on one rank."""
    return [config for of_rank in sharding._grouped_embedding_configs_per_rank for config in of_rank]


def tables(sharding: Any) -> list[list[Any]]:
    """[W][...] the shards of tables on each rank."""
    by_rank = sharding._grouped_embedding_configs_per_rank
    return [[table for config in of_rank for table in config.embedding_tables] for of_rank in by_rank]


def tables_of_kernels(sharding: Any, rank: int) -> tuple[int, ...]:
    """How many of the tables of a rank each of its fused kernels has."""
    return tuple(len(config.embedding_tables) for config in sharding._grouped_embedding_configs_per_rank[rank])


def all_tables(sharding: Any) -> list[Any]:
    """The shards of tables on all ranks, one rank after the other."""
    return [table for of_rank in tables(sharding) for table in of_rank]


def runs(sharding: Any) -> tuple[tuple[int, ...], ...]:
    """[W][T] features of each table of each rank, in the order in which ids are sent there."""
    return tuple(tuple(table.num_features() for table in of_rank) for of_rank in tables(sharding))


def row_columns(module: Any, kind: str, sharding: Any) -> int:
    """The columns of a row of the group. Pooled tables of a group may have vectors of different widths: there it is
    their greatest common divisor, and a vector is several strips of so many columns."""
    if is_pooled(module):
        return math.gcd(*(table.local_cols for table in all_tables(sharding)))
    columns: int = rows_of(module)._embedding_dim_for_sharding_type(kind)
    return columns


def output_dtype(sharding: Any) -> torch.dtype:
    """The dtype of the rows that a group returns."""
    given = {(config.fused_params or {}).get("output_dtype") or SparseType.FP32 for config in configs(sharding)}
    return given.pop().as_dtype() if given else torch.float32


def kernels(lookup: Any) -> list[Any]:
    """The fused kernels of one group on this rank."""
    return [embedding.emb_module for embedding in lookup._emb_modules]


def owners(module: Any, kind: str, sharding: Any) -> Any:
    """The process group of the ranks that have parts of a vector of pooled tables; None: one rank has all of it."""
    if not is_pooled(module) or kind not in IN_PARTS:
        return None
    return sharding._intra_pg if kind in OF_HOSTS else module._env.process_group


def gloo_groups(name: str, module: Any, unserved: Collection[str]) -> dict[str, Any]:
    """By name of a group, of those not in `unserved`: the process group whose ranks add up, by gloo, the parts that
    they have of its vectors."""
    if where(module).type == "cuda":  # NCCL adds; of what is served, two parts at most
        return {}
    served = [group for group in groups(name, module) if group[0] not in unserved]
    found = {part: owners(module, kind, sharding) for part, kind, sharding in served}
    return {part: group for part, group in found.items() if group is not None}
