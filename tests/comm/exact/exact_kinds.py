"""Models of which fscomm serves one module (`a`) and must leave another (`b`) to its plain path."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from exact_model import OPTIMIZERS, RATE, WIDTH, Batch, Config, Net, Table, build_net, wrap
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv2D, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

SERVED = Table(name="r", rows=40, sharding="row", features=("r0", "r1"))
BESIDE = Table(name="s", rows=33, sharding="row", features=("s0", "s1"))
TWO = {"a": (SERVED,), "b": (BESIDE,)}


def with_ids(kjt: KeyedJaggedTensor, values: torch.Tensor) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys=kjt.keys(), values=values, lengths=kjt.lengths(), stride=kjt.stride())


Ask = Callable[[Any, KeyedJaggedTensor], dict[str, Any]]
"""How module b is asked for these ids, and what the model makes of its answer."""


class Beside(Net):
    def __init__(self, ask: Ask, config: Config) -> None:
        super().__init__(config)
        self._ask = ask

    def find(self, batch: Batch) -> dict[str, Any]:
        found = dict(self.embeddings["a"](batch.ids["a"]).items())
        return found | self._ask(self.embeddings["b"], batch.ids["b"])


def _checkpointed(module: Any, ids: KeyedJaggedTensor) -> dict[str, Any]:
    """Runs module b again in backward instead of keeping what it gave."""

    def again(gate: torch.Tensor) -> list[torch.Tensor]:
        return [jagged.values() * gate for jagged in module(ids).values()]

    values = checkpoint(again, torch.ones(1, requires_grad=True), use_reentrant=False)
    return {
        name: JaggedTensor(rows, lengths=ids[name].lengths()) for name, rows in zip(ids.keys(), values, strict=True)
    }


def _used_twice(module: Any, ids: KeyedJaggedTensor) -> dict[str, Any]:
    """The second time with other ids."""
    found, other = module(ids), with_ids(ids, (ids.values() + 1) % 33)
    again = module(other)
    return {name: [jagged, again[name]] for name, jagged in found.items()}


def _without_gradients(module: Any, ids: KeyedJaggedTensor) -> dict[str, Any]:
    with torch.no_grad():
        return dict(module(ids).items())


def _ids_made(module: Any, ids: KeyedJaggedTensor) -> dict[str, Any]:
    """By the model itself: no batch holds them."""
    return dict(module(with_ids(ids, (ids.values() * 7 + 1) % 33)).items())


class Pooled(Net):
    """An `EmbeddingBagCollection` beside module a."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tables = [EmbeddingBagConfig(name="p", num_embeddings=30, embedding_dim=WIDTH, feature_names=["r0"])]
        self.bag = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    def forward(self, batch: Batch) -> torch.Tensor:
        small = with_ids(batch.ids["a"], batch.ids["a"].values() % 30)
        pooled = self.bag(small)
        return super().forward(batch) + pooled.values().sum(1)


def built(net: Callable[[Config], Net], config: Config, size: int) -> tuple[Any, Any]:
    return build_net(config, size, net(config))


untracked = partial(built, Net)
checkpointed, used_twice, without_gradients, ids_made = (
    partial(built, partial(Beside, ask)) for ask in (_checkpointed, _used_twice, _without_gradients, _ids_made)
)


def converted(config: Config, size: int) -> tuple[Any, Any]:
    """Lookups give rows in half precision; one sharder stands for all modules of a type."""
    sharder = EmbeddingCollectionSharder(fused_params={"output_dtype": SparseType.FP16})
    return build_net(config, size, Net(config), {"a": sharder, "b": sharder})


def filled_ahead(table: str, config: Config, size: int) -> tuple[Any, Any]:
    """A pipeline of TorchRec's is to fill the cache of a table. Without a GPU there is neither."""
    model, optimizer = build_net(config, size, Net(config))
    for module in model.module.embeddings.values():
        for kernel in (each for lookup in module._lookups for each in getattr(lookup, "_emb_modules", ())):
            if table in {each.name for each in kernel.config.embedding_tables}:
                kernel.emb_module.prefetch_pipeline = True
    return model, optimizer


uvm, planned = partial(filled_ahead, "s"), partial(filled_ahead, "u")


def tracked(config: Config, size: int) -> tuple[Any, Any]:
    model, optimizer = untracked(config, size)
    model.module.embeddings["b"].register_post_lookup_tracker_fn(lambda *_: None)
    return model, optimizer


def tracked_on_rank_1(config: Config, size: int) -> tuple[Any, Any]:
    """What only one rank can see: the others run plainly with it."""
    return (tracked if dist.get_rank() == 1 else untracked)(config, size)


def hooked(config: Config, size: int) -> tuple[Any, Any]:
    """Hooks of the user on both modules: they run as ever."""
    model, optimizer = untracked(config, size)
    for module in model.module.embeddings.values():
        module.calls = []
        module.register_forward_pre_hook(lambda module, _: module.calls.append("before"))
        module.register_forward_hook(lambda module, *_: module.calls.append("after"))
    return model, optimizer


def pooled(config: Config, size: int) -> tuple[Any, Any]:
    net = Pooled(config)
    modules = {"embeddings.a": (net.embeddings["a"], EmbeddingCollectionSharder())}
    return sharded_by_rows(config, size, net, modules | {"bag": (net.bag, EmbeddingBagCollectionSharder())})


def sharded_by_rows(config: Config, size: int, net: Net, modules: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """modules: by path, with their sharders."""
    plan = {}
    for path, (module, sharder) in modules.items():
        inner = getattr(module, "_embedding_module", module)
        tables = getattr(inner, "embedding_bags", None) or inner.embeddings
        for table in tables.values():
            apply_optimizer_in_backward(OPTIMIZERS[config.optimizer], [table.weight], {"lr": RATE})
        ways = {name: row_wise() for name in tables}
        places = {"local_size": size, "world_size": size, "device_type": "cpu"}
        plan[path] = construct_module_sharding_plan(module, ways, sharder=sharder, **places)
    return wrap(config, net, ShardingPlan(plan), [sharder for _, sharder in modules.values()])


def varying(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Only the first samples of each feature, another number for each, and which of them all samples repeat."""
    keys, samples = kjt.keys(), kjt.stride()
    kept = [1 + (3 * number + 1) % samples for number in range(len(keys))]
    parts = [kjt[key] for key in keys]
    lengths = [part.lengths()[:count] for part, count in zip(parts, kept, strict=True)]
    values = [part.values()[: int(length.sum())] for part, length in zip(parts, lengths, strict=True)]
    repeated = torch.stack([(torch.arange(samples) * 2 + 1) % count for count in kept])
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat(values),
        lengths=torch.cat(lengths),
        stride_per_key_per_rank=[[count] for count in kept],
        inverse_indices=(keys, repeated),
    )


# Below: what cannot be trained on CPU (missing or wrong operators in TorchRec or FBGEMM), only asked about.


def dense_kernel(config: Config, size: int) -> tuple[Any, Any]:
    return build_net(config, size, Net(config), s="dense")


def compiled(config: Config, size: int) -> tuple[Any, Any]:
    model, optimizer = untracked(config, size)
    model.module.embeddings["b"].compile(backend="eager")
    return model, optimizer


def two_dimensional(config: Config, size: int) -> tuple[Any, Any]:
    """Module b says that it is sharded in two dimensions; `DMPCollection` itself asks for a GPU."""
    model, optimizer = untracked(config, size)
    env = copy.copy(model.module.embeddings["b"]._env)
    env.__class__ = ShardingEnv2D
    model.module.embeddings["b"]._env = env
    return model, optimizer


def ensemble(config: Config, size: int) -> tuple[Any, Any]:
    """Its forward swaps parts of whole tables; on CPU it cannot be made."""
    return _with_kernels(config, size, optimizer=EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD)


def half_state(config: Config, size: int) -> tuple[Any, Any]:
    return _with_kernels(config, size, momentum1_host=nn.Parameter(torch.zeros(4, dtype=torch.float16)))


def _with_kernels(config: Config, size: int, **attributes: Any) -> tuple[Any, Any]:
    """The kernels of module b say this of themselves."""
    model, optimizer = untracked(config, size)
    for lookup in model.module.embeddings["b"]._lookups:
        for kernel in lookup._emb_modules:
            for name, value in attributes.items():
                setattr(kernel.emb_module, name, value)
    return model, optimizer
