"""What is required of managed collision to be served: of the module, of its collection of maps, and of each map."""

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
from fscomm.tables.torchrec import sharded
from fscomm.tables.torchrec.requirements import FORWARD, TRACKED, Requirement, changed, off, unmet, unset

POLICIES = (LFU_EvictionPolicy, LRU_EvictionPolicy, DistanceLFU_EvictionPolicy)
EXACT_FILTERS = (None, dynamic_threshold_filter, average_threshold_filter)  # the other one draws random numbers

MANAGED = (
    Requirement("_allow_in_place_embed_weight_update _embedding_module _managed_collision_collection"),
    Requirement("_return_remapped_features"),
)
MAPS = (
    Requirement("_managed_collision_modules _output_dists _sharding_features _sharding_per_table_feature_splits"),
    Requirement("_sharding_tables _table_to_offset"),
    Requirement("post_lookup_tracker_fn", unset, TRACKED),
)
HASHED = (  # MPZCH
    Requirement("_hash_zch_identities _hash_zch_metadata _max_probe _output_global_offset_tensor _zero_collision_hash"),
    Requirement("get_reserved_slots_per_bucket input_mapper"),
    Requirement(
        "_opt_in_prob",
        lambda percent: percent in (-1, 100),
        "new ids are admitted at random, or never (opt_in_prob)",
    ),
    Requirement(
        "_write_runtime_meta_dim",
        off,
        "other data of its ids are written with them (write_runtime_meta_dim)",
        optional=True,
    ),
    Requirement("_tb_logging_frequency", off, "what it does is logged (tb_logging_frequency)"),
    Requirement("_disable_fallback", off, "TorchRec fails where an id has no row (disable_fallback)"),
    Requirement(
        "_track_id_freq", off, "its ids are counted by fbgemm's operator for CUDA (track_id_freq)", optional=True
    ),
)
SORTED = (  # MCH
    Requirement("_current_history_buffer_offset _current_iter _current_iter_tensor _init_history_buffers"),
    Requirement("_input_history_buffer_size _last_eviction_iter _match_indices _mch_sorted_raw_ids open_slots"),
    Requirement(
        "_eviction_policy",
        lambda policy: type(policy) in POLICIES,
        "its eviction policy {0.__class__.__name__} is not one of TorchRec's",
    ),
    Requirement(
        "_eviction_policy",
        lambda policy: policy._threshold_filtering_func in EXACT_FILTERS,
        "its function that filters ids by a threshold may draw random numbers (threshold_filtering_func)",
    ),
)
METHODS: dict[type, tuple[str, ...]] = {  # what a forward goes through, beside those of the collection of tables
    ShardedManagedCollisionEmbeddingCollection: (*FORWARD, "_evict"),
    ShardedManagedCollisionCollection: (
        *("input_dist", "compute", "output_dist", "get_lookup_value", "evict", "open_slots"),
        *("_create_input_dists", "_kjt_list_to_tensor_list", "global_to_local_index"),
    ),
}


def problem_of_maps(module: Any, calls: int) -> str | None:
    """Why a module behind managed collision cannot be served, whose tables can be. calls: in a step, at most."""
    if why := unmet(MANAGED, module):
        return why
    collection = module._managed_collision_collection
    if why := unmet(MAPS, collection):
        return why
    for part, (kind, methods) in zip((module, collection), METHODS.items(), strict=True):
        if why := changed(part, kind, methods):
            return why
        if replaced := [name for name in methods if name in vars(part)]:
            return f"{', '.join(replaced)} of its {type(part).__name__} was replaced"
    if sharded.where(module).type != "cpu":
        return "managed collision on CUDA was never run: its maps lie on the CPU where it is served"
    if calls > 1:
        return f"enable(calls={calls}): maps of managed collision change with every call"
    if sharded.dedups(module) and module._return_remapped_features:
        return "TorchRec cannot give remapped features with index dedup"
    maps = own_maps(module).items()
    return next((f"table {name}: {why}" for name, each in maps if (why := _problem_of_map(each))), None)


def _problem_of_map(each: Any) -> str | None:
    if type(each) not in KINDS:
        return f"maps of the kind {type(each).__name__} are not known"
    if type(each) is MCHManagedCollisionModule:
        return unmet(SORTED, each)
    if why := unmet(HASHED, each):
        return why
    if not trains(each):
        return "MPZCH cannot be trained on the CPU without kernels for it: enable(..., cpu_kernels=True)"
    return None
