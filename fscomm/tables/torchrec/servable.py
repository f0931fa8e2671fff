"""Finds the sharded modules of a model, and says which of them can be served exactly."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fbgemm_gpu
import torch
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import PoolingMode
from torch import nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardedModule, ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.errors import INSTEAD
from fscomm.tables.shadow_kernels import memory
from fscomm.tables.sharding_library import MOST_CALLS
from fscomm.tables.torchrec import codecs
from fsranks.rank_context import RankContext

TESTED: dict[Any, str] = {torchrec: "1.9", fbgemm_gpu: "1.8"}
HOST = torch.device("cpu")
OF_HOSTS = ("table_row_wise", "grid_shard")  # a table, or some of its columns, lies on the ranks of one host
IN_PARTS = ("row_wise", *OF_HOSTS)  # vectors of pooled tables are added up from parts that several ranks have
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


def version_problem() -> str | None:
    """Why these versions of torchrec and fbgemm are not trusted, if so."""
    for package, tested in TESTED.items():
        if not package.__version__.startswith(tested):
            return (
                f"{package.__name__} {package.__version__} was not tested; its modules may work differently (tested: "
                f"{tested}.*)"
            )
    return None


def sharded_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of every outermost sharded module; names as the user sees them, without TorchRec's wrappers."""
    inside: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, ShardedModule) and not any(path.startswith(outer) for outer in inside):
            inside.append(path + ".")
            parts = (part for part in path.split(".") if part not in ("_dmp_wrapped_module", "module"))
            yield ".".join(parts) or "model", module


def problem(module: Any) -> str | None:
    """Why `module` cannot be served exactly, or None. Looks at plans and configurations only: equal on all ranks."""
    kind = next((kind for kind in METHODS if isinstance(module, kind)), None)
    if kind is None:
        return f"{type(module).__name__} is not served (only {' and '.join(each.__name__ for each in METHODS)} are)"
    if changed := [name for name in METHODS[kind] if getattr(type(module), name) is not getattr(kind, name)]:
        return f"{type(module).__name__} changes {', '.join(changed)} of {kind.__name__}"
    if type(module._env) is not ShardingEnv:
        return f"{type(module._env).__name__} (2D parallel) is not served"
    others = sorted(set(module._sharding_types) - set(SERVED_SHARDINGS))
    if others:
        return f"sharding {', '.join(others)} is not served"
    dims = [(kind, columns(sharding._grouped_embedding_configs_per_rank)) for kind, sharding in shardings(module)]
    if why := codecs.problem(module, dims, output_dtype(grouped_configs(module))):
        return why
    if getattr(module, "enable_embedding_update", False) or module._enable_feature_score_weight_accumulation:
        return "tables are written by something else than gradients"
    for name, sharding in module.module_sharding_plan.items():
        if sharding.compute_kernel != "fused":
            return f"table {name} uses the compute kernel {sharding.compute_kernel}, only fused is served"
    for config in grouped_configs(module):
        given = config.fused_params or {}
        if (given.get("output_dtype") or SparseType.FP32) not in SERVED_OUTPUTS:
            return f"rows are given out as {given['output_dtype'].name} (output_dtype)"
        if given.get("optimizer", EmbOptimType.EXACT_SGD) not in SERVED_OPTIMIZERS:
            return f"the state of optimizer {given['optimizer'].name} cannot be held for a pending update"
    return None


def where(module: Any) -> torch.device:
    """The device of its tables on this rank."""
    return module._device or HOST


def problem_here(module: Any) -> str | None:
    """What only the rank itself can see, such as devices and trackers set on instances."""
    device = where(module)
    if device.type not in ("cpu", "cuda"):
        return f"its tables are on {device.type}"
    if device.type == "cuda" and adds_parts(module):
        return "NCCL adds the parts of its vectors in an order that is not known (row-wise pooling)"
    if module.post_lookup_tracker_fn is not None or module.post_odist_tracker_fn is not None:
        return "a tracker follows its lookups"
    if (replaced := vars(module).get("forward")) is not None:
        return f"its forward was replaced by {type(replaced).__name__}. {INSTEAD}"
    for lookup in module._lookups:
        if getattr(lookup, "_need_prefetch", False) or lookup.optim_state_tracker_fn is not None:
            return "a tracker or a cache follows its lookups"
        if "forward" in vars(lookup):
            return "the forward of its look-up was replaced"
        for kernel in kernels(lookup):
            if kernel.optimizer not in SERVED_OPTIMIZERS:
                return f"the state of optimizer {kernel.optimizer.name} cannot be held for a pending update"
            if device.type == "cuda" and kernel.stochastic_rounding and kernel.weights_precision != SparseType.FP32:
                return "updates are rounded stochastically: they do not repeat"
            if device.type == "cuda" and kernel.pooling_mode == PoolingMode.MEAN:
                return "how kernels on CUDA round a mean whose rows are updated in parts was never measured"
            if why := _of_whole_tables(kernel):
                return why
            if "forward" in vars(kernel):
                return "the forward of its kernel was replaced"
            if kernel.use_writeback_bwd_prehook or kernel.enable_raw_embedding_streaming:
                return "its kernel writes rows back or streams them out"
    if any(
        submodule._compiled_call_impl is not None or type(submodule).__name__ == "OptimizedModule"
        for submodule in module.modules()
    ):
        return "it is compiled"
    return None


def _of_whole_tables(kernel: Any) -> str | None:
    """Why a row's update or look-up depends on more than the row and what it takes part in."""
    if kernel._used_rowwise_adagrad_with_global_weight_decay:
        return "global weight decay makes what a row gives out depend on the number of the step"
    if kernel._max_counter_update_freq > 0:
        return "its counters are compared with the largest one of all rows (max_counter_update_freq)"
    for state in memory(kernel).values():
        if state.is_floating_point() and state.dtype != torch.float32:
            return f"its optimizer's state is {state.dtype}, which may be rounded at random"
    return None


def problems(found: Mapping[str, Any], context: RankContext, calls: int) -> dict[str, str]:
    """Why modules cannot be served, as far as this rank can see. calls: of each in a step, at most."""
    said: dict[str, str] = {}
    served: list[str] = []
    whole = version_problem()
    for name, module in found.items():
        why = whole or problem(module) or problem_here(module) or _elsewhere(module, context)
        device = where(module)
        if why is None and (len(served) + 1) * calls > MOST_CALLS:
            why = f"{len(served)} modules are served already, {calls} calls of each: at most {MOST_CALLS} calls can be"
        if why is None and served and (of_first := where(found[served[0]])) != device:
            why = f"its tables are on {device}, those of {served[0]} on {of_first}"
        if why is None:
            served.append(name)
        else:
            said[name] = why
    return said


def _elsewhere(module: Any, context: RankContext) -> str | None:
    group = module._env.process_group
    if group.size() == context.world_size and group.rank() == context.rank:
        return None
    return f"it is sharded over {group.size()} of {context.world_size} ranks"


def features_problem(features: Any) -> str | None:
    """Why these features cannot be prefetched, or None."""
    if not isinstance(features, KeyedJaggedTensor):
        return f"features are a {type(features).__name__}, not a KeyedJaggedTensor"
    if features.variable_stride_per_key():
        return "batch sizes vary by feature (VBE)"
    weights = features.weights_or_none()
    if weights is not None and weights.is_floating_point() and weights.dtype != torch.float32:
        return f"the weights of its features are {weights.dtype}, not float32"
    return None


def adds_parts(module: Any) -> list[Any]:
    """The process groups whose ranks add up the parts that they have of vectors."""
    if not isinstance(module, ShardedEmbeddingBagCollection):
        return []
    return [owners(module, kind, sharding) for kind, sharding in shardings(module) if kind in IN_PARTS]


def owners(module: Any, kind: str, sharding: Any) -> Any:
    """The process group of the ranks among which a vector of such pooled tables lies in parts."""
    return sharding._intra_pg if kind in OF_HOSTS else module._env.process_group


def shardings(module: Any) -> list[tuple[str, Any]]:
    """(sharding type, TorchRec's sharding) of each group of its tables."""
    if isinstance(module, ShardedEmbeddingBagCollection):
        return list(zip(module._sharding_types, module._embedding_shardings, strict=True))
    return list(module._sharding_type_to_sharding.items())


def columns(configs: list[list[Any]]) -> int:
    """Of the rows of tables that are configured so on the ranks; of pooled ones the most that divides all of them."""
    return math.gcd(
        *(table.local_cols for of_rank in configs for config in of_rank for table in config.embedding_tables)
    )


def kernels(lookup: Any) -> list[Any]:
    """The fused kernels of one group on this rank."""
    return [embedding.emb_module for embedding in lookup._emb_modules]


def output_dtype(configs: Iterable[Any]) -> torch.dtype:
    """Of the rows that these tables give out."""
    given = {(config.fused_params or {}).get("output_dtype") or SparseType.FP32 for config in configs}
    return given.pop().as_dtype() if given else torch.float32


def grouped_configs(module: Any) -> Iterator[Any]:
    """Of all ranks."""
    for _, sharding in shardings(module):
        for of_rank in sharding._grouped_embedding_configs_per_rank:
            yield from of_rank
