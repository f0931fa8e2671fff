"""Which sharded modules, and which of their sharding groups, are served: what is required of each of their parts.

The names below are what fscomm relies on in TorchRec and fbgemm, beyond what these promise. They are looked up before
they are used. No version number decides what is served: where something is missing, modules run plainly, and the report
names it. Whether all of it still means the same is seen in a trial (`fscomm/verify/`).
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import PoolingMode
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv

from fscomm.errors import INSTEAD
from fscomm.tables.binding import MOST_CALLS
from fscomm.tables.group_tables import Codecs
from fscomm.tables.shadow_kernels import memory
from fscomm.tables.torchrec import sharded
from fsranks.rank_context import RankContext

MakeCodecs = Callable[[Any, str, torch.dtype, int], Codecs | str]
"""(sharded collection, sharding type of a group, dtype of the rows as its tables give them, their columns) -> how its
rows and gradients travel, or why they cannot travel as fscomm sends them."""


class Requirement(NamedTuple):
    """What a part of a module must have to be served.

    attributes: their names, separated by spaces. fits: whether their values can be served. otherwise: why other values
    are not; {0} is the first value. optional: a version without these attributes is served; their values are None.
    """

    attributes: str
    fits: Callable[..., bool] | None = None
    otherwise: str = ""
    optional: bool = False

    @property
    def names(self) -> list[str]:
        return self.attributes.split()


def off(*values: Any) -> bool:
    return not any(values)


def unset(*values: Any) -> bool:
    return all(value is None for value in values)


def _own_forward(attributes: Mapping[str, Any]) -> bool:
    """attributes: of the instance. Whoever replaces a forward sets it there."""
    return "forward" not in attributes


SERVED_SHARDINGS = ("table_wise", "column_wise", *sharded.IN_PARTS)
SERVED_KERNELS = ("fused", "fused_uvm", "fused_uvm_caching")
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
TRACKED = "a tracker follows its lookups"

MODULE = (
    Requirement("_device _input_dists _lookups _output_dists module_sharding_plan qcomm_codecs_registry"),
    Requirement("_env", lambda env: type(env) is ShardingEnv, "{0.__class__.__name__} (2D parallel) is not served"),
    Requirement("post_lookup_tracker_fn post_odist_tracker_fn", unset, TRACKED),
    Requirement(
        "enable_embedding_update _enable_feature_score_weight_accumulation",
        off,
        "tables are written by something else than gradients",
        optional=True,
    ),
)
OF_ROWS = (Requirement("_embedding_dim _embedding_dim_for_sharding_type _sharding_type_to_sharding"),)
OF_BAGS = (Requirement("_embedding_dims _embedding_shardings _sharding_types"),)
SHARDING = (Requirement("_grouped_embedding_configs_per_rank create_input_dist embedding_dims feature_names"),)
SHARDING_OF_HOSTS = (Requirement("_intra_pg"),)  # of bags that lie in parts on the ranks of one host
CONFIG = (
    Requirement("embedding_tables pooling"),
    Requirement(
        "fused_params",
        lambda options: ((options or {}).get("output_dtype") or SparseType.FP32) in SERVED_OUTPUTS,
        "rows are given out as {0[output_dtype].name} (output_dtype)",
    ),
    Requirement(
        "fused_params",
        lambda options: (options or {}).get("optimizer", EmbOptimType.EXACT_SGD) in SERVED_OPTIMIZERS,
        "the state of optimizer {0[optimizer].name} cannot be held for a pending update",
    ),
)
TABLE = (
    Requirement("local_cols local_rows name num_features"),
    Requirement("stash_weights", off, "its tables leave the GPU between their uses (stash_weights)", optional=True),
)
LOOKUP = (
    Requirement("_emb_modules"),
    Requirement(
        "optim_state_tracker_fn",
        unset,
        "a tracker follows the state of its optimizer",
        optional=True,
    ),
    Requirement("__dict__", _own_forward, "the forward of its look-up was replaced"),
)
KERNEL = (
    Requirement("current_device dims feature_table_map iter iter_cpu learning_rate_tensor optimizer_args pooling_mode"),
    Requirement("stochastic_rounding weights_precision"),
    Requirement(
        "optimizer",
        lambda optimizer: optimizer in SERVED_OPTIMIZERS,
        "the state of optimizer {0.name} cannot be held for a pending update",
    ),
    Requirement(
        "_used_rowwise_adagrad_with_global_weight_decay",
        off,
        "global weight decay makes what a row gives out depend on the number of the step",
    ),
    Requirement(
        "_max_counter_update_freq",
        lambda steps: steps <= 0,
        "its counters are compared with the largest one of all rows (max_counter_update_freq)",
    ),
    Requirement("prefetch_pipeline", off, "TorchRec fills its cache ahead (prefetch_pipeline)", optional=True),
    Requirement(
        "lxu_cache_weights weights_precision",
        lambda cache, precision: cache is None or not cache.numel() or cache.dtype == precision.as_dtype(),
        "its cache has another precision than its tables: what a row is rounded to depends on when it leaves the cache",
        optional=True,
    ),
    Requirement("__dict__", _own_forward, "the forward of its kernel was replaced"),
    Requirement(
        "use_writeback_bwd_prehook enable_raw_embedding_streaming",
        off,
        "its kernel writes rows back or streams them out",
        optional=True,
    ),
)
KERNEL_ON_CUDA = (
    Requirement(
        "stochastic_rounding weights_precision",
        lambda rounds, precision: not rounds or precision == SparseType.FP32,
        "updates are rounded stochastically: they do not repeat",
    ),
    Requirement(
        "is_experimental",
        off,
        "experimental kernels of fbgemm (TBE v2) add up in an order that depends on the other bags of a call",
    ),
)

ARGUMENTS = {"create_context": 0, "input_dist": 2, "compute_and_output_dist": 2}  # by method of a module
FORWARD = ("forward", "input_dist", "compute", "output_dist", "compute_and_output_dist", "create_context")
_MADE = ("_create_input_dist", "_create_lookups", "_create_output_dist")
METHODS: dict[type, tuple[str, ...]] = {  # what a forward of a served module goes through: TorchRec's, not a subclass's
    ShardedEmbeddingCollection: (*FORWARD, *_MADE, "_dedup_indices"),
    ShardedEmbeddingBagCollection: (*FORWARD, *_MADE, "_init_mean_pooling_callback"),
}


def unmet(requirements: Sequence[Requirement], *parts: Any) -> str | None:
    """The first requirement that one of these parts of a module does not meet, as a reason to run plainly, or None."""
    required = [name for each in requirements if not each.optional for name in each.names]
    for part in parts:
        if why := _missing(part, required):
            return why
        for each in requirements:
            values = [getattr(part, name, None) for name in each.names]
            if each.fits is not None and not each.fits(*values):
                return each.otherwise.format(*values)
    return None


def _missing(part: Any, names: Iterable[str]) -> str | None:
    """Which attributes are missing."""
    without = [name for name in names if not hasattr(part, name)]
    return f"{_named(part)} has no {', '.join(without)}" if without else None


def changed(part: Any, kind: type, methods: Sequence[str]) -> str | None:
    """Which methods are missing, or are not those of TorchRec's class `kind`."""
    if why := _missing(part, methods):
        return why
    others = [name for name in methods if getattr(type(part), name) is not getattr(kind, name)]
    return f"{type(part).__name__} changes {', '.join(others)} of {kind.__name__}" if others else None


def replaced_forward(module: Any) -> str | None:
    if (forward := vars(module).get("forward")) is not None:
        return f"its forward was replaced by {type(forward).__name__}. {INSTEAD}"
    if any(
        submodule._compiled_call_impl is not None or type(submodule).__name__ == "OptimizedModule"
        for submodule in module.modules()
    ):
        return "it is compiled"
    return None


def problems(
    found: Mapping[str, Any],
    context: RankContext,
    *,
    calls: int,
    make_codecs: MakeCodecs,
    problem_of_maps: Callable[[Any, int], str | None],
) -> dict[str, str]:
    """Why modules, or groups of them, cannot be served, as far as this rank can see.

    calls: in a step, at most. problem_of_maps: of a module behind managed collision that is called so often.
    """
    reasons: dict[str, str] = {}
    served: list[str] = []
    for name, module in found.items():
        rows = sharded.rows_of(module)
        why = _problem_of_module(rows, context)
        if why is None and rows is not module:
            why = problem_of_maps(module, calls) or replaced_forward(module)
        of_groups = {} if why else group_problems(name, module, make_codecs)
        if of_groups and rows is not module:
            why = "; ".join(dict.fromkeys(of_groups.values()))
        if why is None and len(of_groups) == len(sharded.group_names(name, module)):
            reasons |= of_groups
            continue
        device = sharded.where(module)
        if why is None and (len(served) + 1) * calls > MOST_CALLS:
            why = f"{len(served)} modules are served already, {calls} calls of each: at most {MOST_CALLS} calls can be"
        if why is None and served and (of_first := sharded.where(found[served[0]])) != device:
            why = f"its tables are on {device}, those of {served[0]} on {of_first}"
        if why is None:
            served.append(name)
            reasons |= of_groups
        else:
            reasons[name] = why
    return reasons


def group_problems(name: str, module: Any, make_codecs: MakeCodecs) -> dict[str, str]:
    """Why groups of the module of this name cannot be served, by what they are called."""
    module = sharded.rows_of(module)
    reasons: dict[str, str] = {}
    for (part, kind, sharding), lookup in zip(sharded.groups(name, module), module._lookups, strict=True):
        why = _problem_of_group(module, kind, sharding, make_codecs)
        if why := why or _problem_of_lookup(module, kind, sharding, lookup):
            reasons[part] = why
    return reasons


def _problem_of_module(module: Any, context: RankContext) -> str | None:
    kind = next((kind for kind in METHODS if isinstance(module, kind)), None)
    if kind is None:
        return f"{type(module).__name__} is not served (only {' and '.join(each.__name__ for each in METHODS)} are)"
    if why := unmet((*MODULE, *(OF_BAGS if sharded.is_pooled(module) else OF_ROWS)), module):
        return why
    if why := changed(module, kind, METHODS[kind]) or _other_arguments(module) or replaced_forward(module):
        return why
    if (device := sharded.where(module)).type not in ("cpu", "cuda"):
        return f"its tables are on {device.type}"
    group = module._env.process_group
    if (group.size(), group.rank()) != (context.world_size, context.rank):
        return f"it is sharded over {group.size()} of {context.world_size} ranks"
    return None


def _other_arguments(module: Any) -> str | None:
    for name, given in ARGUMENTS.items():
        method = getattr(module, name)
        try:
            inspect.signature(method).bind(*[None] * given)
        except TypeError:
            return f"{name} of {_named(module)} takes {inspect.signature(method)}, not {given} arguments"
    return None


def _problem_of_group(module: Any, kind: str, sharding: Any, make_codecs: MakeCodecs) -> str | None:
    """Why a group cannot be served, as all ranks see it."""
    if kind not in SERVED_SHARDINGS:
        return f"sharding {kind} is not served"
    of_hosts = SHARDING_OF_HOSTS if sharded.is_pooled(module) and kind in sharded.OF_HOSTS else ()
    if why := unmet((*SHARDING, *of_hosts), sharding):
        return why
    if why := unmet(CONFIG, *sharded.configs(sharding)) or unmet(TABLE, *sharded.all_tables(sharding)):
        return why
    if why := _problem_of_input_dist(sharding):
        return why
    columns, given_out = sharded.row_columns(module, kind, sharding), sharded.output_dtype(sharding)
    if isinstance(codecs := make_codecs(module, kind, given_out, columns), str):
        return codecs
    names = {table.name for table in sharded.all_tables(sharding)}
    for name, planned in module.module_sharding_plan.items():
        if name in names and planned.compute_kernel not in SERVED_KERNELS:
            return f"table {name} uses the compute kernel {planned.compute_kernel}, which is not served"
    return None


def _problem_of_input_dist(sharding: Any) -> str | None:
    dist = sharding.create_input_dist(device=sharded.HOST)
    splits = getattr(getattr(dist, "_dist", None), "_splits", None)
    if splits is None:
        return f"the input dist of {_named(sharding)} says nothing of the features that each rank gets (_dist._splits)"
    if list(splits) != [sum(of_rank) for of_rank in sharded.runs(sharding)]:
        return f"the input dist of {_named(sharding)} sends {splits} features to the ranks, which is not what they own"
    return None


def _problem_of_lookup(module: Any, kind: str, sharding: Any, lookup: Any) -> str | None:
    """Why a group cannot be served, as this rank sees it."""
    on_cuda = sharded.where(module).type == "cuda"
    owners = sharded.owners(module, kind, sharding)
    # A sum of two parts has one value, whichever comes first: it is rounded once, or, where fp16 and bf16 are added as
    # fp32, twice to the same.
    if on_cuda and owners is not None and owners.size() > 2:
        return "NCCL adds parts of its vectors from more than 2 ranks in an order that is not known (row-wise pooling)"
    if why := unmet(LOOKUP, lookup):
        return why
    if without := [each for each in lookup._emb_modules if not hasattr(each, "emb_module")]:
        return f"{type(without[0]).__name__} has no kernel of its own (emb_module)"
    kernels = sharded.kernels(lookup)
    if why := unmet((*KERNEL, *(KERNEL_ON_CUDA if on_cuda else ())), *kernels):
        return why
    means = [each for each in kernels if each.pooling_mode == PoolingMode.MEAN]
    if on_cuda and means and (why := _problem_of_means_on_cuda(sharding, means)):
        return why
    for state in (state for kernel in kernels for state in memory(kernel).values()):
        if state.is_floating_point() and state.dtype != torch.float32:
            return f"its optimizer's state is {state.dtype}, which may be rounded at random"
    return None


def _problem_of_means_on_cuda(sharding: Any, kernels: Sequence[Any]) -> str | None:
    """Means are updated as sums with gradients that were multiplied before (`PooledTables`): the bits are the same only
    where an H200 showed it."""
    if any(config.is_weighted for config in sharded.configs(sharding)):
        return "how kernels on CUDA round a weighted mean whose rows are updated in parts was never measured"
    if sharded.output_dtype(sharding) != torch.float32:
        return "how kernels on CUDA round a mean that is given out as fp16 or bf16 was never measured"
    if any(each.optimizer_args.gradient_clipping for each in kernels):
        return "kernels on CUDA clip the gradients of a mean before they divide them (gradient_clipping)"
    return None


def _named(part: Any) -> str:
    """Its class, and the package and version that this is from."""
    package = type(part).__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{type(part).__name__} of {package} {version}".rstrip()
