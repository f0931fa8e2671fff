"""Says which sharded modules, and which of their sharding groups, can be served exactly."""

from collections.abc import Mapping
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import PoolingMode
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv

from fscomm.errors import INSTEAD
from fscomm.tables.shadow_kernels import memory
from fscomm.tables.sharding_library import MOST_CALLS
from fscomm.tables.torchrec import codecs, structure
from fscomm.tables.torchrec.structure import IN_PARTS
from fsranks.rank_context import RankContext

SERVED_SHARDINGS = ("table_wise", "column_wise", *IN_PARTS)
SERVED_OUTPUTS = (SparseType.FP32, SparseType.FP16, SparseType.BF16)
SERVED_OPTIMIZERS = (  # whose update of a row looks at nothing but that row, its gradient and the step's number
    EmbOptimType.EXACT_SGD,
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    EmbOptimType.ADAM,
    EmbOptimType.PARTIAL_ROWWISE_ADAM,
    EmbOptimType.LAMB,
    EmbOptimType.PARTIAL_ROWWISE_LAMB,
)
_METHODS = (
    "forward",
    "input_dist",
    "compute",
    "output_dist",
    "compute_and_output_dist",
    "create_context",
    "_create_input_dist",
    "_create_lookups",
    "_create_output_dist",
)
METHODS: dict[type, tuple[str, ...]] = {  # what a forward of a served module goes through
    ShardedEmbeddingCollection: (*_METHODS, "_dedup_indices"),
    ShardedEmbeddingBagCollection: (*_METHODS, "_init_mean_pooling_callback"),
}


def problems(found: Mapping[str, Any], context: RankContext, calls: int) -> dict[str, str]:
    """Why modules, or groups of them, cannot be served, as far as this rank can see. calls: in a step, at most."""
    said: dict[str, str] = {}
    served: list[str] = []
    for name, module in found.items():
        rows = structure.rows_of(module)
        why = _problem(rows) or _problem_here(rows, context)
        if why is None and rows is not module:
            from fscomm.managed import requirements

            why = requirements.problem(module, calls) or _problem_of_forward(module)
        of_groups = {} if why else group_problems(name, module)
        if of_groups and rows is not module:
            why = "; ".join(dict.fromkeys(of_groups.values()))
        if why is None and len(of_groups) == len(structure.parts(name, module)):
            said |= of_groups
            continue
        device = structure.where(module)
        if why is None and (len(served) + 1) * calls > MOST_CALLS:
            why = f"{len(served)} modules are served already, {calls} calls of each: at most {MOST_CALLS} calls can be"
        if why is None and served and (of_first := structure.where(found[served[0]])) != device:
            why = f"its tables are on {device}, those of {served[0]} on {of_first}"
        if why is None:
            served.append(name)
            said |= of_groups
        else:
            said[name] = why
    return said


def group_problems(name: str, module: Any) -> dict[str, str]:
    """Why groups of the module of this name cannot be served, by what they are called."""
    module = structure.rows_of(module)
    groups = zip(structure.groups(name, module), module._lookups, strict=True)
    return {
        part: why
        for (part, kind, sharding), lookup in groups
        if (why := _problem_of_group(module, kind, sharding) or _problem_of_lookup(module, kind, sharding, lookup))
    }


def _problem(module: Any) -> str | None:
    """Why `module` cannot be served exactly, or None. Looks at plans and configurations only: equal on all ranks."""
    kind = next((kind for kind in METHODS if isinstance(module, kind)), None)
    if kind is None:
        return f"{type(module).__name__} is not served (only {' and '.join(each.__name__ for each in METHODS)} are)"
    if why := structure.missing_of_module(module, METHODS[kind]):
        return why
    if changed := [name for name in METHODS[kind] if getattr(type(module), name) is not getattr(kind, name)]:
        return f"{type(module).__name__} changes {', '.join(changed)} of {kind.__name__}"
    if type(module._env) is not ShardingEnv:
        return f"{type(module._env).__name__} (2D parallel) is not served"
    weighs = getattr(module, "_enable_feature_score_weight_accumulation", False)
    if getattr(module, "enable_embedding_update", False) or weighs:
        return "tables are written by something else than gradients"
    return None


def _problem_here(module: Any, context: RankContext) -> str | None:
    """What only the rank itself can see, such as devices and trackers set on instances."""
    device = structure.where(module)
    if device.type not in ("cpu", "cuda"):
        return f"its tables are on {device.type}"
    if module.post_lookup_tracker_fn is not None or module.post_odist_tracker_fn is not None:
        return structure.TRACKED
    if why := _problem_of_forward(module):
        return why
    group = module._env.process_group
    if (group.size(), group.rank()) != (context.world_size, context.rank):
        return f"it is sharded over {group.size()} of {context.world_size} ranks"
    return None


def _problem_of_forward(module: Any) -> str | None:
    if (replaced := vars(module).get("forward")) is not None:
        return f"its forward was replaced by {type(replaced).__name__}. {INSTEAD}"
    if any(
        submodule._compiled_call_impl is not None or type(submodule).__name__ == "OptimizedModule"
        for submodule in module.modules()
    ):
        return "it is compiled"
    return None


def _problem_of_group(module: Any, kind: str, sharding: Any) -> str | None:
    """Why a group cannot be served, as all ranks see it."""
    if kind not in SERVED_SHARDINGS:
        return f"sharding {kind} is not served"
    if why := structure.missing_of_sharding(module, kind, sharding):
        return why
    columns, given_out = structure.row_columns(module, kind, sharding), structure.output_dtype(sharding)
    if why := codecs.problem(module, kind, columns, given_out):
        return why
    tables = structure.all_tables(sharding)
    names = {table.name for table in tables}
    for name, planned in module.module_sharding_plan.items():
        if name in names and planned.compute_kernel != "fused":
            return f"table {name} uses the compute kernel {planned.compute_kernel}, only fused is served"
    if any(getattr(table, "stash_weights", False) for table in tables):
        return "its tables leave the GPU between their uses (stash_weights)"
    for config in structure.configs(sharding):
        given = config.fused_params or {}
        if (given.get("output_dtype") or SparseType.FP32) not in SERVED_OUTPUTS:
            return f"rows are given out as {given['output_dtype'].name} (output_dtype)"
        if given.get("optimizer", EmbOptimType.EXACT_SGD) not in SERVED_OPTIMIZERS:
            return f"the state of optimizer {given['optimizer'].name} cannot be held for a pending update"
    return None


def _problem_of_lookup(module: Any, kind: str, sharding: Any, lookup: Any) -> str | None:
    """Why a group cannot be served, as only this rank can see."""
    on_cuda = structure.where(module).type == "cuda"
    owners = structure.owners(module, kind, sharding)
    # A sum of two parts has one value, whichever comes first: it is rounded once, or, where fp16 and bf16 are added as
    # fp32, twice to the same.
    if on_cuda and owners is not None and owners.size() > 2:
        return "NCCL adds parts of its vectors from more than 2 ranks in an order that is not known (row-wise pooling)"
    if why := structure.missing_of_lookup(lookup):
        return why
    if getattr(lookup, "_need_prefetch", False) or getattr(lookup, "optim_state_tracker_fn", None) is not None:
        return "a tracker or a cache follows its lookups"
    if "forward" in vars(lookup):
        return "the forward of its look-up was replaced"
    if on_cuda and (means := [each for each in structure.kernels(lookup) if each.pooling_mode == PoolingMode.MEAN]):
        if any(config.is_weighted for config in structure.configs(sharding)):
            return "how kernels on CUDA round a weighted mean whose rows are updated in parts was never measured"
        if structure.output_dtype(sharding) != torch.float32:
            return "how kernels on CUDA round a mean that is given out as fp16 or bf16 was never measured"
        if any(each.optimizer_args.gradient_clipping for each in means):
            return "kernels on CUDA clip the gradients of a mean before they divide them (gradient_clipping)"
    return next(filter(None, (_problem_of_kernel(kernel, on_cuda) for kernel in structure.kernels(lookup))), None)


def _problem_of_kernel(kernel: Any, on_cuda: bool) -> str | None:
    if kernel.optimizer not in SERVED_OPTIMIZERS:
        return f"the state of optimizer {kernel.optimizer.name} cannot be held for a pending update"
    if on_cuda and kernel.stochastic_rounding and kernel.weights_precision != SparseType.FP32:
        return "updates are rounded stochastically: they do not repeat"
    if on_cuda and kernel.is_experimental:
        return "experimental kernels of fbgemm (TBE v2) add up in an order that depends on the other bags of a call"
    if kernel._used_rowwise_adagrad_with_global_weight_decay:
        return "global weight decay makes what a row gives out depend on the number of the step"
    if kernel._max_counter_update_freq > 0:
        return "its counters are compared with the largest one of all rows (max_counter_update_freq)"
    for state in memory(kernel).values():
        if state.is_floating_point() and state.dtype != torch.float32:
            return f"its optimizer's state is {state.dtype}, which may be rounded at random"
    if "forward" in vars(kernel):
        return "the forward of its kernel was replaced"
    if getattr(kernel, "use_writeback_bwd_prehook", False) or getattr(kernel, "enable_raw_embedding_streaming", False):
        return "its kernel writes rows back or streams them out"
    return None
