"""What fscomm relies on in TorchRec and fbgemm, beyond what these promise: all of it, and looked up before it is used.

No version number decides what is served. Where something that is listed here is not there, modules run plainly, and the
report names it. Whether all of it still means the same is seen in a trial (`throwaway.py`).
"""

import inspect
import sys
from collections.abc import Iterable
from typing import Any

from fscomm.tables.torchrec import structure

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
OF_HOSTS = ("_intra_pg",)  # of a sharding of bags that lie in parts on the ranks of one host
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


def of_module(module: Any, methods: Iterable[str]) -> str | None:
    """What is missing of a sharded module; methods: what its forward goes through."""
    of_kind = OF_BAGS if structure.is_pooled(module) else OF_ROWS
    if why := _missing(module, [*MODULE, *of_kind, *methods]):
        return why
    for name, given in ARGUMENTS.items():
        method = getattr(module, name)
        try:
            inspect.signature(method).bind(*[None] * given)
        except TypeError:
            return f"{name} of {_called(module)} takes {inspect.signature(method)}, not {given} arguments"
    return None


def of_sharding(module: Any, kind: str, sharding: Any) -> str | None:
    """What is missing of a group, as all ranks see it. kind: its sharding type."""
    of_hosts = OF_HOSTS if structure.is_pooled(module) and kind in structure.OF_HOSTS else ()
    if why := _missing(sharding, (*SHARDING, *of_hosts)):
        return why
    configs = [config for of_rank in structure.configs(sharding) for config in of_rank]
    if why := _first_missing(configs, CONFIG):
        return why
    tables = [table for config in configs for table in config.embedding_tables]
    if why := _first_missing(tables, TABLE):
        return why
    dist = sharding.create_input_dist(device=structure.HOST)
    splits = getattr(getattr(dist, "_dist", None), "_splits", None)
    if splits is None:
        return f"the input dist of {_called(sharding)} says nothing of the features that each rank gets (_dist._splits)"
    if list(splits) != [sum(of_rank) for of_rank in structure.runs(sharding)]:
        return f"the input dist of {_called(sharding)} sends {splits} features to the ranks, which is not what they own"
    return None


def of_lookup(lookup: Any) -> str | None:
    """What is missing of a group on this rank."""
    if why := _missing(lookup, LOOKUP):
        return why
    without = [embedding for embedding in lookup._emb_modules if not hasattr(embedding, "emb_module")]
    if without:
        return f"{type(without[0]).__name__} has no kernel of its own (emb_module)"
    return _first_missing(structure.kernels(lookup), KERNEL)


def versions() -> dict[str, str]:
    """Of what this depends on."""
    return {name: sys.modules[name].__version__ for name in ("torch", "torchrec", "fbgemm_gpu")}


def _first_missing(things: Iterable[Any], names: Iterable[str]) -> str | None:
    return next((why for thing in things if (why := _missing(thing, names))), None)


def _missing(thing: Any, names: Iterable[str]) -> str | None:
    missing = [name for name in names if not hasattr(thing, name)]
    return f"{_called(thing)} has no {', '.join(missing)}" if missing else None


def _called(thing: Any) -> str:
    """Its class, and the package and version that this is from."""
    package = type(thing).__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{type(thing).__name__} of {package} {version}".rstrip()
