"""The one file that knows TorchRec: finds sharded modules, says which can be served, and stands in for their forward.

Nothing is wrapped: `bind` describes a module and keeps its own copies of what a prefetch needs (input bucketizing), so
the module itself, its parameter names and its process group stay as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionAwaitable, ShardedEmbeddingCollection
from torchrec.distributed.types import NoWait, ShardedModule, ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.plan.routes import Request, request
from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout
from fscomm.torchrec.plain_kernels import AccessOrder, EmptyProxy, KernelProxy, LookupProxy
from fscomm.torchrec.shadow_kernels import Tables
from fsranks.torch_notices import keep_fx_notice_away

keep_fx_notice_away()

TESTED = ("1.9",)
HOST = torch.device("cpu")
SERVED_SHARDINGS = ("row_wise", "table_wise", "column_wise")
OF_WHOLE_TABLES = (WeightDecayMode.COUNTER, WeightDecayMode.COWCLIP, WeightDecayMode.DECOUPLE_GLOBAL)
SERVED_OUTPUTS = (SparseType.FP32, SparseType.FP16, SparseType.BF16)
METHODS = (  # what a forward of a served module goes through
    "forward",
    "input_dist",
    "compute",
    "output_dist",
    "compute_and_output_dist",
    "create_context",
    "_create_input_dist",
    "_create_lookups",
    "_create_output_dist",
    "_dedup_indices",
)
SERVED_OPTIMIZERS = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)


def version_problem() -> str | None:
    """Why this version of torchrec is not trusted, if so."""
    if torchrec.__version__.startswith(TESTED):
        return None
    return (
        f"torchrec {torchrec.__version__} was not tested; its sharded modules may work differently (tested: {TESTED})"
    )


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
    if not isinstance(module, ShardedEmbeddingCollection):
        return f"{type(module).__name__} is not served (only ShardedEmbeddingCollection is)"
    if changed := [name for name in METHODS if _overrides(module, name)]:
        return f"{type(module).__name__} changes {', '.join(changed)} of ShardedEmbeddingCollection"
    if type(module._env) is not ShardingEnv:
        return f"{type(module._env).__name__} (2D parallel) is not served"
    others = sorted(set(module._sharding_types) - set(SERVED_SHARDINGS))
    if others:
        return f"sharding {', '.join(others)} is not served"
    if module.qcomm_codecs_registry:
        return "communication is quantised"
    if module.enable_embedding_update or module._enable_feature_score_weight_accumulation:
        return "tables are written by something else than gradients"
    for name, sharding in module.module_sharding_plan.items():
        if sharding.compute_kernel != "fused":
            return f"table {name} uses the compute kernel {sharding.compute_kernel}, only fused is served"
    for config in _grouped_configs(module):
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
    if module.post_lookup_tracker_fn is not None or module.post_odist_tracker_fn is not None:
        return "a tracker follows its lookups"
    if (replaced := vars(module).get("forward")) is not None:
        return f"its forward was replaced by {type(replaced).__name__}, such as train pipelines do"
    for lookup in module._lookups:
        if lookup._need_prefetch or lookup.optim_state_tracker_fn is not None:
            return "a tracker or a cache follows its lookups"
        if "forward" in vars(lookup):
            return "the forward of its look-up was replaced"
        for kernel in _kernels(lookup):
            if kernel.optimizer not in SERVED_OPTIMIZERS:
                return f"the state of optimizer {kernel.optimizer.name} cannot be held for a pending update"
            if device.type == "cuda" and kernel.stochastic_rounding and kernel.weights_precision != SparseType.FP32:
                return "updates are rounded stochastically: they do not repeat"
            if kernel.weight_decay_mode in OF_WHOLE_TABLES:
                return f"weight decay {kernel.weight_decay_mode.name} looks at more than the rows of the step"
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


@dataclass(slots=True, kw_only=True)
class Binding:
    """A served module: its groups, and what stands in for its forward.

    Attributes:
        name: as the user sees it.
        layouts: [G] of its sharding groups.
        kernels: [G][...] fused kernels on this rank.
    """

    name: str
    module: Any
    layouts: list[GroupLayout]
    kernels: list[list[Any]]
    plain: Callable[..., Any]
    _input_dists: list[nn.Module]

    @property
    def device(self) -> torch.device:
        """Where the tables of this rank lie."""
        return where(self.module)

    @property
    def process_group(self) -> Any:
        return self.module._env.process_group

    def tables(self, group: int) -> Tables:
        layout = self.layouts[group]
        divide_by = layout.world_size if get_gradient_division() else 1
        return Tables(self.kernels[group], dim=layout.dim, dtype=layout.dtype, divide_by=divide_by, where=self.device)

    def proxy_targets(self, group: int) -> list[Any]:
        """Whose forward reads the tables: the fused kernels, or the look-up itself where this rank has none."""
        return self.kernels[group] or [self.module._lookups[group]]

    def proxies(self, group: int) -> list[Callable[[AccessOrder], LookupProxy]]:
        """What makes the proxies of the group's kernels."""
        kind = KernelProxy if self.kernels[group] else EmptyProxy
        return [partial(kind, target, where=self.device) for target in self.proxy_targets(group)]

    def prepare(self, features: Any) -> tuple[list[Any], list[Request]]:
        """What `output` needs, and what is asked of the owners. No collective.

        The first is the KJT of each group as the module would send it, and the context of its forward, in which index
        dedup notes which unique id each id was.
        """
        module = self.module
        context = module.create_context()
        if module._has_uninitialized_input_dist:
            module._create_input_dist(input_feature_names=features.keys())
            module._has_uninitialized_input_dist = False
        with torch.no_grad():
            if module._features_order:
                features = features.permute(module._features_order, module._features_order_tensor)
            parts = features.split(module._feature_splits)
            if module._use_index_dedup:
                parts = module._dedup_indices(context, parts)
            requests = []
            on_host = parts if self.device.type == "cpu" else [part.to(HOST) for part in parts]
            for part, dist, layout in zip(on_host, self._input_dists, self.layouts, strict=True):
                sent = dist(part)
                per_key, start, counts = sent.length_per_key(), 0, []
                for number in layout.features_to:
                    counts.append(list(per_key[start : start + number]))
                    start += number
                unbucketize = getattr(dist, "unbucketize_permute_tensor", None)
                requests.append(request(sent.values().long(), counts, unbucketize, layout))
        return [*parts, context], requests

    def output(self, parts: list[Any], rows: list[torch.Tensor]) -> Any:
        """What the module's forward returns, from what `prepare` gave and the output rows of each group."""
        module = self.module
        *features, context = parts
        return EmbeddingCollectionAwaitable(
            awaitables_per_sharding=[NoWait(tensor) for tensor in rows],
            features_per_sharding=features,
            embedding_names_per_sharding=module._embedding_names_per_sharding,
            ctx=context,
            need_indices=module._need_indices,
            features_to_permute_indices=module._features_to_permute_indices,
            module_fqn=module._module_fqn,
            sharding_types=list(module._sharding_type_to_sharding),
            use_gather_select=module._use_gather_select,
            use_gather_select_per_sharding=module._use_gather_select_per_sharding,
            use_sorted_select=module._use_sorted_select,
        )


def servable(features: Any) -> str | None:
    """Why these features cannot be prefetched, or None."""
    if not isinstance(features, KeyedJaggedTensor):
        return f"features are a {type(features).__name__}, not a KeyedJaggedTensor"
    if features.variable_stride_per_key():
        return "batch sizes vary by feature (VBE)"
    return None


def make_features(
    keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
) -> KeyedJaggedTensor:
    """A KJT [N] of `keys` [F], with lengths [F * stride]."""
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, weights=weights, stride=stride)


def asked(module: Any, features: Any) -> tuple[int, int]:
    """How many ids a forward of a sharded module looks up, and the bytes of the embeddings that it gives for them."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    ids = features.values().numel()
    if isinstance(module, ShardedEmbeddingCollection):
        return ids, 4 * ids * module._embedding_dim
    dims = getattr(module, "_embedding_dims", [])  # of pooled features, each with one vector a sample
    return ids, 4 * features.stride() * sum(dims)


def on_gradient(awaitable: Any, then: Callable[[], None]) -> None:
    """Call `then` whenever backward comes to one of the jagged tensors that a module's forward gave."""

    def watch(result: dict[str, Any]) -> dict[str, Any]:
        for rows in {id(jagged.values()): jagged.values() for jagged in result.values()}.values():
            if rows.requires_grad:
                rows.register_hook(lambda _: then())
        return result

    awaitable.callbacks.append(watch)


def around_wait(awaitable: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
    """Let a `guard()` be around the wait for what a module's forward gave."""
    wait = awaitable._wait_impl

    def guarded() -> Any:
        del awaitable._wait_impl  # it refers to `awaitable`
        with guard():
            return wait()

    awaitable._wait_impl = guarded


def bind(name: str, module: Any) -> Binding:
    group = module._env.process_group
    rank, world_size = group.rank(), group.size()
    layouts, input_dists, kernels = [], [], []
    for (kind, sharding), lookup in zip(module._sharding_type_to_sharding.items(), module._lookups, strict=True):
        dist = sharding.create_input_dist(device=HOST)  # plans are made in host memory
        splits = list(dist._dist._splits)
        dist._dist = _Keep()
        configs = sharding._grouped_embedding_configs_per_rank
        runs = tuple(
            tuple(table.num_features() for config in of_rank for table in config.embedding_tables)
            for of_rank in configs
        )
        if [sum(run) for run in runs] != splits:
            raise RuntimeError(f"{name}: features per rank {splits} do not fit its tables {runs}; {version_problem()}")
        layouts.append(
            GroupLayout(
                module=name,
                sharding=kind,
                rank=rank,
                world_size=world_size,
                dim=module._embedding_dim_for_sharding_type(kind),
                dtype=_output_dtype([config for of_rank in configs for config in of_rank]),
                runs=runs,
                rows=tuple(table.local_rows for config in configs[rank] for table in config.embedding_tables),
                chunk_bytes=CHUNK_BYTES[where(module).type],
            )
        )
        input_dists.append(dist)
        kernels.append(_kernels(lookup))
    return Binding(
        name=name, module=module, layouts=layouts, kernels=kernels, plain=module.forward, _input_dists=input_dists
    )


def fused_optimizers(module: Any) -> list[Any]:
    """The optimizers whose state lies in the fused kernels of `module`."""
    return [kernel.fused_optimizer for lookup in module._lookups for kernel in lookup._emb_modules]


class _Keep(nn.Module):
    """In the place of the all-to-all of an input dist: hands back the KJT that would have been sent."""

    def forward(self, features: Any) -> Any:
        return features


def _kernels(lookup: Any) -> list[Any]:
    return [embedding.emb_module for embedding in lookup._emb_modules]


def _overrides(module: Any, name: str) -> bool:
    return getattr(type(module), name) is not getattr(ShardedEmbeddingCollection, name)


def _output_dtype(configs: list[Any]) -> torch.dtype:
    """Of the rows that a group gives out."""
    given = {(config.fused_params or {}).get("output_dtype") or SparseType.FP32 for config in configs}
    return given.pop().as_dtype() if given else torch.float32


def _grouped_configs(module: Any) -> Iterator[Any]:
    for sharding in module._sharding_type_to_sharding.values():
        for of_rank in sharding._grouped_embedding_configs_per_rank:
            yield from of_rank
