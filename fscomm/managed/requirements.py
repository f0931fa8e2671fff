"""Which modules behind managed collision can be served exactly, and what of TorchRec fscomm relies on there."""

from typing import Any

from torchrec.distributed.mc_embedding import ShardedManagedCollisionEmbeddingCollection
from torchrec.distributed.mc_modules import ShardedManagedCollisionCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHManagedCollisionModule,
    average_threshold_filter,
    dynamic_threshold_filter,
)

from fscomm.managed.cpu_kernels import trains
from fscomm.managed.maps import KINDS, own_maps
from fscomm.tables.torchrec.structure import TRACKED, dedups, missing, where

MANAGED = (
    "_allow_in_place_embed_weight_update",
    "_embedding_module",
    "_managed_collision_collection",
    "_return_remapped_features",
)
MAPS = (
    "_managed_collision_modules",
    "_output_dists",
    "_sharding_features",
    "_sharding_per_table_feature_splits",
    "_sharding_tables",
    "_table_to_offset",
    "post_lookup_tracker_fn",
)
HASHED = (
    "_disable_fallback",
    "_hash_zch_identities",
    "_hash_zch_metadata",
    "_max_probe",
    "_opt_in_prob",
    "_output_global_offset_tensor",
    "_tb_logging_frequency",
    "_zero_collision_hash",
    "get_reserved_slots_per_bucket",
    "input_mapper",
)
SORTED = (
    "_current_history_buffer_offset",
    "_current_iter",
    "_current_iter_tensor",
    "_eviction_policy",
    "_init_history_buffers",
    "_input_history_buffer_size",
    "_last_eviction_iter",
    "_match_indices",
    "_mch_sorted_raw_ids",
    "open_slots",
)
POLICIES = (LFU_EvictionPolicy, LRU_EvictionPolicy, DistanceLFU_EvictionPolicy)
_FORWARD = ("forward", "input_dist", "compute", "output_dist", "compute_and_output_dist", "create_context")
OF_MANAGED: dict[type, tuple[str, ...]] = {  # the same, of what has such a module inside
    ShardedManagedCollisionEmbeddingCollection: (*_FORWARD, "_evict"),
    ShardedManagedCollisionCollection: (
        *("input_dist", "compute", "output_dist", "get_lookup_value", "evict", "open_slots"),
        *("_create_input_dists", "_kjt_list_to_tensor_list", "global_to_local_index"),
    ),
}


def problem(module: Any, calls: int) -> str | None:
    """Why a module behind managed collision cannot be served, whose tables can be."""
    if why := missing(module, MANAGED):
        return why
    collection = module._managed_collision_collection
    if why := missing(collection, MAPS):
        return why
    for each, (kind, methods) in zip((module, collection), OF_MANAGED.items(), strict=True):
        if why := missing(each, methods):
            return why
        if changed := [name for name in methods if getattr(type(each), name) is not getattr(kind, name)]:
            return f"{type(each).__name__} changes {', '.join(changed)} of {kind.__name__}"
        if replaced := [name for name in methods if name in vars(each)]:
            return f"{', '.join(replaced)} of its {type(each).__name__} was replaced"
    if where(module).type != "cpu":
        return "managed collision on CUDA was never run: its maps lie on the CPU where it is served"
    if calls > 1:
        return f"enable(calls={calls}): maps of managed collision change with every call"
    if collection.post_lookup_tracker_fn is not None:
        return TRACKED
    if dedups(module) and module._return_remapped_features:
        return "TorchRec cannot give remapped features with index dedup"
    maps = own_maps(module).items()
    return next((f"table {name}: {why}" for name, each in maps if (why := _problem_of_map(each))), None)


def _problem_of_map(each: Any) -> str | None:
    if type(each) not in KINDS:
        return f"maps of the kind {type(each).__name__} are not known"
    by_count = type(each) is MCHManagedCollisionModule
    if why := missing(each, SORTED if by_count else HASHED):
        return why
    if by_count:
        if type(each._eviction_policy) not in POLICIES:
            return f"its eviction policy {type(each._eviction_policy).__name__} is not one of TorchRec's"
        filtering = each._eviction_policy._threshold_filtering_func
        if filtering not in (None, dynamic_threshold_filter, average_threshold_filter):
            return "its function that filters ids by a threshold may draw random numbers (threshold_filtering_func)"
        return None
    if each._opt_in_prob not in (-1, 100):
        return "new ids are admitted at random, or never (opt_in_prob)"
    if getattr(each, "_write_runtime_meta_dim", 0):
        return "other data of its ids are written with them (write_runtime_meta_dim)"
    if each._tb_logging_frequency:
        return "what it does is logged (tb_logging_frequency)"
    if each._disable_fallback:
        return "TorchRec fails where an id has no row (disable_fallback)"
    if getattr(each, "_track_id_freq", False):
        return "its ids are counted by fbgemm's operator for CUDA (track_id_freq)"
    if not trains(each):
        return "MPZCH cannot be trained on the CPU without kernels for it: enable(..., cpu_kernels=True)"
    return None
