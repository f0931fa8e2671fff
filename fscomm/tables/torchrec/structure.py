"""How the parts of a TorchRec sharded module are reached, and whether all of them are there.

The names below are what fscomm relies on in TorchRec and fbgemm, beyond what these promise. They are looked up before
they are used. No version number decides what is served: where something is missing, modules run plainly, and the report
names it. Whether all of it still means the same is seen in a trial (`throwaway.py`).
"""

import inspect
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.mc_embedding import ShardedManagedCollisionEmbeddingCollection
from torchrec.distributed.types import ShardedModule

from fscomm.tables.sharding_library import outermost

HOST = torch.device("cpu")
OF_HOSTS = ("table_row_wise", "grid_shard")  # a table, or some of its columns, lies on the ranks of one host
TRACKED = "a tracker follows its lookups"
IN_PARTS = ("row_wise", *OF_HOSTS)  # vectors of pooled tables are added up from parts that several ranks have

MODULE = (
    "_device",
    "_env",
    "_input_dists",
    "_lookups",
    "_output_dists",
    "module_sharding_plan",
    "post_lookup_tracker_fn",
    "post_odist_tracker_fn",
    "qcomm_codecs_registry",
)
OF_ROWS = ("_embedding_dim", "_embedding_dim_for_sharding_type", "_sharding_type_to_sharding")
OF_BAGS = ("_embedding_dims", "_embedding_shardings", "_sharding_types")
SHARDING = ("_grouped_embedding_configs_per_rank", "create_input_dist", "embedding_dims", "feature_names")
CONFIG = ("embedding_tables", "fused_params", "pooling")
TABLE = ("local_cols", "local_rows", "name", "num_features")
SHARDING_OF_HOSTS = ("_intra_pg",)  # of bags that lie in parts on the ranks of one host
LOOKUP = ("_emb_modules",)
KERNEL = (
    "_max_counter_update_freq",
    "_used_rowwise_adagrad_with_global_weight_decay",
    "current_device",
    "dims",
    "feature_table_map",
    "iter",
    "iter_cpu",
    "learning_rate_tensor",
    "optimizer",
    "optimizer_args",
    "pooling_mode",
    "stochastic_rounding",
    "weights_precision",
)
ARGUMENTS = {"create_context": 0, "input_dist": 2, "compute_and_output_dist": 2}  # by method of a module


def sharded_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return outermost(model, lambda module: isinstance(module, ShardedModule))


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


def where(module: Any) -> torch.device:
    """The device of its tables on this rank."""
    return module._device or HOST


def groups(name: str, module: Any) -> list[tuple[str, str, Any]]:
    """(what it is called, sharding type, TorchRec's sharding) of each group of the tables of the module of this name;
    none where there are no such groups."""
    module = rows_of(module)
    found = getattr(module, "_sharding_type_to_sharding", {}).items()
    if is_pooled(module):
        kinds, shardings = getattr(module, "_sharding_types", []), getattr(module, "_embedding_shardings", [])
        found = zip(kinds, shardings, strict=True)
    return [(f"{name} ({kind})", kind, sharding) for kind, sharding in found]


def parts(name: str, module: Any) -> list[str]:
    """What the groups of the module of this name are called."""
    return [part for part, _, _ in groups(name, module)]


def configs(sharding: Any) -> list[Any]:
    """Of all ranks; each is of the tables of a group that have one kernel on a rank."""
    return [config for of_rank in sharding._grouped_embedding_configs_per_rank for config in of_rank]


def tables(sharding: Any) -> list[list[Any]]:
    """[W][...] the shards of tables on each rank."""
    by_rank = sharding._grouped_embedding_configs_per_rank
    return [[table for config in of_rank for table in config.embedding_tables] for of_rank in by_rank]


def tables_of_kernels(sharding: Any, rank: int) -> tuple[int, ...]:
    """How many of the tables of a rank each of its fused kernels has."""
    return tuple(len(config.embedding_tables) for config in sharding._grouped_embedding_configs_per_rank[rank])


def all_tables(sharding: Any) -> list[Any]:
    """The same of all ranks, one after the other."""
    return [table for of_rank in tables(sharding) for table in of_rank]


def runs(sharding: Any) -> tuple[tuple[int, ...], ...]:
    """[W][T] features of each table of each rank, in the order in which ids are sent there."""
    return tuple(tuple(table.num_features() for table in of_rank) for of_rank in tables(sharding))


def row_columns(module: Any, kind: str, sharding: Any) -> int:
    """Of the rows of a group; of pooled tables the most that divides the columns of all of them."""
    if is_pooled(module):
        return math.gcd(*(table.local_cols for table in all_tables(sharding)))
    columns: int = rows_of(module)._embedding_dim_for_sharding_type(kind)
    return columns


def output_dtype(sharding: Any) -> torch.dtype:
    """Of the rows that a group gives out."""
    given = {(config.fused_params or {}).get("output_dtype") or SparseType.FP32 for config in configs(sharding)}
    return given.pop().as_dtype() if given else torch.float32


def kernels(lookup: Any) -> list[Any]:
    """The fused kernels of one group on this rank."""
    return [embedding.emb_module for embedding in lookup._emb_modules]


def owners(module: Any, kind: str, sharding: Any) -> Any:
    """The process group of the ranks among which a vector of pooled tables lies in parts; None: it lies whole."""
    if not is_pooled(module) or kind not in IN_PARTS:
        return None
    return sharding._intra_pg if kind in OF_HOSTS else module._env.process_group


def missing_of_module(module: Any, methods: Iterable[str]) -> str | None:
    """What is missing of a sharded module; methods: what its forward goes through."""
    of_kind = OF_BAGS if is_pooled(module) else OF_ROWS
    if why := missing(module, [*MODULE, *of_kind, *methods]):
        return why
    for name, given in ARGUMENTS.items():
        method = getattr(module, name)
        try:
            inspect.signature(method).bind(*[None] * given)
        except TypeError:
            return f"{name} of {_called(module)} takes {inspect.signature(method)}, not {given} arguments"
    return None


def missing_of_sharding(module: Any, kind: str, sharding: Any) -> str | None:
    """What is missing of a group, as all ranks see it. kind: its sharding type."""
    of_hosts = SHARDING_OF_HOSTS if is_pooled(module) and kind in OF_HOSTS else ()
    if why := missing(sharding, (*SHARDING, *of_hosts)):
        return why
    if why := _first_missing(configs(sharding), CONFIG) or _first_missing(all_tables(sharding), TABLE):
        return why
    dist = sharding.create_input_dist(device=HOST)
    splits = getattr(getattr(dist, "_dist", None), "_splits", None)
    if splits is None:
        return f"the input dist of {_called(sharding)} says nothing of the features that each rank gets (_dist._splits)"
    if list(splits) != [sum(of_rank) for of_rank in runs(sharding)]:
        return f"the input dist of {_called(sharding)} sends {splits} features to the ranks, which is not what they own"
    return None


def missing_of_lookup(lookup: Any) -> str | None:
    """What is missing of a group on this rank."""
    if why := missing(lookup, LOOKUP):
        return why
    without = [embedding for embedding in lookup._emb_modules if not hasattr(embedding, "emb_module")]
    if without:
        return f"{type(without[0]).__name__} has no kernel of its own (emb_module)"
    return _first_missing(kernels(lookup), KERNEL)


def _first_missing(things: Iterable[Any], names: Iterable[str]) -> str | None:
    return next((why for thing in things if (why := missing(thing, names))), None)


def missing(thing: Any, names: Iterable[str]) -> str | None:
    """Which attributes are missing."""
    without = [name for name in names if not hasattr(thing, name)]
    return f"{_called(thing)} has no {', '.join(without)}" if without else None


def _called(thing: Any) -> str:
    """Its class, and the package and version that this is from."""
    package = type(thing).__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{type(thing).__name__} of {package} {version}".rstrip()
