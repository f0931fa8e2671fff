"""All that imports torchrec: tables of a model, TorchRec's plans and ways to shard, and plans as JSON that it loads.

    DistributedModelParallel(model, plan=load_plan("sharding-plan.json"))

TorchRec says how a table can be cut and what its parts hold, and its planner gives the plan that others are compared
with. `search` finds a better one with the costs of this package.
"""

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardingOption
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import LAMB, SGD, Adagrad, Adam, LarsSGD, PartialRowWiseAdam, PartialRowWiseLAMB, RowWiseAdagrad

from freescale_tools.console.errors import UsageError, first_line
from freescale_tools.console.files import read_document
from freescale_tools.plan.costs import RESERVED, SHARDINGS, Placed, Setting, Shard, parts
from freescale_tools.plan.search import Rate, searched
from freescale_tools.plan.tables import DTYPES, OPTIMIZERS, Table, check_tables

_COUNTED_AS = {
    "exact_sgd": SGD, "sgd": SGD, "lars_sgd": LarsSGD, "exact_adagrad": Adagrad,
    "exact_row_wise_adagrad": RowWiseAdagrad, "row_wise_adagrad": RowWiseAdagrad,
    "adam": Adam, "partial_row_wise_adam": PartialRowWiseAdam,
    "lamb": LAMB, "partial_row_wise_lamb": PartialRowWiseLAMB,
}  # fmt: skip
"""Of each of OPTIMIZERS: the class by which TorchRec counts its states."""
LEAST_COLUMNS = 32  # of a column-wise part; narrower ones read less than a cache line per row and rank
MARGIN = 0.05  # of the rate: smaller differences are within the error of the model


def named_model(spec: str) -> nn.Module:
    """The module that `package.module:NAME` names, or that NAME returns when it is called without arguments.

    Imports the package, from the working directory too. Raises UsageError if there is none.
    """
    package, _, name = spec.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(package)
        for part in name.split("."):
            found = getattr(found, part)
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:  # the user's own code runs here: whatever it raises is said
        raise UsageError(f"model {spec}: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.remove(here)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {spec} is {type(model).__name__}: a torch.nn.Module, or a callable of one, is needed")
    return model


def tables_of(model: nn.Module, *, name: str) -> tuple[Table, ...]:
    """The tables of every EmbeddingCollection and EmbeddingBagCollection, without lengths.

    Raises UsageError if there is none, and for element types other than float32 and float16.
    """
    found = []
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            kind, configs = "pooled", list[Any](module.embedding_bag_configs())
        elif isinstance(module, EmbeddingCollection):
            kind, configs = "sequence", list[Any](module.embedding_configs())
        else:
            continue
        for config in configs:
            dtype, weight = config.data_type.name.lower(), _weights(module)[config.name].weight
            if dtype not in DTYPES:
                raise UsageError(f"{name}: table {config.name} is {config.data_type}: {' or '.join(DTYPES)} is needed")
            found.append(
                Table(
                    name=config.name, rows=config.num_embeddings, dim=config.embedding_dim,
                    features=tuple(config.feature_names), kind=kind, module=path, dtype=dtype,
                    optimizer=_optimizer_of(weight, f"{name}: table {config.name}"),
                )
            )  # fmt: skip
    if not found:
        raise UsageError(f"{name} has no EmbeddingCollection and no EmbeddingBagCollection: nothing can be sharded")
    check_tables(found, name)
    return tuple(found)


def _weights(module: EmbeddingCollection | EmbeddingBagCollection) -> Any:
    """Name of a table -> the module that has its weight."""
    return module.embeddings if isinstance(module, EmbeddingCollection) else module.embedding_bags


def _optimizer_of(weight: torch.Tensor, table: str) -> str:
    """What `apply_optimizer_in_backward` has put there; without it TorchRec fuses SGD with the update."""
    found: Any = getattr(weight, "_optimizer_classes", None)
    if not found:
        return OPTIMIZERS[0]
    try:
        return str(optimizer_type_to_emb_opt_type(found[0]))
    except ValueError as error:
        raise UsageError(
            f"{table} has the optimizer {found[0].__name__}, which TorchRec cannot fuse: give one of torchrec.optim"
        ) from error


def _collections(tables: Sequence[Table]) -> nn.Module:
    """One collection for each `module` of the tables, on the meta device: they take no memory.

    Its path in the model does not matter to a planner, which tells tables apart by name.
    """
    found = nn.ModuleList()
    for path in dict.fromkeys(table.module for table in tables):
        inside = [table for table in tables if table.module == path]
        config: Any = EmbeddingBagConfig if inside[0].pooled else EmbeddingConfig
        kind: Any = EmbeddingBagCollection if inside[0].pooled else EmbeddingCollection
        configs = [
            config(
                name=table.name, num_embeddings=table.rows, embedding_dim=table.dim,
                feature_names=list(table.features), data_type=DataType[table.dtype.upper()],
            )
            for table in inside
        ]  # fmt: skip
        try:
            collection = kind(tables=configs, device=torch.device("meta"))
        except KeyError as error:  # names of attributes, and names with dots
            raise UsageError(f"TorchRec takes no such table into module {path!r}: {error.args[0]}") from error
        for table in inside:  # where TorchRec's estimate of memory looks for it
            _weights(collection)[table.name].weight._optimizer_classes = [_COUNTED_AS[table.optimizer]]
        found.append(collection)
    return found


class _AnyDevice(EmbeddingBagCollectionSharder):
    """Row-wise also on CPUs: TorchRec's sharder leaves it out there, though such tables train over gloo."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(dict.fromkeys([*super().sharding_types(compute_device_type), "row_wise"]))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TorchRec's planner warns of data-parallel tables, and of its own objects not being made by its factories."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@_quiet()
def chosen_plan(usual: Sequence[Placed], setting: Setting, rate: Rate) -> tuple[Placed, ...]:
    """The plan of least `rate` for the tables of `usual`, which is TorchRec's own plan.

    It is `usual` where that is rated within MARGIN of the least. Blocks for up to some minutes.
    """
    tables = [one.table for one in usual]
    limits = _constraints(tables, setting, narrow=True)
    topology = _topology(setting)
    enumerator = EmbeddingEnumerator(
        topology=topology,
        batch_size=setting.batch_size,
        constraints=limits,
        estimator=[EmbeddingStorageEstimator(topology=topology, constraints=limits)],
    )
    options = enumerator.enumerate(_collections(tables), [_AnyDevice(), EmbeddingCollectionSharder()])
    ways = [[_placed(option, table) for option in options if option.name == table.name] for table in tables]
    own = searched(ways, usual, setting, rate)
    better = rate(parts(own, setting)) < (1 - MARGIN) * rate(parts(usual, setting))
    return own if better else tuple(usual)


@_quiet()
def default_plan(tables: Sequence[Table], setting: Setting) -> tuple[Placed, ...]:
    """What TorchRec's planner chooses by itself: its own estimates, bandwidths and proposers, given the lengths.

    Of the ways to shard, it has those of `costs.SHARDINGS`. Raises UsageError where no plan fits into the memory.
    """
    planner = EmbeddingShardingPlanner(
        topology=_topology(setting),
        batch_size=setting.batch_size,
        constraints=_constraints(tables, setting, narrow=False),
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        stats=[],
    )
    sharders: Any = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    try:
        planner.plan(_collections(tables), sharders)
    except PlannerError as error:
        # Its text is a page long; the first line says what is missing.
        raise UsageError(
            f"TorchRec's planner finds no plan: {first_line(error).strip()} Give more --ranks or --memory, smaller "
            "tables or a smaller --batch-size"
        ) from error
    # TorchRec 1.7 has no get_selected_options() yet, which gives the same.
    chosen = {option.name: option for option in planner._best_plan or []}
    return tuple(_placed(chosen[table.name], table) for table in tables)


def _placed(option: ShardingOption, table: Table) -> Placed:
    """As TorchRec has placed the parts; part r is on rank r where it has not placed them."""
    way: Any = option.sharding_type
    return Placed(
        table=table,
        sharding=way,
        shards=tuple(
            Shard(
                rank=place if shard.rank is None else shard.rank,
                first=shard.offset[0],
                rows=shard.size[0],
                dim=shard.size[1],
                held_bytes=shard.storage.hbm + shard.storage.ddr if shard.storage else 0,
            )
            for place, shard in enumerate(option.shards)
        ),
    )


def _topology(setting: Setting) -> Topology:
    memory = {"ddr_cap" if setting.device == "cpu" else "hbm_cap": setting.memory_bytes}
    return Topology(
        world_size=setting.ranks, compute_device=setting.device, local_world_size=setting.ranks_per_host, **memory
    )


def _constraints(tables: Sequence[Table], setting: Setting, *, narrow: bool) -> dict[str, ParameterConstraints]:
    """`narrow`: column-wise parts are as narrow as ranks and LEAST_COLUMNS allow, else TorchRec's default."""
    found = {}
    for table in tables:
        columns = max(LEAST_COLUMNS, -(-table.dim // setting.ranks // 4) * 4)
        cut = narrow and columns < table.dim and table.dim % columns == 0
        ways = [one for one in SHARDINGS if one != "column_wise" or cut or not narrow]
        if setting.device == "cpu" and not table.pooled:
            # The dense kernel that TorchRec 1.9 takes there pools the rows of a sample into one.
            ways = [one for one in ways if one != "data_parallel"]
        found[table.name] = ParameterConstraints(
            sharding_types=ways,
            compute_kernels=["fused", "dense"],
            min_partition=columns if cut else None,
            pooling_factors=list(table.ids_per_sample or ()),
        )
    return found


def as_document(plan: Sequence[Placed], setting: Setting) -> dict[str, Any]:
    """{version, kind, ranks, device, ranks_per_host, modules}: module -> table -> how and where it is sharded.

    Without the time: equal plans are equal files.
    """
    modules: dict[str, dict[str, Any]] = {}
    for one in sorted(plan, key=lambda one: (one.table.module, one.table.name)):
        everywhere, shards, column = one.sharding == "data_parallel", [], 0
        for shard in () if everywhere else one.shards:
            shards.append({"offset": [shard.first, column], "size": [shard.rows, shard.dim], "rank": shard.rank})
            column += shard.dim if one.sharding == "column_wise" else 0
        modules.setdefault(one.table.module, {})[one.table.name] = {
            "sharding_type": one.sharding,
            "compute_kernel": "dense" if everywhere else "fused",
            "ranks": [shard.rank for shard in one.shards],
            "shards": shards,
        }
    return {
        "version": 1, "kind": "sharding-plan", "ranks": setting.ranks, "device": setting.device,
        "ranks_per_host": setting.ranks_per_host, "modules": modules,
    }  # fmt: skip


def load_plan(path: Path | str) -> ShardingPlan:
    """The plan that `freescale plan` wrote, for `DistributedModelParallel(plan=...)`.

    Raises UsageError for other files, and for ranks outside the plan's.
    """
    make = "write one with `freescale plan TABLES --profile DIR --ranks N`"
    needs = ("ranks", "device", "ranks_per_host", "modules")
    document = read_document(Path(path), "sharding-plan", make=make, needs=needs)
    return from_document(document, str(path))


def from_document(document: Mapping[str, Any], where: str) -> ShardingPlan:
    """The plan of a document of `as_document`. Raises UsageError that names table and fault."""
    plan: dict[str, Any] = {}
    for module, tables in document["modules"].items():
        plan[module] = made = EmbeddingModuleShardingPlan()
        for name, one in tables.items():
            try:
                shards = [_shard(shard, document) for shard in one["shards"]]
                made[name] = ParameterSharding(
                    sharding_type=one["sharding_type"],
                    compute_kernel=one["compute_kernel"],
                    ranks=one["ranks"],
                    sharding_spec=EnumerableShardingSpec(shards) if shards else None,
                )
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"{where}: table {name} of module {module!r}: {error}") from error
    return ShardingPlan(plan)


def _shard(shard: Mapping[str, Any], document: Mapping[str, Any]) -> ShardMetadata:
    rank, ranks = shard["rank"], document["ranks"]
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} holds a part, but the plan is for ranks 0 to {ranks - 1}")
    device = "cpu" if document["device"] == "cpu" else f"{document['device']}:{rank % document['ranks_per_host']}"
    return ShardMetadata(
        shard_offsets=list(shard["offset"]), shard_sizes=list(shard["size"]), placement=f"rank:{rank}/{device}"
    )
