"""What an exactness test trains: an ordinary `DistributedModelParallel` on CPU or GPU, by a plan given by hand.

Its batches are seeded; they have collisions, duplicates, empty features, empty ranks and uneven sizes.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from layouts import PlainIds
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.distributed import batched_embedding_kernel, comm, sharding_plan
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import LazyAwaitable, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.optim import LAMB, PartialRowWiseAdam, PartialRowWiseLAMB, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

META = torch.device("meta")
DEVICE = torch.device(os.environ.get("FREESCALE_TEST_DEVICE", "cpu"))  # tests/gpu/programs_on_cuda.py sets it
ON_CPU = DEVICE.type == "cpu"
if ON_CPU:
    import cpu_kernels  # noqa: F401  what TorchRec and fbgemm have for CUDA only

WIDTH = 8
AGAIN = " again"  # added to the name of a module: what it gets in its second call
DENSE = 3

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise": RowWiseAdagrad,
    "adam": torch.optim.Adam,
    "rowwise adam": PartialRowWiseAdam,
    "lamb": LAMB,
    "rowwise lamb": PartialRowWiseLAMB,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    name: str
    rows: int
    sharding: str  # "row", "table", "column", "data", "host" (table-row-wise), "grid"
    features: tuple[str, ...]
    precision: str = "FP32"  # of its rows
    home: int = 0  # first rank of a table- or column-wise table
    rate: float = 1.0  # its learning rate over that of the others
    frozen: bool = False
    pooling: str = ""  # "sum", "mean": of an EmbeddingBagCollection, as all tables of its module then are
    columns: int = WIDTH
    ids: int = 0  # below which they are drawn; 0: they are its rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A model, its optimizer and the shape of its data."""

    modules: Mapping[str, tuple[Table, ...]]
    optimizer: str = "rowwise"
    weight_decay: float = 0.0
    data_parallel: bool = True  # dense parameters under DDP
    static_graph: bool = True
    finds_unused: bool = False  # DDP looks for parameters that a step did not use
    one_kjt: bool = False  # all modules read the same KJT, its keys in another order than theirs
    steps: int = 8
    max_batch: int = 5
    even: bool = False  # every rank has `max_batch` samples at every step
    max_length: int = 4
    spread: float = 0.5  # which part of a table one batch draws from
    seed: int = 1
    hides: bool = False  # some batches of random programs hide their ids
    dedup: bool = False  # every rank asks for each of its rows once
    cached: bool = False  # tables are in unified memory with a cache, as played by `cached_kernel`
    half_output: bool = False  # rows travel as float16
    quantised: tuple[str, str] | None = None  # precision of rows and of gradients on their way, such as "fp16"
    loss_scale: float | None = None
    calls: int = 1  # of every module in a step
    host: int = 2  # ranks of a host, where that divides their number
    weighted: bool = False  # ids of pooled modules have weights
    fused: Mapping[str, Any] = field(default_factory=dict)  # other options of the kernels
    builder: Callable[["Config", int], tuple[Any, Any]] | None = None  # of another kind of model

    def but(self, **changes: Any) -> "Config":
        return replace(self, **changes)

    @property
    def uneven(self) -> bool:
        """TorchRec's row-wise pooling fails on gloo where ranks have batches of different sizes."""
        pooled = [table for tables in self.modules.values() for table in tables if table.pooling]
        return not self.even and all(table.sharding in ("table", "column") for table in pooled)

    @property
    def features(self) -> dict[str, Table]:
        return {feature: table for tables in self.modules.values() for table in tables for feature in table.features}


def mixed(rows: int = 40, precision: str = "FP32") -> tuple[Table, ...]:
    """Three sharding groups in one module; two features share the row-wise table, two the table-wise one."""
    return (
        Table(name="r", rows=rows, sharding="row", features=("r0", "r1"), precision=precision),
        Table(name="q", rows=rows + 3, sharding="row", features=("q0",), precision=precision),
        Table(name="t", rows=rows + 5, sharding="table", features=("t0", "t1"), precision=precision, home=1),
        Table(name="c", rows=rows + 1, sharding="column", features=("c0",), precision=precision),
    )


@dataclass(slots=True)
class Batch:
    """What a loader yields: one KJT per module (or one for all), or tensors of which the model makes it; dense inputs,
    targets, weights of samples.

    moved: ids that other batches have in `ids`. hidden: those that fscomm does not find. beside: what no model uses.
    """

    ids: dict[str, KeyedJaggedTensor | PlainIds]
    dense: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)
    moved: dict[str, KeyedJaggedTensor | PlainIds] = field(default_factory=dict)
    hidden: dict[str, Callable[[], KeyedJaggedTensor | PlainIds]] = field(default_factory=dict)
    beside: list[torch.Tensor] = field(default_factory=list)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """With other KJTs."""
        ids = {name: kjt.to(device, non_blocking) for name, kjt in self.ids.items()}
        if device.type == "cpu":
            return replace(self, ids=ids)
        dense, target, weight = (
            each.to(device, non_blocking=non_blocking) for each in (self.dense, self.target, self.weight)
        )
        moved = {name: kjt.to(device) for name, kjt in self.moved.items()}
        hidden = {name: _hidden_at(device, show) for name, show in self.hidden.items()}
        return replace(self, ids=ids, dense=dense, target=target, weight=weight, moved=moved, hidden=hidden)


def _hidden_at(device: torch.device, show: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: show().to(device)


def batches(config: Config, rank: int, size: int, start: int, stop: int) -> list[Batch]:
    return [batch(config, rank, size, step) for step in range(start, stop)]


def batch(config: Config, rank: int, size: int, step: int) -> Batch:
    """The batch of one rank and step, the same at every call."""
    random = torch.Generator().manual_seed((config.seed * 1009 + step) * 64 + rank)
    samples = 1 + int(torch.randint(0, config.max_batch, (1,), generator=random))
    samples = samples if config.uneven else config.max_batch
    empty = size > 1 and (rank + step) % 7 == 6  # samples, but not one id
    kjts: dict[str, KeyedJaggedTensor] = {}
    for call in range(config.calls):
        ids: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        for module, tables in config.modules.items():
            for table in tables:
                for feature in table.features:
                    longest = 0 if empty or (step + len(ids)) % 5 == 4 else config.max_length
                    lengths = torch.randint(0, longest + 1, (samples,), generator=random)
                    values = _values(table, config, step, int(lengths.sum()), random)
                    ids.setdefault(module, {})[feature] = (lengths, values)
        if config.one_kjt:
            features = {feature: ids[module][feature] for module in ids for feature in ids[module]}
            kjts["all" + AGAIN * call] = _kjt(dict(reversed(features.items())), samples)
            continue
        for module, of_module in ids.items():
            weighted = config.weighted and bool(config.modules[module][0].pooling)
            kjts[module + AGAIN * call] = _kjt(of_module, samples, random if weighted else None)
    return Batch(
        ids=kjts,
        dense=torch.randn(samples, DENSE, generator=random),
        target=torch.randn(samples, generator=random),
        weight=torch.rand(samples, generator=random) + 0.1,
    )


def _values(table: Table, config: Config, step: int, count: int, random: torch.Generator) -> torch.Tensor:
    """Rows around a place that moves from step to step: some are drawn again by the next batch, some are not."""
    window = max(int((table.ids or table.rows) * config.spread), 1)
    drawn = torch.randint(0, window, (count,), generator=random) + step * max(window // 2, 1)
    if count > 1:
        drawn[-1] = drawn[0]  # at least one duplicate in the batch
    return drawn % (table.ids or table.rows)


def _kjt(
    features: dict[str, tuple[torch.Tensor, torch.Tensor]], samples: int, weights: torch.Generator | None = None
) -> KeyedJaggedTensor:
    """weights: what draws them, where ids have some."""
    values = torch.cat([values for _, values in features.values()])
    return KeyedJaggedTensor(
        keys=list(features),
        values=values,
        weights=None if weights is None else torch.rand(len(values), generator=weights) - 0.3,
        lengths=torch.cat([lengths for lengths, _ in features.values()]),
        stride=samples,
    )


class Net(nn.Module):
    """Dense parameters before, beside and after the embeddings; every occurrence has a gradient of its own."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.before = nn.Linear(DENSE, WIDTH)
        self.embeddings = nn.ModuleDict(
            {name: _collection(tables, weighted=config.weighted) for name, tables in config.modules.items()}
        )
        self.beside = nn.Linear(DENSE, 1)
        self.hidden = nn.Linear(WIDTH * len(config.features), WIDTH)
        self.after = nn.Linear(WIDTH, 1)
        for dense in (self.before, self.beside, self.hidden, self.after):
            dense.to(DEVICE)

    def forward(self, batch: Batch) -> torch.Tensor:
        """-> one number per sample, [B]."""
        gate = torch.tanh(self.before(batch.dense))
        found = self.find(batch)
        beside = self.beside(batch.dense).squeeze(1)
        pooled = torch.cat([_pool(found[name], gate) for name in sorted(found)], dim=1)
        return self.after(torch.tanh(self.hidden(pooled)) + gate).squeeze(1) + beside

    def find(self, batch: Batch) -> dict[str, Any]:
        calls = [
            (name, call)
            for call in range(1 if "once" in batch.extra else self.config.calls)
            for name in self.embeddings
            if name not in batch.extra.get("skip", ())
        ]
        if self.config.seed % 2:
            calls.sort()  # module by module
        asked = [self.embeddings[name](ids_of(batch, name, call)) for name, call in calls]
        found: dict[str, Any] = {}
        for answer in asked:
            for feature, jagged in _by_feature(answer).items():
                found[feature] = [*found.get(feature, []), jagged]
        for feature in self.config.features:
            if feature not in found or feature in batch.extra.get("unused", ()):
                found[feature] = None
        return found


def ids_of(batch: Batch, module: str, call: int = 0) -> KeyedJaggedTensor:
    """What a module gets in its first or second call."""
    ids, again = batch.ids | batch.moved | {name: show() for name, show in batch.hidden.items()}, AGAIN * call
    found = ids[module + again] if module in ids else ids["all" + again]
    return found.build() if isinstance(found, PlainIds) else found


def _pool(found: Any, gate: torch.Tensor) -> torch.Tensor:
    """What a module gave for a feature, in one call or in a list of them, added up: [B, WIDTH]."""
    calls = found if isinstance(found, list) else [found]
    return sum((_pool_one(each, gate) for each in calls if each is not None), torch.zeros_like(gate))


def _pool_one(jagged: Any, gate: torch.Tensor) -> torch.Tensor:
    """Sum over a sample's occurrences, each weighted by its place and the sample's gate: [B, WIDTH]."""
    if isinstance(jagged, torch.Tensor):  # [B, columns], pooled already
        folded = jagged.float().repeat(1, max(WIDTH // jagged.shape[1], 1)).unflatten(1, (-1, WIDTH)).sum(1)
        return folded * (1 + gate) * 0.3
    values = jagged.values().float()
    values = values if values.shape[1] == WIDTH else values.unflatten(1, (-1, WIDTH)).sum(1)
    sample = torch.repeat_interleave(torch.arange(len(gate), device=gate.device), jagged.lengths().long())
    weight = 1 + 0.1 * torch.sin(torch.arange(len(values), dtype=torch.float32, device=gate.device) + 1)
    return torch.zeros_like(gate).index_add(0, sample, values * weight[:, None] * (1 + gate[sample]) * 0.3)


def _by_feature(answer: Any) -> dict[str, Any]:
    """What a collection gave: jagged tensors, or the pooled vectors [B, columns] of each feature."""
    given = answer.wait() if isinstance(answer, LazyAwaitable) else answer
    return given.to_dict() if isinstance(given, KeyedTensor) else dict(given.items())


def given_out(answer: Any) -> torch.Tensor:
    """Everything that a collection gave, in one row."""
    found = _by_feature(answer).values()
    return torch.cat([(each if isinstance(each, torch.Tensor) else each.values()).float().flatten() for each in found])


def _collection(tables: tuple[Table, ...], *, weighted: bool) -> EmbeddingCollection | EmbeddingBagCollection:
    given = [
        {
            "name": table.name,
            "num_embeddings": table.rows,
            "embedding_dim": table.columns,
            "feature_names": list(table.features),
            "data_type": DataType[table.precision],
        }
        for table in tables
    ]
    if not tables[0].pooling:
        return EmbeddingCollection(tables=[EmbeddingConfig(**each) for each in given], device=META)
    poolings = [PoolingType[table.pooling.upper()] for table in tables]
    bags = [EmbeddingBagConfig(**each, pooling=pooling) for each, pooling in zip(given, poolings, strict=True)]
    return EmbeddingBagCollection(tables=bags, device=META, is_weighted=weighted)


def sharding_of(table: Table, size: int, host: int, kernel: str | None = None) -> ParameterShardingGenerator:
    home, hosts = table.home % size, size // host
    match table.sharding:
        case "host":
            return table_row_wise(host_index=table.home % hosts)
        case "grid":
            return grid(sorted({table.home % hosts, (table.home + 1) % hosts}, reverse=table.home > 0), table.columns)
        case "row":
            return row_wise(compute_kernel=kernel)
        case "table":
            return table_wise(rank=home, compute_kernel=kernel)
        case "column":
            return column_wise(ranks=[home, (home + 1) % size], compute_kernel=kernel)
        case "data":
            return data_parallel()
    raise ValueError(table.sharding)


def grid(hosts: list[int], columns: int) -> ParameterShardingGenerator:
    """As many columns on each of the `hosts`; TorchRec's own function cuts narrow tables at 128 columns."""
    cut = partial(sharding_plan._get_parameter_size_offsets, col_wise_shard_dim=columns // len(hosts))

    def generate(*args: Any) -> Any:
        with mock.patch.object(sharding_plan, "_get_parameter_size_offsets", cut):
            return sharding_plan.grid_shard(host_indexes=hosts)(*args)

    return generate


RATE = 0.05


def build(config: Config, size: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model of `config`, the same at every call, and the optimizer of all of it."""
    torch.manual_seed(config.seed)
    if config.builder is not None:
        return config.builder(config, size)
    return build_net(config, size, Net(config))


def build_net(
    config: Config, size: int, net: Net, sharders: Mapping[str, Any] | None = None, **kernels: str
) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """`net` sharded as `config` says; `sharders`: of some modules; `kernels`: compute kernel of some tables."""
    plan, host = {}, config.host if size % config.host == 0 else size
    if config.cached:
        of_tables = (table for tables in config.modules.values() for table in tables)
        kernels = {table.name: "fused_uvm_caching" for table in of_tables} | kernels
    found = {name: (sharders or {}).get(name) or _sharder(config, tables) for name, tables in config.modules.items()}
    for name, tables in config.modules.items():
        collection = net.embeddings[name]
        for table in tables:
            parameter = getattr(collection, "embedding_bags" if table.pooling else "embeddings")[table.name].weight
            options = {"lr": RATE * table.rate, "weight_decay": config.weight_decay}
            if table.sharding != "data" and (config.cached or table.name not in kernels):
                apply_optimizer_in_backward(OPTIMIZERS[config.optimizer], [parameter], options)
            parameter.requires_grad_(not table.frozen)
        plan[f"embeddings.{name}"] = construct_module_sharding_plan(
            collection,
            {table.name: sharding_of(table, size, host, kernels.get(table.name)) for table in tables},
            sharder=found[name],
            local_size=host if ON_CPU else torch.cuda.device_count(),  # a shard is on device `rank % local_size`
            world_size=size,
            device_type=DEVICE.type,
        )
    with on_hosts(host), _kernels_with_cache() if config.cached else contextlib.nullcontext():
        return wrap(config, net, ShardingPlan(plan), list({type(each): each for each in found.values()}.values()))


def _kernels_with_cache() -> Any:
    from cached_kernel import CachedKernel

    return mock.patch.object(batched_embedding_kernel, "SplitTableBatchedEmbeddingBagsCodegen", CachedKernel)


_GROUPS: dict[int, tuple[Any, Any]] = {}  # of TorchRec, by ranks of a host: inside it, and between hosts


@contextlib.contextmanager
def on_hosts(ranks: int) -> Iterator[None]:
    """So many ranks share a host: TorchRec looks at the environment, once, and keeps the groups."""
    comm._INTRA_PG, comm._CROSS_PG = _GROUPS.get(ranks, (None, None))
    with mock.patch.dict(os.environ, LOCAL_WORLD_SIZE=str(ranks)):
        yield
    _GROUPS[ranks] = comm._INTRA_PG, comm._CROSS_PG
    comm._INTRA_PG = comm._CROSS_PG = None


def _sharder(config: Config, tables: tuple[Table, ...]) -> Any:
    fused = {**config.fused, **({"output_dtype": SparseType.FP16} if config.half_output else {})}
    codecs = None
    if config.quantised is not None:
        rows, gradients = (CommType(each) for each in config.quantised)
        scale = {"forward_loss_scale": config.loss_scale, "backward_loss_scale": config.loss_scale}
        quantised = QCommsConfig(forward_precision=rows, backward_precision=gradients, **scale)
        codecs = get_qcomm_codecs_registry(quantised, device=DEVICE)
    if tables[0].pooling:
        return EmbeddingBagCollectionSharder(fused_params=fused, qcomm_codecs_registry=codecs)
    return EmbeddingCollectionSharder(fused, qcomm_codecs_registry=codecs, use_index_dedup=config.dedup)


def wrap(
    config: Config, net: nn.Module, plan: ShardingPlan, sharders: list[Any]
) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        net,
        env=ShardingEnv.from_process_group(world),
        device=DEVICE,
        plan=plan,
        sharders=sharders,
        init_data_parallel=config.data_parallel,
        data_parallel_wrapper=DefaultDataParallelWrapper(
            static_graph=config.static_graph, find_unused_parameters=config.finds_unused
        ),
    )
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9),
    )
    return model, CombinedOptimizer([("fused", model.fused_optimizer), ("dense", dense)])
